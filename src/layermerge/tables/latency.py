"""Latency: what each candidate will cost on the runtime that serves the network.

In: a `Plan`, its `Trace`, a runtime. Out: a `LatencyTable`, durable and resumable.
Each distinct workload is timed once, in the runtime, at the network's true resolution and in proportion to the whole network.
What a residual branch computes beside its convs (a gate, attention) is charged to the candidates that keep the branch.
What no candidate covers (pooling, the classifier) is the fixed cost: the whole network minus its single layers. If that is
negative, rows are scaled so that they sum to the whole.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

import torch

from layermerge.arguments import Count, FilePath, checked
from layermerge.errors import LayerMergeError, TableError, machine_failed
from layermerge.planning.plan import Candidate, Plan
from layermerge.runtimes.base import Pass, Runtime, RuntimeSettings
from layermerge.runtimes.clock import Clocks, ClockSettings, cache_pressure
from layermerge.runtimes.registry import make_runtime
from layermerge.surgery.merge import merge
from layermerge.surgery.rewrite import rewrite
from layermerge.tables.branches import Branch, branch_maker, branches_of
from layermerge.tables.executors import reason_of
from layermerge.tables.runner import fill_table
from layermerge.tables.table import Row, Scalar, Table
from layermerge.tables.workload_clock import WHOLE, WorkloadClock, measure_whole
from layermerge.tables.workloads import Workload, workloads_of
from layermerge.tracing.trace import Trace

_TIMING = 2
"""How workloads are timed; raised with every change to it, since rows that were timed otherwise do not mix."""
_LONGEST_MS = 1e9
"""No pass takes days: what is beyond was not measured."""


@dataclass(frozen=True)
class LatencyTable:
    """Milliseconds by candidate, the whole network's, and the cost that no candidate covers."""

    plan: Plan
    workloads: Mapping[str, Workload | None]
    table: Table
    branches: tuple[Branch, ...] = ()
    """Outer ones before those inside them."""

    @cached_property
    def original_ms(self) -> float:
        """The untouched network, norms folded, measured whole."""
        return _whole_ms(self.table)

    @property
    def _singles(self) -> list[Candidate]:
        return [candidate for candidate in self.plan.candidates if candidate.untouched and not candidate.fixed]

    @cached_property
    def _singles_ms(self) -> float:
        return sum(map(self._measured, self._singles))

    @cached_property
    def _rests(self) -> dict[Branch, float]:
        """What each branch takes beside its convs and the branches inside it; none for a branch that could not be measured."""
        rests: dict[Branch, float] = {}
        for branch in reversed(self.branches):
            if self.table[branch.key].status == "ok":
                inside = [single for single in self._singles if branch.start <= single.start < branch.end]
                convs = sum(self._own(single) + _charged(rests, single) for single in inside)
                rests[branch] = max(0.0, _value(self.table, branch.key) - convs)
        return rests

    @property
    def scale(self) -> float:
        """What rows are multiplied by: below 1 where the single layers sum to more than the whole network."""
        return min(1.0, self.original_ms / self._singles_ms) if self._singles_ms else 1.0

    @property
    def fixed_ms(self) -> float:
        """What no candidate changes: the whole network less its single layers."""
        return max(0.0, self.original_ms - self._singles_ms)

    @checked(TableError)
    def of(self, candidate: Candidate) -> float | None:
        """The candidate's latency; None where it could not be measured, which takes it off the menu."""
        workload = self._workload(candidate)
        if candidate.fixed:
            return 0.0
        timed = workload is None or self.table[workload.key].status == "ok"
        return self._measured(candidate) * self.scale if timed else None

    @checked(TableError)
    def spread_of(self, candidate: Candidate) -> float:
        """How far the candidate's measurements scattered, in milliseconds."""
        workload = self._workload(candidate)
        return 0.0 if candidate.fixed or workload is None else self.table[workload.key].spread * self.scale

    def _workload(self, candidate: Candidate) -> Workload | None:
        if candidate not in self.plan:
            raise TableError(f"candidate {candidate.key} is not of the plan that {self.table.name} was measured for")
        return self.workloads[candidate.key]

    def _measured(self, candidate: Candidate) -> float:
        return self._own(candidate) + _charged(self._rests, candidate)

    def _own(self, candidate: Candidate) -> float:
        workload = self.workloads[candidate.key]
        return 0.0 if workload is None else _value(self.table, workload.key)

    @property
    def distinct_workloads(self) -> int:
        return len(self._workload_keys)

    @property
    def seconds(self) -> float:
        """What measuring this plan's workloads cost."""
        return sum(self.table[key].seconds for key in self._workload_keys)

    @property
    def _workload_keys(self) -> set[str]:
        convs = {workload.key for workload in self.workloads.values() if workload is not None}
        return convs | {branch.key for branch in self.branches}

    def __str__(self) -> str:
        entries = sum(workload is not None for workload in self.workloads.values())
        return (
            f"{entries} entries, {self.distinct_workloads} distinct workloads measured; whole network "
            f"{self.original_ms:.2f} ms, fixed cost {self.fixed_ms:.2f} ms, rows scaled by {self.scale:.3f}"
        )


@checked(TableError)
def measure_latency(
    plan: Plan,
    *,
    trace: Trace,
    runtime: str | Runtime = "torch",
    batch_size: Count = 1,
    threads: Count = 1,
    path: FilePath = "latency.jsonl",
    clock: ClockSettings | None = None,
) -> LatencyTable:
    """Measures a plan's latency table, or goes on with it where an earlier run stopped.

    `runtime` is a name, run with `threads`, or a runtime with settings of its own (device, dtype, layout). Costs about a
    second for each distinct workload, plus one export of the whole network.
    """
    chosen = make_runtime(runtime, RuntimeSettings(threads=threads))
    plan.require_network(trace.structure)
    inputs = trace.inputs.resized(batch_size)
    untouched = cache(lambda: merge(rewrite(trace, [])))
    make = branch_maker(trace, untouched)

    def branch_pass(branch: Branch) -> Pass:
        return chosen.prepare(make(branch), branch.inputs(batch_size), small=True)

    workloads, branches = workloads_of(trace, plan), branches_of(trace)
    job = LatencyJob(plan, workloads, plan.network, lambda: chosen.prepare(untouched(), inputs), branches, branch_pass)
    return job.run(chosen, batch_size, path, Clocks.alike(clock) if clock else None)


@dataclass(frozen=True)
class LatencyJob:
    """What has to be measured, without the model itself: `whole` builds a pass of the untouched network, `branch` of a part."""

    plan: Plan
    workloads: Mapping[str, Workload | None]
    network: str
    whole: Callable[[], Pass]
    branches: tuple[Branch, ...] = ()
    branch: Callable[[Branch], Pass] | None = None

    def run(self, runtime: Runtime, batch: int, path: str | Path, clocks: Clocks | None = None) -> LatencyTable:
        """Measures what the table lacks, with the runtime's own clocks unless others are given."""
        # The weights and inputs of what is timed are random numbers; those of whoever called stay what they were.
        with torch.random.fork_rng(devices=()):
            table = self._filled(runtime, batch, path, clocks or runtime.clocks)
            return LatencyTable(self.plan, self.workloads, table, self.branches)

    def _filled(self, runtime: Runtime, batch: int, path: str | Path, clocks: Clocks) -> Table:
        distinct = {workload.key: workload for workload in self.workloads.values() if workload is not None}
        provenance: dict[str, Scalar] = {"kind": "latency", "network": self.network, "batch": batch, "timing": _TIMING}
        provenance |= runtime.describe()
        title = f"latency on {runtime.name}"
        whole = cache(self.whole)

        def measure_first(_key: str) -> Row:
            return _timed(lambda: measure_whole(runtime, whole(), clocks.whole))

        # Without it no row means anything: a failure is not recorded, so that a repaired file is measured again.
        first = fill_table(path, provenance, [WHOLE], measure_first, title=title, keep_failures=False)

        @cache
        def stopwatch() -> WorkloadClock:
            between = cache_pressure(_weight_bytes(self.plan))
            return WorkloadClock(runtime, batch, clocks, _needed_by_every_row(whole), _whole_ms(first), between)

        branches = {branch.key: branch for branch in self.branches}

        def measure(key: str) -> Row:
            if key in distinct:
                return _timed(lambda: stopwatch().measure(distinct[key]))
            return _timed(lambda: self._measure_branch(stopwatch(), branches[key]))

        return fill_table(path, provenance, [WHOLE, *distinct, *branches], measure, title=title)

    def _measure_branch(self, clock: WorkloadClock, branch: Branch) -> Row:
        assert self.branch is not None, "a job with branches says how to build them"
        return clock.measure_sandwich(branch.key, self.branch(branch), [branch.map_shape] * 2)


def _charged(rests: Mapping[Branch, float], candidate: Candidate) -> float:
    """What the candidate leaves running beside its own work: the rest of every branch that begins in it and stays."""
    return sum(rest for branch, rest in rests.items() if branch.kept_by(candidate))


def _needed_by_every_row(whole: Callable[[], Pass]) -> Pass:
    """A whole network that cannot be built any more fails every row alike: it ends the run."""
    try:
        return whole()
    except LayerMergeError:
        raise
    except Exception as error:
        if machine_failed(error):
            raise
        raise TableError(f"'{WHOLE}' could not be measured: {reason_of(error)}") from error


def _timed(measure: Callable[[], Row]) -> Row:
    """The row, with what it cost to measure."""
    started = time.perf_counter()
    return measure().model_copy(update={"seconds": round(time.perf_counter() - started, 2)})


def _weight_bytes(plan: Plan) -> int:
    """How much the network reads beside its feature maps; four bytes a weight."""
    return 4 * sum(layer.spec.weights for layer in plan.layers)


def _whole_ms(table: Table) -> float:
    """Everything is in proportion to it, so it is above zero."""
    found = _value(table, WHOLE)
    if found == 0:
        raise TableError(f"{table.name}: value of '{WHOLE}' is 0; remove its line to measure it again")
    return found


def _value(table: Table, key: str) -> float:
    row = table[key]
    if row.value is None:
        raise TableError(f"{table.name}: '{key}' has no latency ({row.reason}); remove its line to measure it again")
    if not 0 <= row.value <= _LONGEST_MS:
        raise TableError(
            f"{table.name}: value of '{key}' is {row.value:g}, which is no latency; remove its line to measure it again"
        )
    return row.value
