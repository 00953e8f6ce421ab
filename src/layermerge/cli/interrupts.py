"""Ctrl-C: how a command ends that is no longer wanted.

The first Ctrl-C ends it in order, a further one at once. Either is safe: whatever counts is on disk when it is done, so the
same command goes on where this one stopped.
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

_SHOW_CURSOR = "\x1b[?25h"


def how_to_go_on() -> str:
    """What to say of an interrupted command."""
    return f"interrupted; what was done is kept. To go on: {shlex.join(['layermerge', *sys.argv[1:]])}"


@contextmanager
def orderly_interrupts() -> Iterator[None]:
    """Within it, Ctrl-C is a KeyboardInterrupt in this process alone, and a second one ends the process, saying how to go on.

    Outside the main thread, where signals cannot be handled, nothing changes.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    owner, seen = os.getpid(), False

    def handle(_number: int, _frame: FrameType | None) -> None:
        nonlocal seen
        if os.getpid() != owner:
            return  # a process that was forked here: it ends when its parent does, and has nothing to say
        if seen:
            end_at_once(say=True)
        seen = True
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, handle)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


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
