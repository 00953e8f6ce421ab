"""Which processes are there, read from /proc; tests use it to see that none is left behind."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

PATIENCE = 30.0
"""Seconds until something that should happen at once counts as not happening; a busy machine may be slow."""


def soon(holds: Callable[[], bool], patience: float = PATIENCE) -> bool:
    end = time.monotonic() + patience
    while not holds():
        if time.monotonic() > end:
            return False
        time.sleep(0.02)
    return True


def children(parent: int | None = None) -> set[int]:
    """Processes below this one or `parent`, at any depth, that still run."""
    parents = {pid: above for pid, (state, above) in _all().items() if state != "Z"}
    found: set[int] = set()
    below = {os.getpid() if parent is None else parent}
    while below:
        below = {pid for pid, above in parents.items() if above in below}
        found |= below
    return found


def running(pid: int) -> bool:
    return _all().get(pid, ("Z", 0))[0] != "Z"


def _all() -> dict[int, tuple[str, int]]:
    """State and parent of every process."""
    found = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, parent = path.read_text().rpartition(")")[2].split()[:2]
        except (FileNotFoundError, ProcessLookupError):  # it ended while we looked
            continue
        found[int(path.parent.name)] = state, int(parent)
    return found
