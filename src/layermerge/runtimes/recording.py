"""Recording: passes of a network in which the runtime itself says how long each operator took.

An operator belongs to the conv that it is, or that it follows up to the next conv or barrier: its activation, its norm, the
add after it. What runtimes insert by themselves, such as a change of layout, has no owner.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Operator:
    """One operator of one pass."""

    owner: str | None
    """The module of the conv that it is or follows."""
    is_conv: bool
    ms: float


class Recording(ABC):
    """Passes that are recorded: called for each, then asked once what they were made of."""

    @abstractmethod
    def __call__(self) -> object:
        """One pass."""

    @abstractmethod
    def passes(self) -> list[Sequence[Operator]]:
        """The operators of every pass so far, in the order in which they ran; ends the recording."""
