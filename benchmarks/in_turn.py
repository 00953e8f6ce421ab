"""Latencies of one run: files in turn, so that a drifting machine is fair to each."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from statistics import median

from layermerge.runtimes.base import Runtime
from layermerge.runtimes.clock import ClockSettings
from layermerge.tracing.inputs import Inputs

CLOCK = ClockSettings(least_rounds=100, most_rounds=3000, seconds=20.0, spread=0.003, least_seconds=10.0)
COPIES = 2


def milliseconds(
    runtime: Runtime, files: Mapping[str, Path], inputs: Inputs, clock: ClockSettings = CLOCK
) -> dict[str, float]:
    """By the names of the files: the median over several builds of each, spread over the turn.

    The network that is built first and timed first was seen 6 % slower than another build of it, among 27 files: a build of the
    first file goes ahead, and is not counted.
    """
    names = {name: [f"{name}, build {number}" for number in range(COPIES)] for name in files}
    first = next(iter(files))
    turn = [(first, "ahead"), *((name, names[name][number]) for number in range(COPIES) for name in files)]
    samples = runtime.time({build: runtime.prepare_file(files[name], inputs) for name, build in turn}, clock)
    return {name: round(median(samples[build].value_ms for build in names[name]), 5) for name in files}
