"""Workload clock: how long a workload takes within its network, on a machine whose own speed changes.

Where the runtime reports what each operator took, a workload is recorded as a sandwich, in turn with the whole network: that
leaves the caches as the rest of a network does, and says how fast the machine is just then. Where it does not tell, the
sandwich is timed, and what belongs to the sandwich alone is timed next to it and taken off. Either way the workload's time is
given in proportion to the whole network's: every row is on the whole's scale.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

from torch import nn

from layermerge.runtimes.base import Pass, Runtime
from layermerge.runtimes.clock import Clocks, ClockSettings
from layermerge.runtimes.recording import Recording
from layermerge.tables.bounds import MARGIN_OF_ONE, MARGIN_OF_TWO, slower
from layermerge.tables.table import Row
from layermerge.tables.workloads import Sandwich, Workload, call, empty, needs_other
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

    def measure(self, workload: Workload, limit_ms: float = float("inf")) -> Row:
        """The workload's own time at the whole network's pace; a bound, where it is far beyond the limit."""
        told = Sandwich(workload, told=True, fuses=self.runtime.fuses)
        recording = self.runtime.record(told, told.inputs(self.batch), small=True)
        if recording is not None:
            return self._bounded(workload, recording, limit_ms) or self._record(workload.key, told, recording)
        sandwich = Sandwich(workload)
        timed = self.runtime.prepare(sandwich, sandwich.inputs(self.batch), small=True)
        other = [workload.output_shape] if needs_other(workload) else []
        neighbours = [workload.input_shape, workload.output_shape, *other]
        return self._bounded(workload, timed, limit_ms) or self.measure_sandwich(workload.key, timed, neighbours)

    def _bounded(self, workload: Workload, run: Pass, limit_ms: float) -> Row | None:
        """The bound that one pass gives, or the smaller of two warm ones; None where these leave the matter open."""
        if not 0 < limit_ms < float("inf"):
            return None
        first = self._milliseconds(run)
        if first <= MARGIN_OF_TWO * limit_ms:
            return None
        # The machine may be slow just now, and neighbours are part of the pass: both are given the benefit of the doubt.
        pace = max(1.0, self._milliseconds(self.whole) / self.whole_ms)
        around = sum(self._milliseconds(self._empty(shape)) for shape in (workload.input_shape, workload.output_shape))

        def own(taken: float) -> float:
            return (taken - around) / pace

        if own(first) > MARGIN_OF_ONE * limit_ms:
            return slower(workload.key, own(first), limit_ms)
        warm = own(min(self._milliseconds(run) for _ in range(2)))
        return slower(workload.key, warm, limit_ms) if warm > MARGIN_OF_TWO * limit_ms else None

    def _milliseconds(self, run: Pass) -> float:
        once = ClockSettings(warm_up=0, least_rounds=1, most_rounds=1)
        return self.runtime.time({"once": run}, once)["once"].value_ms

    def _record(self, key: str, sandwich: Sandwich, recording: Recording) -> Row:
        """What the runtime says of the sandwich's own operators."""
        rounds = self.runtime.rounds({WHOLE: self.whole, key: recording}, self.clocks.recorded)
        passes = recording.passes()[-len(rounds.times[key]) :]
        sample = rounds.sample(key, [sandwich.own_ms(operators) for operators in passes])
        pace = rounds.sample(WHOLE).value_ms / self.whole_ms
        value = sample.value_ms / pace
        return Row(key=key, value=value, spread=sample.spread * value, samples=sample.rounds)

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
            self._empties[shape] = self._prepare(empty(shape[0]), shape)
        return self._empties[shape]

    @cached_property
    def _call(self) -> Pass:
        return self._prepare(call(), (1, 1, 1))

    def _prepare(self, module: nn.Module, shape: MapShape) -> Pass:
        inputs: Inputs = Sandwich(Workload(None, shape)).inputs(self.batch)
        return self.runtime.prepare(module, inputs, small=True)
