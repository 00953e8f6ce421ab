"""Draws: which training batches are meant. Addressed, so that any process and any restart gets the same."""

from __future__ import annotations

from dataclasses import dataclass

Scalar = str | int | float | bool | None


@dataclass(frozen=True)
class Draw:
    """Which training batches to draw. `first` leaves out batches that were trained on; `share` is this process's part."""

    seed: int
    batch_size: int
    epoch: int = 0
    subset: int | None = None
    """Train on so many examples, the same in every epoch; None for all."""
    first: int = 0
    share: tuple[int, int] = (0, 1)
    """(rank, processes): every process gets its slice of each batch."""
