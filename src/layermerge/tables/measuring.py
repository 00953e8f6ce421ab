"""Measuring: fills a latency table, on the machine that it is run on; durable and resumable.

Each distinct workload is timed once, in the runtime, at the network's true resolution and in proportion to the whole network,
which comes first. Then what the runtime reports about it, layer by layer; single layers; and what merges to more, in an order
in which the slow ones are known by what came before them (`bounds`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from statistics import fmean, stdev

import numpy as np
import torch

from layermerge.arguments import Count, FilePath, checked
from layermerge.errors import LayerMergeError, TableError, machine_failed
from layermerge.planning.candidate import Candidate
from layermerge.planning.plan import Plan
from layermerge.runtimes.base import Pass, Runtime, RuntimeSettings
from layermerge.runtimes.clock import Clocks, ClockSettings, cache_pressure
from layermerge.runtimes.recording import Operator, Recording
from layermerge.runtimes.registry import make_runtime
from layermerge.surgery.merge import merge
from layermerge.surgery.rewrite import rewrite
from layermerge.tables.bounds import (
    Objective,
    Stakes,
    bounded_by_sibling,
    in_order,
    limits,
    unfounded,
    untouched_of,
)
from layermerge.tables.branches import Branch, branch_maker, branches_of
from layermerge.tables.executors import reason_of
from layermerge.tables.latency import LatencyTable, whole_ms
from layermerge.tables.runner import fill_table
from layermerge.tables.table import Row, Scalar, Table
from layermerge.tables.workload_clock import WHOLE, WorkloadClock, measure_whole
from layermerge.tables.workloads import Workload, workloads_of
from layermerge.tracing.trace import Trace

_TIMING = 4
"""How workloads are timed; raised with every change to it, since rows that were timed otherwise do not mix."""


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
    objective: Objective = "exp",
    largest_gain: float = 1.0,
) -> LatencyTable:
    """Measures a plan's latency table, or continues it where an earlier run stopped.

    `runtime` is a name, run with `threads`, or a runtime with settings of its own (device, dtype, layout). Merges that are
    slower than the layers they replace are only bounded, unless they could score more: `objective` says what is summed, and
    no change raises the score by more than `largest_gain`. Costs about a fifth of a second for each distinct workload, plus
    an export of the whole network or two.
    """
    chosen = make_runtime(runtime, RuntimeSettings(threads=threads))
    plan.require_network(trace.structure)
    inputs = trace.inputs.resized(batch_size)
    untouched = cache(lambda: merge(rewrite(trace, [])))
    make = branch_maker(trace, untouched)
    built = cache(lambda: chosen.copies_of(untouched(), inputs, passes=1, recordings=chosen.copies))

    def branch_pass(branch: Branch) -> Pass:
        return chosen.prepare(make(branch), branch.inputs(batch_size), small=True)

    job = LatencyJob(
        plan,
        workloads_of(trace, plan),
        plan.network,
        lambda: built().passes[0],
        branches_of(trace, plan.rules),
        branch_pass,
        lambda: built().recordings,
        Stakes(objective, largest_gain),
    )
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
    recorded: Callable[[], Sequence[Recording]] = tuple
    """Copies of the untouched network in which each operator is timed, where the runtime reports it."""
    stakes: Stakes = field(default_factory=Stakes)

    def run(self, runtime: Runtime, batch: int, path: str | Path, clocks: Clocks | None = None) -> LatencyTable:
        """Measures what the table lacks, with the runtime's own clocks unless others are given."""
        # The weights and inputs of what is timed are random numbers; those of whoever called stay what they were.
        with torch.random.fork_rng(devices=()):
            table = _Filling(self, runtime, batch, Path(path), clocks or runtime.clocks).run()
            return LatencyTable(self.plan, self.workloads, table, self.branches)

    def provenance(self, runtime: Runtime, batch: int) -> dict[str, Scalar]:
        own: dict[str, Scalar] = {"kind": "latency", "network": self.network, "batch": batch, "timing": _TIMING}
        return own | runtime.describe()


@dataclass(frozen=True)
class _Filling:
    """One run over a table; `known` are the rows so far, which bounds rest on."""

    job: LatencyJob
    runtime: Runtime
    batch: int
    path: Path
    clocks: Clocks
    known: dict[str, Row] = field(default_factory=dict)

    def run(self) -> Table:
        job, whole = self.job, cache(self.job.whole)
        # Without it no row means anything: a failure is not recorded, so that a repaired file is measured again.
        table = self._fill([WHOLE], lambda _: measure_whole(self.runtime, whole(), self.clocks.whole), keep=False)

        @cache
        def clock() -> WorkloadClock:
            between = cache_pressure(_weight_bytes(job.plan))
            return WorkloadClock(
                self.runtime, self.batch, self.clocks, _needed_by_every_row(whole), whole_ms(table), between
            )

        table = self._in_network(table, whole)
        distinct = {workload.key: workload for workload in in_order(job.plan, job.workloads)}
        branches = {branch.key: branch for branch in job.branches}
        self.known.update(table.rows)

        single = {workload.key for workload in untouched_of(job.plan, job.workloads)}
        found = cache(self._limits)  # not before it is asked for: it rests on rows of single layers, which come first

        def measure(key: str) -> Row:
            if key in branches:
                return self._measure_branch(clock(), branches[key])
            limit_ms = float("inf") if key in single else found()[key]
            rows = ((distinct[one], row) for one, row in self.known.items() if one in distinct)
            return bounded_by_sibling(distinct[key], limit_ms, rows) or clock().measure(distinct[key], limit_ms)

        table = self._fill([*distinct, *branches], measure)
        again = {
            f"measured after all: {key}": key for key in unfounded(table, self._limits()) if not _again(table, key)
        }

        def measure_again(name: str) -> Row:
            row = clock().measure(distinct[again[name]])
            return row.model_copy(update={"key": name, "of": again[name]})

        return self._fill(list(again), measure_again) if again else table

    def _fill(self, keys: Sequence[str], measure: Callable[[str], Row], *, keep: bool = True) -> Table:
        def timed(key: str) -> Row:
            started = self.runtime.now()
            row = measure(key)
            self.known[key] = row.model_copy(update={"seconds": round(self.runtime.now() - started, 2)})
            return self.known[key]

        provenance, title = self.job.provenance(self.runtime, self.batch), f"latency on {self.runtime.name}"
        return fill_table(self.path, provenance, keys, timed, title=title, keep_failures=keep)

    def _limits(self) -> dict[str, float]:
        def untouched_ms(part: Candidate) -> float | None:
            workload = self.job.workloads.get(part.key)
            if workload is None:
                return 0.0
            row = self.known.get(in_network_key(workload.key)) or self.known.get(workload.key)
            return row.value if row is not None and row.status == "ok" else None

        return limits(self.job.plan, self.job.workloads, self.job.stakes, untouched_ms)

    def _in_network(self, table: Table, whole: Callable[[], Pass]) -> Table:
        """Rows of single layers as the runtime reports them for the untouched network."""
        wanted: dict[str, list[str]] = {}
        for single in self.job.plan.candidates:
            workload = self.job.workloads.get(single.key)
            if single.untouched and workload is not None:
                wanted.setdefault(workload.key, []).extend(single.layers)
        if all(in_network_key(key) in table for key in wanted):
            return table
        recordings = self.job.recorded()
        if not recordings:
            return table
        rows = told_rows(self.runtime, recordings, wanted, whole_ms(table), self.clocks.whole, whole())
        return self._fill(list(rows), lambda key: rows[key])

    def _measure_branch(self, clock: WorkloadClock, branch: Branch) -> Row:
        assert self.job.branch is not None, "a job with branches says how to build them"
        return clock.measure_sandwich(branch.key, self.job.branch(branch), [branch.map_shape] * 2)


def in_network_key(key: str) -> str:
    """Names the row of a workload that the runtime reported for the untouched network."""
    return f"in the network: {key}"


def told_rows(
    runtime: Runtime,
    recordings: Sequence[Recording],
    owners: Mapping[str, Sequence[str]],
    network_ms: float,
    clock: ClockSettings,
    original: Pass,
) -> dict[str, Row]:
    """What workloads take in a recorded network, by the modules of the convs that they are; in proportion to the whole.

    The mean of its copies, each recorded for its part of the time, in turn with the original: networks are measured next to it,
    and what it leaves in the caches counts. A workload whose conv the runtime does not name by itself has no row.
    """
    passes = []
    for number, recording in enumerate(recordings):
        with runtime.elsewhere(number):
            passes.append(_told(runtime, recording, clock.divided(len(recordings)), original))
    parts = [[_shares(each[part] or each, clock.quantile) for each in passes] for part in _HALVES]
    found = {}
    for key, modules in owners.items():
        if all(shares.keys() >= set(modules) for copies in parts for shares in copies):
            values = [[sum(map(shares.__getitem__, modules)) / len(modules) for shares in copies] for copies in parts]
            whole, even, odd = (fmean(each) * network_ms for each in values)
            between = stdev(values[0]) / math.sqrt(len(passes)) * network_ms if len(passes) > 1 else 0.0
            name, samples = in_network_key(key), sum(map(len, passes))
            spread = max(abs(even - odd), between)
            found[name] = Row(key=name, of=key, in_network=True, value=whole, spread=spread, samples=samples)
    return found


_HALVES = (slice(None), slice(0, None, 2), slice(1, None, 2))


def _told(runtime: Runtime, recording: Recording, clock: ClockSettings, original: Pass) -> list[Sequence[Operator]]:
    rounds = runtime.rounds({"original": original, "recorded": recording}, clock)
    told = recording.passes()[-len(rounds.times["recorded"]) :]
    # A first pass may prepare what later ones do not run again.
    return [operators for operators in told if len(operators) == len(told[-1])]


def _shares(passes: Sequence[Sequence[Operator]], quantile: float) -> dict[str, float]:
    """By conv, what it and what follows it take of the whole; each operator by itself is rid of what disturbed it."""
    taken = np.quantile([[operator.ms for operator in operators] for operators in passes], quantile, axis=0)
    found: dict[str, float] = {}
    for operator, ms in zip(passes[0], taken, strict=True):
        if operator.owner is not None:
            found[operator.owner] = found.get(operator.owner, 0.0) + float(ms / taken.sum())
    convs = {operator.owner for operator in passes[0] if operator.is_conv}
    return {owner: share for owner, share in found.items() if owner in convs}


def _again(table: Table, key: str) -> bool:
    return any(row.of == key and row.status == "ok" and not row.in_network for row in table.rows.values())


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


def _weight_bytes(plan: Plan) -> int:
    """How much the network reads besides its feature maps; four bytes per weight."""
    return 4 * sum(layer.spec.weights for layer in plan.layers)
