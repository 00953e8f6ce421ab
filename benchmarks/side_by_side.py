"""Latencies of one run: all exported files in turn, so that a drifting machine is fair to each."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from layermerge.runs.methods import CONTROL
from layermerge.runs.results import Report
from layermerge.runs.steps import FILE, Run
from layermerge.runtimes.clock import ClockSettings, time_side_by_side

CLOCK = ClockSettings(least_rounds=100, most_rounds=3000, seconds=20.0, spread=0.003, least_seconds=10.0)


def side_by_side(
    run: Run, reports: Sequence[Report], places: Sequence[Path], clock: ClockSettings = CLOCK
) -> list[Report]:
    """The same reports with latencies measured anew, on the scale of the run's latency table.

    The control is the original network, exported as the others are: its file is what they are compared with.
    """
    inputs = run.trace.inputs.resized(run.settings.batch_size)
    passes = {str(place): run.runtime.prepare_file(place / FILE, inputs) for place in places}
    samples = time_side_by_side(passes, clock)
    control = next(place for report, place in zip(reports, places, strict=True) if report.method == CONTROL)
    unit = run.original_ms / samples[str(control)].value_ms
    return [
        report.model_copy(update={"measured_ms": samples[str(place)].value_ms * unit, "original_ms": run.original_ms})
        for report, place in zip(reports, places, strict=True)
    ]
