"""Bounds: workloads that no solution would use, known after one pass.

A merge competes with its own range wholly untouched, whose change in score is 0. Where that scores at least as much as the
merge ever could, a merge that takes longer is never chosen, and how much longer does not matter: its row is a lower bound.
Bounds rest only on rows that were measured before them: single layers first, then by ascending work, so that of a range the
smaller kernels come before the larger ones.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Literal

from layermerge.planning.candidate import Candidate
from layermerge.planning.plan import Plan
from layermerge.tables.table import Row, Table
from layermerge.tables.workloads import Workload

Objective = Literal["exp", "delta"]
EstimatorName = Literal["trained", "calibrated"]


def usual_objective(estimator: EstimatorName) -> Objective:
    """The paper's for its own estimator; divergences from the original are summed as they are."""
    return "exp" if estimator == "trained" else "delta"


MARGIN_OF_ONE = 4.0
"""A first pass, cold, is a bound where it takes this many times as long as the untouched range."""
MARGIN_OF_TWO = 1.5
"""The smaller of two warm passes; also a smaller kernel on the same map."""


@dataclass(frozen=True)
class Stakes:
    """What a merge could earn: the objective, and the most that any change can raise the score."""

    objective: Objective = "exp"
    largest_gain: float = 1.0
    """Scores that are shares, or losses in units of the pretrained network's, cannot rise by more."""

    def untouched_wins(self, candidate: Candidate) -> bool:
        """Whether the candidate's layers, left as they are, score at least as much as it could."""
        if candidate.free and not candidate.replaced:
            return True
        if self.objective == "delta" or candidate.free:
            return self.largest_gain <= 0
        return len(candidate.layers) >= math.exp(self.largest_gain)


def largest_gain(ceiling: float) -> float:
    """The most that a score can rise to this ceiling: shares begin at 0, losses in units of the pretrained network at -1."""
    return 1.0 if 0 <= ceiling <= 1 else math.inf


def untouched_of(plan: Plan, workloads: Mapping[str, Workload | None]) -> list[Workload]:
    """The workloads of single layers as they are."""
    found = (workloads.get(candidate.key) for candidate in plan.candidates if candidate.untouched)
    return [workload for workload in found if workload is not None]


def in_order(plan: Plan, workloads: Mapping[str, Workload | None]) -> list[Workload]:
    """Every distinct workload: those of single layers as they are, then the others by their work."""
    untouched = {workload.key: workload for workload in untouched_of(plan, workloads)}
    distinct = {workload.key: workload for workload in workloads.values() if workload is not None}
    others = [workload for key, workload in distinct.items() if key not in untouched]
    return [*untouched.values(), *sorted(others, key=lambda one: one.work)]


def _key(workloads: Mapping[str, Workload | None], candidate: Candidate) -> str | None:
    workload = workloads.get(candidate.key)
    return workload.key if workload else None


def limits(
    plan: Plan,
    workloads: Mapping[str, Workload | None],
    stakes: Stakes,
    untouched_ms: Callable[[Candidate], float | None],
) -> dict[str, float]:
    """By workload, the longest that any of its candidates takes untouched; infinite where one has to be measured anyway."""
    found: dict[str, float] = {}
    for candidate in plan.candidates:
        if (key := _key(workloads, candidate)) is not None:
            found[key] = max(found.get(key, 0.0), _limit(plan, candidate, stakes, untouched_ms))
    return found


def _limit(
    plan: Plan, candidate: Candidate, stakes: Stakes, untouched_ms: Callable[[Candidate], float | None]
) -> float:
    single = candidate.end - candidate.start == 1
    if not plan.rules.rule_out_slow or candidate.spec is None or single or not stakes.untouched_wins(candidate):
        return math.inf
    parts = [plan.single(index, kept=True) for index in range(candidate.start, candidate.end)]
    taken = [None if part is None or part.fixed else untouched_ms(part) for part in parts]
    known = [one for one in taken if one is not None]
    return sum(known) if len(known) == len(parts) else math.inf


def slower(key: str, taken_ms: float, limit_ms: float) -> Row:
    """A row that is a bound."""
    reason = f"one pass takes {taken_ms:.3f} ms, the layers that it stands for {limit_ms:.3f} ms"
    return Row(key=key, status="slower", value=taken_ms, samples=1, reason=reason)


def bounded_by_sibling(workload: Workload, limit_ms: float, rows: Iterable[tuple[Workload, Row]]) -> Row | None:
    """The bound that a smaller kernel on the same map gives, if any: a larger one takes no less."""
    for other, row in rows:
        if row.value is not None and row.value > MARGIN_OF_TWO * limit_ms and _smaller(other, workload):
            reason = f"a smaller kernel takes {row.value:.3f} ms, the layers that it stands for {limit_ms:.3f} ms"
            return Row(key=workload.key, status="slower", value=row.value, reason=reason)
    return None


def _smaller(one: Workload, other: Workload) -> bool:
    """Whether the two differ in nothing but a kernel that is smaller on both sides, and so in padding."""
    if one.spec is None or other.spec is None or (one.input_shape, one.follow) != (other.input_shape, other.follow):
        return False
    alike = replace(one.spec, kernel=other.spec.kernel, padding=other.spec.padding) == other.spec
    return alike and all(mine <= theirs for mine, theirs in zip(one.spec.kernel, other.spec.kernel, strict=True))


def unfounded(table: Table, found: Mapping[str, float]) -> list[str]:
    """Workloads whose bound no longer holds: other stakes, or rows of single layers that were corrected since."""
    rows = ((key, table.rows[key]) for key in found if key in table)
    return [key for key, row in rows if row.status == "slower" and (row.value or 0.0) <= MARGIN_OF_TWO * found[key]]
