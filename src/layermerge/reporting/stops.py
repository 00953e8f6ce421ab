"""Stops: what a method offers budget by budget, for sliders, tables and charts.

In: a method's frontier and choices, and the results that these led to. Out: stops at every whole per cent of the original's
latency within reach, and at every budget that was chosen for. The only place that says which latency a budget is shown with:
that of the exported file where there is a result, else what was measured when it was chosen, else what is predicted.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Sequence

from layermerge.reporting.fact_records import ChoiceFacts, Places, PointFacts, ResultFacts, StopFacts
from layermerge.reporting.stop_words import Described

Describe = Callable[[Places], Described]


def stops_of(
    frontier: Sequence[PointFacts],
    choices: Sequence[ChoiceFacts],
    results: Sequence[ResultFacts],
    original_ms: float,
    describe: Describe,
    command: Callable[[str], str],
) -> tuple[StopFacts, ...]:
    """All stops, the smallest budget first."""
    stops = [_chosen(choice, results, describe, command) for choice in choices if choice.candidates]
    latencies = [each.point.latency_ms for each in frontier]
    for number in range(math.ceil(100 * latencies[0] / original_ms - 1e-9), 101) if latencies else ():
        budget_ms = original_ms * number / 100
        if any(math.isclose(stop.budget_ms, budget_ms, rel_tol=1e-9) for stop in stops):
            continue
        best = frontier[max(0, bisect_right(latencies, budget_ms * (1 + 1e-12)) - 1)]
        point, budget = best.point, f"{number}%"
        stops.append(
            StopFacts(
                budget, budget_ms, point.latency_ms, False, best.candidates, point.importance, *describe(best.candidates),
                None, best.estimated, command(budget),
            )
        )  # fmt: skip
    return tuple(sorted(stops, key=lambda stop: stop.budget_ms))


def _chosen(
    facts: ChoiceFacts, results: Sequence[ResultFacts], describe: Describe, command: Callable[[str], str]
) -> StopFacts:
    choice, solution = facts.choice, facts.choice.solution
    place = _result_of(facts, results)
    taken = solution.measured_ms if place is None else results[place].report.measured_ms
    latency_ms = solution.latency_ms if taken is None else taken
    return StopFacts(
        choice.budget, solution.budget_ms or 0.0, latency_ms, taken is not None, facts.candidates, solution.importance,
        *describe(facts.candidates), place, None, command(choice.budget),
    )  # fmt: skip


def _result_of(facts: ChoiceFacts, results: Sequence[ResultFacts]) -> int | None:
    """Of several ways of fine-tuning, the one that held-out data prefer: test data only report."""
    own = [
        place
        for place, result in enumerate(results)
        if (result.report.method, result.report.budget) == (facts.choice.method, facts.choice.budget)
    ]
    return max(own, key=lambda place: results[place].report.held_out, default=None)
