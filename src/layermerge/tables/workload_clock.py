"""Workload clock: how long a workload takes within its network, on a machine whose own speed changes.

A workload is timed as a sandwich, and what belongs to the sandwich alone is timed beside it and taken off. Shared machines
run at half their speed for seconds at a time, which interleaving does not cancel between one row and the next. So the whole
network is timed just before and just after, and the workload's time is given in proportion to it: every row is on the
whole's scale.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

from torch import nn

from layermerge.runtimes.base import Pass, Runtime
from layermerge.runtimes.clock import Clocks, ClockSettings
from layermerge.tables.table import Row
from layermerge.tables.workloads import Sandwich, Workload, call, empty, needs_other, sandwich_inputs
from layermerge.tracing.inputs import Inputs
from layermerge.tracing.structure import MapShape

WHOLE = "whole network"

_STEADY = 0.05
_TRIES = 4


def measure_whole(runtime: Runtime, whole: Pass, settings: ClockSettings) -> Row:
    """The row that all others are in proportion to."""
    sample = runtime.time({WHOLE: whole}, settings)[WHOLE]
    return Row(key=WHOLE, value=sample.value_ms, spread=sample.spread * sample.value_ms, samples=sample.rounds)


@dataclass(frozen=True)
class WorkloadClock:
    """Times workloads on one runtime; what sandwiches have in common is built once."""

    runtime: Runtime
    batch: int
    clocks: Clocks
    whole: Pass
    whole_ms: float
    between: Pass
    _empties: dict[MapShape, Pass] = field(default_factory=dict)

    def measure(self, workload: Workload) -> Row:
        """The workload's own time at the whole network's pace."""
        other = [workload.output_shape] if needs_other(workload) else []
        neighbours = [workload.input_shape, workload.output_shape, *other]
        return self.measure_sandwich(workload.key, self._prepare(Sandwich(workload), workload), neighbours)

    def measure_sandwich(self, key: str, sandwich: Pass, neighbours: Sequence[MapShape]) -> Row:
        """What lies between neighbours on maps of these shapes. Tried again where the machine changed its speed meanwhile."""
        tries: list[tuple[float, Row]] = []
        while len(tries) < _TRIES:
            before, row, after = self._pace(), self._time(key, sandwich, neighbours), self._pace()
            change, pace = abs(after - before) / max(after, before), (after + before) / 2
            at_pace = {"value": (row.value or 0.0) / pace, "spread": row.spread / pace}
            tries.append((change, row.model_copy(update=at_pace)))
            if change <= _STEADY:
                break
        return min(tries, key=lambda one: one[0])[1]

    def _pace(self) -> float:
        """How long the whole network takes just now, relative to its row."""
        return self.runtime.time({WHOLE: self.whole}, self.clocks.pace)[WHOLE].value_ms / self.whole_ms

    def _time(self, key: str, sandwich: Pass, neighbours: Sequence[MapShape]) -> Row:
        """A sandwich, less its call and its neighbours; of these an empty graph has two."""
        runs = {"sandwich": sandwich, "call": self._call} | {str(one): self._empty(one) for one in neighbours}
        samples = self.runtime.time(runs, self.clocks.workload, between=self.between)
        called = samples["call"].value_ms
        own = samples["sandwich"].value_ms - called
        own -= sum((samples[str(shape)].value_ms - called) / 2 for shape in neighbours)
        spread = sum(sample.spread * sample.value_ms for sample in samples.values())
        return Row(key=key, value=max(own, 0.0), spread=spread, samples=samples["sandwich"].rounds)

    def _empty(self, shape: MapShape) -> Pass:
        if shape not in self._empties:
            self._empties[shape] = self._prepare(empty(shape[0]), Workload.between(shape))
        return self._empties[shape]

    @cached_property
    def _call(self) -> Pass:
        return self._prepare(call(), Workload.between((1, 1, 1)))

    def _prepare(self, module: nn.Module, workload: Workload) -> Pass:
        return self.runtime.prepare(module, Inputs(sandwich_inputs(workload, self.batch), {}), small=True)
