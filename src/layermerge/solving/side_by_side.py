"""Side by side: a merged network's latency beside the original's, so that drift cancels."""

from __future__ import annotations

from statistics import median

from layermerge.runtimes.base import Pass, Runtime
from layermerge.runtimes.clock import ClockSettings

_WINDOWS = 3


def measured_beside(
    runtime: Runtime, original: Pass, merged: Pass, original_ms: float, clock: ClockSettings | None = None
) -> float:
    """The merged network's time on the table's scale.

    The median of three: the loop accepts the first that keeps the budget, and so would favour a lucky one.
    """
    runs = {"original": original, "merged": merged}
    windows = [runtime.time(runs, clock or runtime.clocks.whole) for _ in range(_WINDOWS)]
    return median(sample["merged"].value_ms / sample["original"].value_ms for sample in windows) * original_ms
