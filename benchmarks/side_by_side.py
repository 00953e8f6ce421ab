"""Latencies of one run: all exported files in turn, so that a drifting machine is fair to each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from layermerge.runs.context import Context
from layermerge.runs.records import CONTROL, Report
from layermerge.runs.steps import original_ms, place_of
from layermerge.runtimes.clock import ClockSettings

CLOCK = ClockSettings(least_rounds=100, most_rounds=3000, seconds=20.0, spread=0.003, least_seconds=10.0)


def side_by_side(context: Context, reports: Sequence[Report], clock: ClockSettings = CLOCK) -> list[Report]:
    """The same reports with latencies measured anew, on the scale of the run's latency table.

    The control is the original network, exported as the others are: its file is what they are compared with.
    """
    inputs = context.trace.inputs.resized(context.settings.batch_size)
    files = [place_of(context, report).exported for report in reports]
    passes = {str(file): context.runtime.prepare_file(file, inputs) for file in files}
    samples = context.runtime.time(passes, clock)
    taken = [samples[str(file)].value_ms for file in files]
    whole = original_ms(context)
    unit = whole / next(ms for report, ms in zip(reports, taken, strict=True) if report.method == CONTROL)
    return [
        replace(report, measured_ms=ms * unit, original_ms=whole, budget_kept=ms * unit <= report.budget_ms)
        for report, ms in zip(reports, taken, strict=True)
    ]
