"""Side by side: a merged network's latency alongside the original's, so that drift cancels."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import cycle
from statistics import median

from layermerge.runtimes.base import Pass, Runtime
from layermerge.runtimes.clock import ClockSettings

_WINDOWS = 3


def windows_beside(
    runtime: Runtime,
    originals: Sequence[Pass],
    merged: Sequence[Pass],
    original_ms: float,
    clock: ClockSettings | None = None,
) -> list[float]:
    """The merged network's time on the table's scale, in three windows or more, in each of which other copies are timed."""
    count = max(_WINDOWS, len(merged))
    settings = (clock or runtime.clocks.whole).divided(1 if count == _WINDOWS else 2)
    windows = []
    for number, first, second in zip(range(count), cycle(originals), cycle(merged), strict=False):
        with runtime.elsewhere(number):
            samples = runtime.time({"original": first, "merged": second}, settings)
        windows.append(samples["merged"].value_ms / samples["original"].value_ms * original_ms)
    return windows


def measured_beside(runtime: Runtime, originals: Sequence[Pass], merged: Sequence[Pass], original_ms: float) -> float:
    """The median of the windows: the loop accepts the first that keeps the budget, and so would favour a lucky one."""
    return median(windows_beside(runtime, originals, merged, original_ms))
