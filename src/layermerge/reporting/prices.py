"""Prices: what layers take, and what each candidate saves and changes, from a plan and the tables that there are of it."""

from __future__ import annotations

from functools import cached_property

from layermerge.planning.candidate import Candidate
from layermerge.planning.plan import Plan
from layermerge.reporting.candidate_words import candidate_words
from layermerge.reporting.fact_records import CandidateFacts, LayerFacts, Places
from layermerge.tables.latency import LatencyTable
from layermerge.tables.table import Table
from layermerge.tables.workload_clock import WHOLE


class Prices:
    """Where a table is missing or not finished, what it would say is None."""

    def __init__(self, plan: Plan, latency: LatencyTable | None, importance: Table | None) -> None:
        self.plan, self.latency, self.importance = plan, latency, importance

    @property
    def whole_ms(self) -> float | None:
        row = self.latency.table.rows.get(WHOLE) if self.latency else None
        return row.value if row else None

    @cached_property
    def fixed_ms(self) -> float | None:
        return self.latency.fixed_ms if self.latency and self.all_timed else None

    def lacking_workloads(self, menu: Plan) -> int:
        """How many workloads the latency table still lacks; the whole network is one of them."""
        if self.latency is None:
            return len(menu.entries)
        workloads = {workload.key for entry in menu.entries if (workload := self.latency.workloads[entry.key])}
        branches = {branch.key for branch in self.latency.branches}
        return sum(key not in self.latency.table for key in {WHOLE, *workloads, *branches})

    @cached_property
    def all_timed(self) -> bool:
        return not self.lacking_workloads(self.plan)

    def layer(self, place: int) -> LayerFacts:
        kept, dropped = self.plan.single(place, kept=True), self.plan.single(place, kept=False)
        fixed = bool(kept and kept.fixed)
        latency_ms = self.latency_of(kept) if kept and not fixed else None
        return LayerFacts(self.plan.layers[place], dropped is not None, fixed, latency_ms)

    def candidate(self, candidate: Candidate) -> CandidateFacts:
        row = self.importance.rows.get(candidate.key) if self.importance else None
        change = row.value if row else None if candidate.changes else 0.0
        words, latency_ms = candidate_words(candidate), self.latency_of(candidate)
        saved_ms = self._saved(candidate, latency_ms)
        return CandidateFacts(candidate.key, candidate, _kept_places(candidate), words, latency_ms, saved_ms, change)

    def _saved(self, candidate: Candidate, latency_ms: float | None) -> float | None:
        """None where one of its layers was not timed by itself."""
        singles = [self.plan.single(place, kept=True) for place in range(candidate.start, candidate.end)]
        taken = [self.latency_of(single) if single else None for single in singles]
        known = [each for each in taken if each is not None]
        return None if latency_ms is None or len(known) < len(taken) else sum(known) - latency_ms

    def latency_of(self, candidate: Candidate) -> float | None:
        """On the scale of the whole network, which needs all single layers; before these are there, as measured."""
        if self.latency is None:
            return None
        if self.all_timed:
            return self.latency.of(candidate)
        workload = self.latency.workloads[candidate.key]
        if candidate.fixed or workload is None:
            return 0.0
        row = self.latency.table.rows.get(workload.key)
        return row.value if row and row.status == "ok" else None


def _kept_places(candidate: Candidate) -> Places:
    return tuple(place for place, name in enumerate(candidate.layers, candidate.start) if name in candidate.kept)
