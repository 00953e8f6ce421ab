"""Solve: tables in, frontier out.

In: a `Plan`, its latency table, and how much each candidate changes the score (D). Out: the whole `Frontier`.
A candidate scores exp(D) where a conv is kept; a merge that loses nothing scores what its layers do. One that keeps none is
not a layer and earns no layer's credit: exp(D) - 1, or exp(D) where the method never merges. Divergences are summed in the unit
in which they add up, and checked against whole networks (`divergences`). Candidates whose row failed or was ruled out are
not on the menu.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache

from layermerge.arguments import checked
from layermerge.errors import TableError
from layermerge.planning.candidate import Candidate
from layermerge.planning.plan import Plan
from layermerge.solving.divergences import Losses, losses_of
from layermerge.solving.estimated_score import EstimatedScore, can_estimate, score_curve
from layermerge.solving.frontier import Frontier, build_frontier
from layermerge.solving.labels import LARGEST, Option
from layermerge.tables.bounds import Objective, usual_objective
from layermerge.tables.latency import LatencyTable
from layermerge.tables.table import Table

Scores = Table | Mapping[str, float]
"""The change D in the score by candidate key; candidates that change nothing may be absent."""


@checked(TableError)
def solve(
    plan: Plan,
    latency: LatencyTable,
    scores: Scores,
    *,
    objective: Objective | None = None,
    tick_ms: float | None = None,
) -> Frontier:
    """The best choice of candidates for every budget at once; exact, unless `tick_ms` rounds latencies up.

    Costs milliseconds on tables of the paper's size. `objective` is exp, as in the paper, or delta, which sums D itself; by
    default what the table of scores was estimated for. Warns if a merge that could be worth more than its layers was left out
    because its latency was only bounded.
    """
    _require_of_plan(plan, latency, scores)
    objective = objective or objective_of(scores)
    name = scores.name if isinstance(scores, Table) else "the scores"
    losses = losses_of(scores) if objective == "delta" and isinstance(scores, Table) and _calibrated(scores) else None
    options, left_out = [], 0
    for candidate in plan.candidates:
        milliseconds, change = latency.of(candidate), _change(candidate, scores)
        if objective == "exp" and change is not None and change > math.log(LARGEST):
            raise TableError(
                f"{name}: value of '{candidate.key}' is {change:g}, too large for a change of the score; measure it again"
            )
        if milliseconds is not None and change is not None:
            if losses is not None:
                score = -losses.alone.get(candidate.key, 0.0)
            else:
                score = change if objective == "delta" else _score(candidate, change, plan.method)
            options.append(Option(candidate.start, candidate.end, milliseconds, score, candidate.key))
        elif not _calibrated(scores) and (latency.bounds(candidate) or _unscored_bound(candidate, scores)):
            left_out += _could_win(candidate, change, objective)
    if left_out:
        warnings.warn(
            f"{left_out} merges are left out that might score more than their layers under '{objective}': all that is known "
            f"is that they are slower; to have them on the menu, measure both tables for objective '{objective}'",
            stacklevel=3,
        )
    frontier = build_frontier(
        options,
        {candidate.key: candidate for candidate in plan.candidates},
        len(plan.layers),
        original_ms=latency.original_ms,
        fixed_ms=latency.fixed_ms,
        tick_ms=tick_ms,
        pairs={pair: -term for pair, term in losses.neighbours.items()} if losses else None,
    )
    return replace(frontier, estimate=_estimate(scores, losses))


def _estimate(scores: Scores, losses: Losses | None) -> Callable[[float], EstimatedScore] | None:
    """What importance says of the score, where whole networks were scored."""
    if losses is None or not isinstance(scores, Table) or not can_estimate(scores):
        return None
    curve = cache(lambda: score_curve(scores, losses))
    return lambda importance: curve()(-importance)


def objective_of(scores: Scores) -> Objective:
    """Divergences from the original are summed as they are; other changes of the score as the paper does."""
    return usual_objective("calibrated" if _calibrated(scores) else "trained")


def _calibrated(scores: Scores) -> bool:
    """Whether they are divergences, of which none can be a gain."""
    return isinstance(scores, Table) and scores.provenance.get("estimator") == "calibrated"


def _require_of_plan(plan: Plan, latency: LatencyTable, scores: Scores) -> None:
    """Refuses tables of another network; plain numbers, which do not name their network, are checked by their keys."""
    if latency.plan.network != plan.network:
        raise TableError(
            "the latency table belongs to another network than the plan; measure it: measure_latency(plan, ...)"
        )
    if not isinstance(scores, Table):
        unknown = [key for key in scores if key not in {candidate.key for candidate in plan.candidates}]
        if unknown:
            raise TableError(f"the scores have '{unknown[0]}', which is not a candidate of the plan; leave it out")
    elif scores.provenance.get("kind", "importance") != "importance":
        raise TableError(
            f"{scores.name} is not an importance table; give what measure_importance(trace, plan, task) returns"
        )
    elif scores.provenance.get("network", plan.network) != plan.network:
        raise TableError(f"{scores.name} was measured for another network than the plan's; measure it again")


def _score(candidate: Candidate, change: float, method: str) -> float:
    if candidate.replaced == "gate" or (candidate.free and candidate.replaced):
        return len(candidate.layers) - 1 + math.exp(change)  # on the way of the data no layer is lost
    if candidate.free:
        return len(candidate.layers) * math.exp(change)
    no_layer = not candidate.kept and method != "layeronly"
    return math.exp(change) - (1.0 if no_layer else 0.0)


def _unscored_bound(candidate: Candidate, scores: Scores) -> bool:
    """Whether it has no score because its latency was only bounded at that time."""
    return isinstance(scores, Table) and candidate.key in scores and scores[candidate.key].status == "slower"


def _could_win(candidate: Candidate, change: float | None, objective: Objective) -> bool:
    """Whether a merge that is slower than its layers may score more than they do, which is what bounds rest on."""
    if candidate.free:
        return False
    if change is None:  # without a score, by the paper's objective
        return objective == "delta"
    return change > 0 if objective == "delta" else math.exp(change) > len(candidate.layers)


def _change(candidate: Candidate, scores: Scores) -> float | None:
    """D of a candidate; None where its row takes it off the menu."""
    if isinstance(scores, Table):
        if not candidate.changes and candidate.key not in scores:
            return 0.0
        row = scores[candidate.key]
        return row.value if row.status == "ok" else None
    if candidate.key in scores:
        return scores[candidate.key]
    if not candidate.changes:
        return 0.0
    raise TableError(f"the scores have no entry for '{candidate.key}'; measure it first")
