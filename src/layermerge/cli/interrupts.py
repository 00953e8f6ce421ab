"""Ctrl-C: how a command ends that is no longer wanted.

The first Ctrl-C ends it in order, a further one at once. Either is safe: whatever counts is on disk when it is done, so the
same command continues where this one stopped.
"""

from __future__ import annotations

import os
import shlex
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn

_SHOW_CURSOR = "\r\x1b[2K\x1b[?25h"
"""In place of the line of the stage that ran."""
_LOOK_AGAIN = 0.02
"""Seconds until it is tried once more to end in order, where the first try was lost in a destructor or a callback."""


def how_to_go_on() -> str:
    """What to say of an interrupted command."""
    return f"interrupted; what was done is kept. To go on: {shlex.join(['layermerge', *sys.argv[1:]])}"


class CtrlC:
    """Makes Ctrl-C a KeyboardInterrupt in this process alone; a second one ends the process, saying how to go on."""

    def __init__(self) -> None:
        self.seen = False
        """Whether there was one. What came of the KeyboardInterrupt does not matter: libraries swallow or wrap it."""
        self._owner = os.getpid()

    @contextmanager
    def handled(self) -> Iterator[None]:
        """Outside the main thread, where signals cannot be handled, nothing changes."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before, alarm = signal.signal(signal.SIGINT, self._handle), _on_alarm(_interrupt)
        report = sys.unraisablehook
        sys.unraisablehook = lambda problem: self._deliver_again() if self._lost(problem) else report(problem)
        try:
            yield
        finally:
            sys.unraisablehook = report
            _on_alarm(alarm)
            signal.signal(signal.SIGINT, before)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if os.getpid() != self._owner:
            return  # a process that was forked here: it ends when its parent does, and has nothing to say
        if self.seen:
            end_at_once(say=True)
        self.seen = True
        _interrupt(number, frame)

    def _deliver_again(self) -> None:
        if _CAN_WAIT:
            signal.setitimer(signal.ITIMER_REAL, _LOOK_AGAIN)

    def _lost(self, problem: sys.UnraisableHookArgs) -> bool:
        """Whether the KeyboardInterrupt came up in a destructor or a callback, which nothing can leave."""
        return self.seen and issubclass(problem.exc_type, KeyboardInterrupt)


_CAN_WAIT = hasattr(signal, "setitimer")


def _on_alarm(handler: object) -> object:
    """Sets what an alarm does, with none pending; gives what it did before."""
    if not _CAN_WAIT:
        return None
    signal.setitimer(signal.ITIMER_REAL, 0)
    return signal.signal(signal.SIGALRM, handler)  # type: ignore[arg-type]


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def ignore_further() -> None:
    """Once the command has said how to go on, another Ctrl-C only hurries: no traceback from what is still being closed."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, lambda *_: end_at_once(say=False))


def end_at_once(*, say: bool) -> NoReturn:
    """Without closing anything: to be used where that takes too long."""
    # A bar that is not closed leaves the cursor hidden.
    cursor = _SHOW_CURSOR if os.isatty(2) else ""
    os.write(2, f"{cursor}{how_to_go_on()}\n".encode() if say else cursor.encode())
    os._exit(1)
