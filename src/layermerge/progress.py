"""Progress: how far long work is, on stderr.

In: a title, how much there is to do, and each part when it is done. Out: a bar with count, elapsed time and time left where
stderr is a terminal; elsewhere plain lines, the first after a few seconds and then few. Guarantees: nothing where it is not
wanted, nothing on stdout.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from time import monotonic
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress import Progress as RichProgress

from layermerge.stages import aside, in_words, stages_shown

FIRST_LINE_AFTER = 15.0
"""Seconds; what is done by then needs no line."""
LINE_EVERY = 30.0
_REDRAWN_PER_SECOND = 2.0
"""Few, because the bar is drawn beside measurements of time."""
_SPEED_OVER = 600.0
"""Seconds that the bar's estimate looks back; single entries of a table may take a minute."""


class _Silence:
    """For work that is not to be shown."""

    def start(self) -> None: ...

    def stop(self) -> None: ...

    def advance(self, count: int) -> None: ...

    def print(self, line: str) -> None: ...


class Progress:
    """Shows one piece of work while it is entered, from `done` parts to `total`.

    >>> with Progress("counting", total=3) as progress:
    ...     for _ in range(3):
    ...         progress.advance()
    """

    def __init__(
        self, title: str, *, total: int, done: int = 0, wanted: bool = True, clock: Callable[[], float] = monotonic
    ) -> None:
        self._style = _style(title, total, done, clock) if wanted else _Silence()

    def __enter__(self) -> Progress:
        self._style.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._style.stop()

    def advance(self, count: int = 1) -> None:
        """So many more parts are done."""
        self._style.advance(count)

    def print(self, line: str) -> None:
        """A line of its own, above the bar where there is one."""
        self._style.print(line)


def _style(title: str, total: int, done: int, clock: Callable[[], float]) -> _Silence:
    console = Console(file=sys.stderr, soft_wrap=True, highlight=False, markup=False)
    if sys.stderr.isatty() and console.is_interactive:
        return _Bar(console, title, total, done)
    return _Lines(title, total, done, clock)


class _Bar(_Silence):
    """For a terminal."""

    def __init__(self, console: Console, title: str, total: int, done: int) -> None:
        self._rich = RichProgress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=console,
            refresh_per_second=_REDRAWN_PER_SECOND,
            speed_estimate_period=_SPEED_OVER,
            transient=stages_shown(),
        )
        self._task = self._rich.add_task(title, total=total, completed=done)
        self._around = aside()

    def start(self) -> None:
        self._around.__enter__()
        self._rich.start()

    def stop(self) -> None:
        self._rich.stop()
        self._around.__exit__(None, None, None)

    def advance(self, count: int) -> None:
        self._rich.advance(self._task, count)

    def print(self, line: str) -> None:
        self._rich.console.print(line)


class _Lines(_Silence):
    """For logs: said when a part is done, so nothing runs beside the work itself."""

    def __init__(self, title: str, total: int, done: int, clock: Callable[[], float]) -> None:
        self._title, self._total, self._first, self._done, self._clock = title, total, done, done, clock
        self._began = self._next = 0.0

    def start(self) -> None:
        self._began = self._clock()
        self._next = self._began + FIRST_LINE_AFTER

    def advance(self, count: int) -> None:
        self._done += count
        now = self._clock()
        if now < self._next or self._done >= self._total:
            return
        self._next = now + LINE_EVERY
        elapsed = now - self._began
        left = elapsed * (self._total - self._done) / (self._done - self._first)
        self.print(
            f"{self._title}: {self._done} of {self._total}, {in_words(elapsed)} so far, about {in_words(left)} left"
        )

    def print(self, line: str) -> None:
        with aside(opens=True):
            print(line, file=sys.stderr, flush=True)
