"""Latency: what each candidate will cost on the runtime that serves the network.

In: a `Plan` and the rows of a table. Out: a `LatencyTable`: milliseconds by candidate, and how far they may be off.
Rows of a workload are pooled and brought to what it takes within a network (`estimates`). What a residual branch computes
besides its convs (a gate, attention) is charged to the candidates that keep the branch. What no candidate covers (pooling,
the classifier) is the fixed cost: the whole network minus its single layers. Where the runtime does not report what they take
in the network, and they sum to more than the whole, rows are scaled.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from layermerge.arguments import checked
from layermerge.errors import TableError
from layermerge.planning.candidate import Candidate
from layermerge.planning.plan import Plan
from layermerge.tables.branches import Branch
from layermerge.tables.estimates import Corrected, Network, Observations
from layermerge.tables.table import Row, Table
from layermerge.tables.workload_clock import WHOLE
from layermerge.tables.workloads import Workload

_LONGEST_MS = 1e9
"""No pass takes days: what is beyond was not measured."""
_CONTEXT = 0.02
"""How far layers that two networks share take less or more in one of them, relative to the whole (one standard deviation)."""
_ROUNDING = 1e-12
_INTERVAL = 2.0
"""Standard deviations on either side: 95 %."""


@dataclass(frozen=True)
class Prediction:
    """A sum of rows, and how far it may be off: in 95 % of cases by less."""

    ms: float
    error_ms: float

    def __str__(self) -> str:
        return f"{self.ms:.3f} ± {self.error_ms:.3f}"


@dataclass(frozen=True)
class LatencyTable:
    """Milliseconds by candidate, the whole network's, and the cost that no candidate covers."""

    plan: Plan
    workloads: Mapping[str, Workload | None]
    table: Table
    branches: tuple[Branch, ...] = ()
    """Outer ones before those inside them."""

    @property
    def fresh(self) -> LatencyTable:
        """The table as it was before anything was chosen by it: importance and choices that rest on it stay what they are."""
        return replace(self, table=self.table.restricted(lambda row: row.loop is None))

    @cached_property
    def original_ms(self) -> float:
        """The untouched network, norms folded, measured whole."""
        return whole_ms(self.table)

    @cached_property
    def _singles(self) -> list[Candidate]:
        return [candidate for candidate in self.plan.candidates if candidate.untouched and not candidate.fixed]

    @cached_property
    def _observed(self) -> Observations:
        distinct = {workload.key: workload for workload in self.workloads.values() if workload is not None}
        alone: dict[str, list[Row]] = {}
        within: dict[str, list[Row]] = {}
        for row in self.table.rows.values():
            key = row.of or row.key
            if key in distinct and row.status == "ok":
                _value(self.table, row.key)
                (within if row.in_network else alone).setdefault(key, []).append(row)
        layers = [workload.key for single in self._singles if (workload := self.workloads[single.key])]
        return Observations(distinct, alone, within, layers)

    # -- rows as they were measured

    def _alone(self, candidate: Candidate) -> float:
        workload = self.workloads[candidate.key]
        if workload is None:
            return 0.0
        if workload.key not in self._observed.alone:
            _value(self.table, workload.key)
        return self._observed.alone_ms(workload.key)

    @cached_property
    def _rests(self) -> dict[Branch, float]:
        """What each branch takes besides its convs and the branches inside it; none for a branch that could not be measured."""
        rests: dict[Branch, float] = {}
        for branch in reversed(self.branches):
            if self.table[branch.key].status == "ok":
                inside = [single for single in self._singles if branch.start <= single.start < branch.end]
                convs = sum(self._alone(single) + _charged(rests, single) for single in inside)
                rests[branch] = max(0.0, _value(self.table, branch.key) - convs)
        return rests

    # -- within the network

    @cached_property
    def scale(self) -> float:
        """What a row by itself is multiplied by: what single layers take in the network, where the runtime reports it;
        otherwise below 1 where they sum to more than the whole.
        """
        alone_ms = sum(self._alone(single) + _charged(self._rests, single) for single in self._singles)
        if self._observed.told:
            return self._observed.ratio()
        return min(1.0, self.original_ms / alone_ms) if alone_ms else 1.0

    @cached_property
    def _corrected(self) -> Corrected:
        prior = self._observed.estimates(self.scale)
        merged = prior.keys() - set(self._observed.layers)
        plain = Corrected(prior, merged, ())
        fixed = self._fixed(plain)
        networks = []
        for taken_ms, chosen in self._whole_networks():
            missing = taken_ms - fixed - sum(self._estimate(plain, each) for each in chosen)
            # The rounding of a sum corrects nothing: rows that were equal stay equal, to the last bit.
            missing = missing if abs(missing) > _ROUNDING * taken_ms else 0.0
            networks.append(Network(self._different(chosen), taken_ms, missing))
        return Corrected(prior, merged, networks)

    def _whole_networks(self) -> list[tuple[float, list[Candidate]]]:
        """Merged networks that were measured: milliseconds, and what they are made of, where the plan offers it."""
        offered = {candidate.key: candidate for candidate in self.plan.candidates}
        rows = [row for row in self.table.rows.values() if row.parts and offered.keys() >= set(row.parts)]
        return [(_value(self.table, row.key), [offered[key] for key in row.parts]) for row in rows]

    def _estimate(self, estimates: Corrected, candidate: Candidate) -> float:
        workload = self.workloads[candidate.key]
        own = 0.0 if workload is None or candidate.fixed else estimates.of(workload.key)
        return own + _charged(self._rests, candidate) * self.scale

    def _fixed(self, estimates: Corrected) -> float:
        return max(0.0, self.original_ms - sum(self._estimate(estimates, single) for single in self._singles))

    def _counts(self, candidates: Iterable[Candidate]) -> Counter[str]:
        used = [self.workloads[candidate.key] for candidate in candidates if not candidate.fixed]
        return Counter(workload.key for workload in used if workload is not None)

    def _different(self, candidates: Iterable[Candidate]) -> dict[str, int]:
        """How many more of each workload than the untouched network has: what they share was measured with it.

        So is the fixed cost, which is what its single layers leave of it: a row that grows makes that less.
        """
        counts = self._counts(candidates)
        counts.subtract(self._counts(self._singles))
        return {key: number for key, number in counts.items() if number}

    @cached_property
    def fixed_ms(self) -> float:
        """What no candidate changes: the whole network less its single layers."""
        for single in self._singles:
            self._alone(single)  # says which of them could not be measured
        return self._fixed(self._corrected)

    @checked(TableError)
    def of(self, candidate: Candidate) -> float | None:
        """The candidate's latency; None where it could not be measured or was bounded, which takes it off the menu."""
        workload = self._workload(candidate)
        if candidate.fixed:
            return 0.0
        if workload is not None and not self._measured(workload.key):
            return None
        return self._estimate(self._corrected, candidate)

    @checked(TableError)
    def why_off(self, candidate: Candidate) -> str | None:
        """Why the candidate is off the menu; None where it is on it."""
        workload = self._workload(candidate)
        if candidate.fixed or workload is None or self._measured(workload.key):
            return None
        return self.table[workload.key].reason if self.bounds(candidate) else "its latency could not be measured"

    def bounds(self, candidate: Candidate) -> bool:
        """Whether all that is known of the candidate is that it is slower than the layers that it stands for."""
        workload = None if candidate.fixed else self._workload(candidate)
        return workload is not None and self._only_bounded(workload.key)

    def _only_bounded(self, key: str) -> bool:
        return not self._measured(key) and self.table[key].status == "slower"

    def _measured(self, key: str) -> bool:
        return key in self._observed.alone or self.table[key].status == "ok"

    @checked(TableError)
    def spread_of(self, candidate: Candidate) -> float:
        """How far the candidate's measurements scattered, in milliseconds."""
        workload = self._workload(candidate)
        return 0.0 if candidate.fixed or workload is None else self.table[workload.key].spread * self.scale

    def predict(self, candidates: Iterable[Candidate]) -> Prediction:
        """The latency of the network that these candidates make, all layers covered."""
        chosen = list(candidates)
        ms = self.fixed_ms + sum(self._estimate(self._corrected, candidate) for candidate in chosen)
        different = self._different(chosen)
        error_ms = math.hypot(self._corrected.error_ms(different), _CONTEXT * ms) if different else 0.0
        return Prediction(ms, _INTERVAL * error_ms)

    @property
    def original(self) -> Prediction:
        """The whole network as it was measured."""
        return Prediction(self.original_ms, self.table[WHOLE].spread)

    def networks(self) -> list[tuple[Prediction, float]]:
        """Every merged network that was measured: what the table says of it without having seen any, and what it took."""
        rows = [
            row for row in self.table.rows.values() if row.parts and all(key in self.workloads for key in row.parts)
        ]
        return [(self.fresh.predict(map(self.plan.__getitem__, row.parts)), row.value or 0.0) for row in rows]

    def measured_whole(self, candidates: Iterable[Candidate]) -> float | None:
        """What the network of these candidates took when it was last measured; None where it never was."""
        parts = tuple(candidate.key for candidate in candidates)
        return next((row.value for row in reversed(self.table.rows.values()) if row.parts == parts), None)

    def _workload(self, candidate: Candidate) -> Workload | None:
        if candidate not in self.plan:
            raise TableError(f"candidate {candidate.key} is not of the plan that {self.table.name} was measured for")
        return self.workloads[candidate.key]

    # -- what it cost

    @property
    def distinct_workloads(self) -> int:
        return len(self._workload_keys)

    @property
    def bounded(self) -> int:
        """Workloads that one pass or less showed to be too slow."""
        return sum(map(self._only_bounded, self._workload_keys))

    @property
    def seconds(self) -> float:
        """What measuring this plan's workloads cost."""
        keys = self._workload_keys
        return sum(row.seconds for row in self.table.rows.values() if row.loop is None and (row.of or row.key) in keys)

    @cached_property
    def _workload_keys(self) -> set[str]:
        convs = {workload.key for workload in self.workloads.values() if workload is not None}
        return convs | {branch.key for branch in self.branches}

    def __str__(self) -> str:
        entries = sum(workload is not None for workload in self.workloads.values())
        bounded = f" ({self.bounded} of them only bounded)" if self.bounded else ""
        return (
            f"{entries} entries, {self.distinct_workloads} distinct workloads measured{bounded}; whole network "
            f"{self.original} ms, fixed cost {self.fixed_ms:.2f} ms, rows scaled by {self.scale:.3f}"
        )


def _charged(rests: Mapping[Branch, float], candidate: Candidate) -> float:
    """What the candidate leaves running besides its own work: the rest of every branch that begins in it and stays."""
    return sum(rest for branch, rest in rests.items() if branch.kept_by(candidate))


def whole_ms(table: Table) -> float:
    """Everything is in proportion to it, so it is above zero."""
    found = _value(table, WHOLE)
    if found == 0:
        raise TableError(f"{table.name}: value of '{WHOLE}' is 0; remove its line to measure it again")
    return found


def _value(table: Table, key: str) -> float:
    row = table[key]
    if row.value is None or row.status != "ok":
        raise TableError(f"{table.name}: '{key}' has no latency ({row.reason}); remove its line to measure it again")
    if not 0 <= row.value <= _LONGEST_MS:
        raise TableError(
            f"{table.name}: value of '{key}' is {row.value:g}, which is not a latency; remove its line to measure it again"
        )
    return row.value
