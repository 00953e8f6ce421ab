"""The stack that signal handlers run on, kept where a library puts its own in its place.

OpenVINO does while a `Core` lives. With two of them, the one that goes last puts back what the other one has freed, and the
next signal that has a handler, such as Ctrl-C or a child process that ends, finds no stack and ends the process.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterator
from contextlib import contextmanager


class _Stack(ctypes.Structure):
    """`stack_t` of Linux."""

    _fields_ = (("address", ctypes.c_void_p), ("flags", ctypes.c_int), ("size", ctypes.c_size_t))


@contextmanager
def kept_signal_stack() -> Iterator[None]:
    """Afterwards this thread's signal handlers run where they did before."""
    if sys.platform != "linux":
        yield
        return
    exchange, before = ctypes.CDLL(None).sigaltstack, _Stack()
    exchange(None, ctypes.byref(before))
    try:
        yield
    finally:
        exchange(ctypes.byref(before), None)
