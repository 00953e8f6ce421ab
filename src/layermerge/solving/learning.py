"""Learning: choices by a latency table that gets better with each of them.

In: a plan, its latency table, scores, and a bench on which workloads are timed and merged networks built. It answers as a
frontier does, and whatever it measures on the way is added to the table, with its round.
A solver picks rows that came out too small. So the rows of a choice are timed again and pooled, and the choice is made again,
until it stays; its prediction rests on samples that took no part in choosing. When its merged network is built, what the
runtime tells of it, and its latency as a whole, correct the rows, so that the next choice, and another budget, profit.
A loop that was interrupted continues where it stopped: it finds its rows in the table, and makes the same choices by them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from statistics import median

import torch
from torch import nn

from layermerge.files import document_digest
from layermerge.planning.candidate import Candidate
from layermerge.planning.plan import Plan
from layermerge.runtimes.base import Pass, Runtime
from layermerge.runtimes.clock import Clocks, cache_pressure
from layermerge.solving.frontier import Frontier, Solution
from layermerge.solving.side_by_side import windows_beside
from layermerge.solving.solve import Scores, solve
from layermerge.tables.bounds import Objective
from layermerge.tables.latency import LatencyTable, Prediction
from layermerge.tables.measuring import told_rows
from layermerge.tables.runner import fill_table
from layermerge.tables.table import Row, Table
from layermerge.tables.workload_clock import WorkloadClock
from layermerge.tables.workloads import Workload
from layermerge.tracing.inputs import Inputs

_MOST_CHOICES = 4
"""A choice that does not stay the same by then is one of several that are as good."""


@dataclass(frozen=True)
class Bench:
    """Where workloads are timed and merged networks are built."""

    runtime: Runtime
    inputs: Inputs
    originals: Callable[[], Sequence[Pass]]
    """Passes of the untouched network, always the same, each of a copy of its own."""
    merged: Callable[[Sequence[Candidate]], nn.Module]
    clocks: Clocks


@dataclass(frozen=True)
class Measured:
    """A merged network's latency, and how much longer some window says that it takes."""

    ms: float
    more_ms: float = 0.0


class Learning:
    """Answers as a frontier does. `loop` names what it is for, in the table."""

    def __init__(
        self, loop: str, plan: Plan, latency: LatencyTable, scores: Scores, objective: Objective, bench: Bench
    ) -> None:
        self.loop, self.plan, self.scores, self.objective, self.bench = loop, plan, scores, objective, bench
        self.path, self.provenance = latency.table.path, latency.table.provenance
        # What it measured before it was interrupted comes back where it is asked for again.
        self.latency = replace(latency, table=latency.table.restricted(lambda row: row.loop != loop))
        self.round = 0

    # -- as a frontier

    @property
    def original_ms(self) -> float:
        return self.latency.original_ms

    @property
    def smallest_ms(self) -> float:
        return self.frontier.smallest_ms

    @property
    def highest_importance(self) -> float:
        return self.frontier.highest_importance

    @cached_property
    def frontier(self) -> Frontier:
        """By what is known so far."""
        return solve(self.plan, self.latency, self.scores, objective=self.objective)

    def within(self, allowed: float) -> Solution:
        """The best choice, its rows timed again until it stays the same."""
        solution = self._best(allowed)
        for _ in range(_MOST_CHOICES):
            if not (untimed := [one for one in self._uncertain(solution) if not self._timed_anew(one)]):
                break
            self._time_anew(untimed)
            solution = self._best(allowed)
        return solution

    def _best(self, allowed: float) -> Solution:
        return self.frontier.within(max(allowed, self.smallest_ms))

    def predict(self, solution: Solution) -> Prediction:
        return self.latency.predict(solution.candidates)

    def predict_afresh(self, solution: Solution) -> Prediction:
        """By samples that took no part in choosing it."""
        uncertain = {workload.key: workload for workload in self._uncertain(solution)}
        added = {row.key for row in self._time_anew(uncertain.values())}
        fresh = self.latency.table.restricted(
            lambda row: row.key in added or row.in_network or (row.of or row.key) not in uncertain
        )
        return replace(self.latency, table=fresh).predict(solution.candidates)

    # -- what it learns

    def measure(self, solution: Solution) -> Measured:
        """Builds the merged network and measures it alongside the original; what that shows goes into the table."""
        self.round += 1
        owners, chosen = self._owners(solution), [candidate.key for candidate in solution.candidates]
        network = self._name(f"network {document_digest(chosen)}")
        told = {key: f"{network}, {key}" for key in owners}
        found = self._stored(network, told.values()) or self._build(solution, owners)
        named = {told.get(row.of or "", network): row for row in found}
        mark = {"round": self.round, "loop": self.loop}
        rows = {name: row.model_copy(update={"key": name, **mark}) for name, row in named.items()}
        # The whole network's comes last: where it is there, so are the others.
        self._add(sorted(rows, key=lambda name: name == network), rows.__getitem__)
        return Measured(rows[network].value or 0.0, rows[network].spread)

    def _stored(self, network: str, told: Iterable[str]) -> list[Row]:
        """The rows of this round, where it was measured before."""
        known = Table.read(self.path).rows if self.path is not None else {}
        return [known[name] for name in (*told, network) if name in known] if network in known else []

    def _build(self, solution: Solution, owners: dict[str, list[str]]) -> list[Row]:
        bench = self.bench
        count, network = bench.runtime.copies, bench.merged(solution.candidates)
        built = bench.runtime.copies_of(network, bench.inputs, passes=count, recordings=count)
        originals, clock = bench.originals(), bench.clocks.whole
        windows = windows_beside(bench.runtime, originals, built.passes, self.original_ms, clock)
        taken_ms = median(windows)
        told = {}
        if built.recordings:
            told = told_rows(bench.runtime, built.recordings, owners, taken_ms, clock, originals[0])
        parts = tuple(candidate.key for candidate in solution.candidates)
        return [*told.values(), Row(key=self.loop, value=taken_ms, spread=max(windows) - taken_ms, parts=parts)]

    def _owners(self, solution: Solution) -> dict[str, list[str]]:
        """The modules of the merged network's convs, by workload; each is called after the last conv kept in it."""
        found: dict[str, list[str]] = {}
        for candidate in solution.candidates:
            workload = self.latency.workloads[candidate.key]
            if workload is not None and candidate.kept and not candidate.fixed:
                found.setdefault(workload.key, []).append(candidate.kept[-1])
        return found

    def _uncertain(self, solution: Solution) -> list[Workload]:
        """The workloads of a choice that no network has shown yet."""
        told = {row.of for row in self.latency.table.rows.values() if row.in_network}
        used = [self.latency.workloads[candidate.key] for candidate in solution.candidates if not candidate.fixed]
        distinct = {workload.key: workload for workload in used if workload is not None and workload.key not in told}
        return list(distinct.values())

    def _timed_anew(self, workload: Workload) -> bool:
        rows = self.latency.table.rows.values()
        return any(row.loop == self.loop and row.of == workload.key and not row.in_network for row in rows)

    def _time_anew(self, workloads: Iterable[Workload]) -> list[Row]:
        self.round += 1
        named = {self._name(workload.key): workload for workload in workloads}

        def measure(name: str) -> Row:
            row = self._clock.measure(named[name])
            return row.model_copy(update={"key": name, "of": named[name].key, "round": self.round, "loop": self.loop})

        return self._add(list(named), measure)

    def _name(self, what: str) -> str:
        return f"{self.loop}, round {self.round}: {what}"

    @cached_property
    def _clock(self) -> WorkloadClock:
        bench = self.bench
        between = cache_pressure(4 * sum(layer.spec.weights for layer in self.plan.layers))
        return WorkloadClock(
            bench.runtime, bench.inputs.batch, bench.clocks, bench.originals()[0], self.latency.original_ms, between
        )

    def _add(self, keys: Sequence[str], measure: Callable[[str], Row]) -> list[Row]:
        """Rows that the table lacks are measured; a table without a file learns all the same."""
        if not keys:
            return []
        with torch.random.fork_rng(devices=()):
            if self.path is None:
                rows = {key: measure(key) for key in keys}
            else:
                rows = fill_table(self.path, self.provenance, keys, measure, title="confirming the choice").rows
        added = [rows[key] for key in keys]
        table = self.latency.table.restricted(lambda _row: True)
        table.rows.update({row.key: row for row in added})
        self.latency = replace(self.latency, table=table)
        vars(self).pop("frontier", None)
        return added
