"""Display: what fine-tuning shows on stderr.

In: steps and rows. Out: the progress of its steps, and one plain line per epoch in any case.
Guarantees: nothing at all where it is not wanted.
"""

from __future__ import annotations

from layermerge.progress import Progress
from layermerge.tuning.recovery import Epoch


class Display(Progress):
    """Shows one run, from step `done` to step `total`."""

    def __init__(self, *, wanted: bool, done: int, total: int) -> None:
        super().__init__("fine-tuning", total=total, done=done, wanted=wanted)
        self._total = total

    def __enter__(self) -> Display:
        super().__enter__()
        return self

    def step(self) -> None:
        self.advance()

    def row(self, row: Epoch) -> None:
        loss = "" if row.train_loss is None else f"loss {row.train_loss:.4f}, "
        self.print(
            f"epoch {row.epoch:g}, step {row.step} of {self._total}: {loss}score {row.score:.4f}, {row.seconds:.0f} s"
        )
