"""Uninterrupted: Ctrl-C waits while torch exports a network.

Its exporters run Python code where an exception is lost (destructors, weak references) or ends the process (C++ that may not
throw), so an interruption there was ignored, or was a crash.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def uninterrupted() -> Iterator[None]:
    """A Ctrl-C that comes meanwhile is handled right afterwards, whatever came of the work.

    Outside the main thread, which alone handles signals, and where no handler of Python's is in place, nothing changes.
    """
    before = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or before is None:
        yield
        return
    came: list[int] = []
    signal.signal(signal.SIGINT, lambda number, _frame: came.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        if came:
            signal.raise_signal(signal.SIGINT)
