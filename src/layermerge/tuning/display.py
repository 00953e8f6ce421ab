"""Display: what fine-tuning shows on stderr.

In: steps and rows. Out: a bar with the time left where stderr is a terminal, and one plain line per epoch in any case.
Guarantees: nothing at all where it is not wanted.
"""

from __future__ import annotations

import sys
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from layermerge.tuning.recovery import Row


class Display:
    """Shows one run, from step `done` to step `total`."""

    def __init__(self, *, wanted: bool, done: int, total: int) -> None:
        self._console = Console(file=sys.stderr, quiet=not wanted, soft_wrap=True, highlight=False)
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=self._console,
            disable=not (wanted and self._console.is_terminal),
        )
        self._total = total
        self._bar = self._progress.add_task("fine-tuning", total=total, completed=done)

    def __enter__(self) -> Display:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()

    def step(self) -> None:
        self._progress.advance(self._bar)

    def row(self, row: Row) -> None:
        loss = "" if row.train_loss is None else f"loss {row.train_loss:.4f}, "
        self._console.print(
            f"epoch {row.epoch:g}, step {row.step} of {self._total}: {loss}score {row.score:.4f}, {row.seconds:.0f} s"
        )
