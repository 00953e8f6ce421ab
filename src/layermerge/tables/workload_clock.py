"""Workload clock: how long a workload takes within its network, on a machine whose own speed changes.

A workload is timed as a sandwich, and what belongs to the sandwich alone is timed beside it and taken off. Shared machines
run at half their speed for seconds at a time, which interleaving does not cancel between one row and the next. So the whole
network is timed just before and just after, and the workload's time is given in proportion to it: every row is on the
whole's scale.
"""

from __future__ import annotations

from functools import cached_property

from torch import nn

from layermerge.runtimes.base import Pass, Runtime
from layermerge.tables.clock import ClockSettings, time_side_by_side
from layermerge.tables.table import Row
from layermerge.tables.workloads import Sandwich, Workload, call, empty, needs_other, sandwich_inputs
from layermerge.tracing.capture import Inputs
from layermerge.tracing.structure import MapShape

WHOLE = "whole network"
WHOLE_CLOCK = ClockSettings(least_rounds=20, least_seconds=1.0, most_rounds=2000, seconds=4.0, spread=0.005)
# Workloads are short and so are their windows, that the machine's speed seldom changes within one.
WORKLOAD_CLOCK = ClockSettings(least_rounds=12, least_seconds=0.1, most_rounds=2000, seconds=0.1)
PACE_CLOCK = ClockSettings(warm_up=0, least_rounds=2, least_seconds=0.05, most_rounds=2000, seconds=0.05)

_STEADY = 0.05
_TRIES = 4


def measure_whole(whole: Pass, settings: ClockSettings = WHOLE_CLOCK) -> Row:
    """The row that all others are in proportion to."""
    sample = time_side_by_side({WHOLE: whole}, settings)[WHOLE]
    return Row(key=WHOLE, value=sample.value_ms, spread=sample.spread * sample.value_ms, samples=sample.rounds)


class Pace:
    """How long the whole network takes just now, relative to its row."""

    def __init__(self, whole: Pass, whole_ms: float, settings: ClockSettings = PACE_CLOCK) -> None:
        self.whole, self.whole_ms, self.settings = whole, whole_ms, settings

    def now(self) -> float:
        return time_side_by_side({WHOLE: self.whole}, self.settings)[WHOLE].value_ms / self.whole_ms


class WorkloadClock:
    """Times workloads on one runtime; what sandwiches have in common is built once."""

    def __init__(
        self,
        runtime: Runtime,
        batch: int,
        pace: Pace,
        settings: ClockSettings = WORKLOAD_CLOCK,
        between: Pass = lambda: None,
    ) -> None:
        self.runtime, self.batch, self.pace, self.settings, self.between = runtime, batch, pace, settings, between
        self._empties: dict[MapShape, Pass] = {}

    def measure(self, workload: Workload) -> Row:
        """The workload's own time at the whole network's pace. Tried again where the machine changed its speed meanwhile."""
        sandwich = self._prepare(Sandwich(workload), workload)
        tries: list[tuple[float, Row]] = []
        while len(tries) < _TRIES:
            before, row, after = self.pace.now(), self._time(workload, sandwich), self.pace.now()
            change, pace = abs(after - before) / max(after, before), (after + before) / 2
            at_pace = {"value": (row.value or 0.0) / pace, "spread": row.spread / pace}
            tries.append((change, row.model_copy(update=at_pace)))
            if change <= _STEADY:
                break
        return min(tries, key=lambda one: one[0])[1]

    def _time(self, workload: Workload, sandwich: Pass) -> Row:
        """A sandwich, less its call and its neighbours; of these an empty graph has two."""
        neighbours = [
            workload.input_shape,
            workload.output_shape,
            *([workload.output_shape] if needs_other(workload) else []),
        ]
        runs = {"sandwich": sandwich, "call": self._call} | {str(one): self._empty(one) for one in neighbours}
        samples = time_side_by_side(runs, self.settings, between=self.between)
        called = samples["call"].value_ms
        own = samples["sandwich"].value_ms - called
        own -= sum((samples[str(shape)].value_ms - called) / 2 for shape in neighbours)
        spread = sum(sample.spread * sample.value_ms for sample in samples.values())
        return Row(key=workload.key, value=max(own, 0.0), spread=spread, samples=samples["sandwich"].rounds)

    def _empty(self, shape: MapShape) -> Pass:
        if shape not in self._empties:
            self._empties[shape] = self._prepare(empty(shape[0]), Workload.between(shape))
        return self._empties[shape]

    @cached_property
    def _call(self) -> Pass:
        return self._prepare(call(), Workload.between((1, 1, 1)))

    def _prepare(self, module: nn.Module, workload: Workload) -> Pass:
        return self.runtime.prepare(module, Inputs(sandwich_inputs(workload, self.batch), {}), small=True)
