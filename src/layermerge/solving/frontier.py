"""Frontier: the best choice of candidates for every latency budget at once.

In: options with latency and score, the candidates they stand for, the original network's latency, and the fixed cost of what no
candidate covers. Out: a `Frontier`, from which `at(budget)` takes a `Solution`.
Guarantees: no other choice has a higher importance at the same latency or less (with a tick: none that is faster by more than
`slack_ms`); a solution's latency never exceeds the budget it was asked for; the untouched network meets "100%".
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

import numpy as np

from layermerge.arguments import checked
from layermerge.errors import BudgetError, InfeasibleBudget, OptionError
from layermerge.files import SCHEMA
from layermerge.planning.candidate import Candidate
from layermerge.solving.budget import Budget, Milliseconds, budget_ms
from layermerge.solving.estimated_score import EstimatedScore
from layermerge.solving.labels import Floats, Option, pareto, undominated
from layermerge.solving.pairs import PairedMenu, Pairs
from layermerge.tables.latency import Prediction


@dataclass(frozen=True, slots=True)
class Point:
    """A point of the frontier: this importance at this latency, fixed cost included."""

    latency_ms: float
    importance: float


@dataclass(frozen=True)
class Round:
    """One turn of the closed loop: what was predicted, and what the merged network then took."""

    predicted_ms: float
    measured_ms: float
    error_ms: float = 0.0
    """How far the prediction was thought to be off: in 95 % of cases by less."""


@dataclass(frozen=True)
class Solution:
    """The chosen candidates, first layer first.

    A solution from a frontier is predicted; once its merged network was built and measured, it holds that too.
    """

    candidates: tuple[Candidate, ...]
    latency_ms: float
    """Predicted: the sum of the table's rows, fixed cost included."""
    importance: float
    """The sum that was maximised within the budget."""
    measured_ms: float | None = None
    """The whole merged network's latency."""
    budget_ms: float | None = None
    """The budget for the measured latency."""
    rounds: tuple[Round, ...] = ()
    """Every choice that was tried before this one."""
    error_ms: float | None = None
    """How far the predicted latency may be off: in 95 % of cases by less."""
    estimated: EstimatedScore | None = None
    """The score to expect, calibrated and before any training, where the tables can tell."""


@dataclass(frozen=True, eq=False)
class Frontier:
    """Every Pareto-optimal point, latency and importance strictly ascending."""

    original_ms: float
    """Latency of the untouched network: what shares and speed-ups refer to."""
    fixed_ms: float
    """Part of every latency: what no candidate covers."""
    layers: int
    """How many layers the network has; every solution covers them all."""
    tick_ms: float | None
    """The step that latencies were rounded up to; None where the frontier is exact."""
    _latency_ms: Floats
    _importance: Floats
    _chain: Callable[[int], Sequence[str]]
    _candidates: Mapping[str, Candidate]
    estimate: Callable[[float], EstimatedScore] | None = None
    """From the importance of a choice to the score to expect, where the tables can tell."""

    @cached_property
    def points(self) -> tuple[Point, ...]:
        """Latency and importance of every point, fastest first; `at(budget)` gives the solution."""
        return tuple(map(Point, self._latency_ms.tolist(), self._importance.tolist()))

    @property
    def smallest_ms(self) -> float:
        """The smallest budget that can be met."""
        return float(self._latency_ms[0])

    @property
    def highest_importance(self) -> float:
        """Of any choice, however slow."""
        return float(self._importance[-1])

    @property
    def slack_ms(self) -> float:
        """With a tick: a choice faster than a point by more than this cannot have a higher importance. Otherwise 0."""
        return self.layers * (self.tick_ms or 0.0)

    @checked(OptionError)
    def solution(self, index: int) -> Solution:
        """The solution of `points[index]`."""
        count = len(self._latency_ms)
        if not -count <= index < count:
            raise OptionError(f"the frontier has no point {index}; it has {count}, counted from 0")
        index = range(count)[index]
        chosen = tuple(self._candidates[key] for key in self._chain(index))
        importance = float(self._importance[index])
        estimated = self.estimate(importance) if self.estimate else None
        return Solution(chosen, float(self._latency_ms[index]), importance, estimated=estimated)

    @checked(BudgetError)
    def at(self, budget: Budget) -> Solution:
        """The most important choice with latency <= budget: "60%" or 0.6, "1.8x" or "12ms"."""
        return self.within(budget_ms(budget, self.original_ms))

    @checked(BudgetError)
    def within(self, allowed: Milliseconds) -> Solution:
        """The most important choice with latency <= `allowed` milliseconds."""
        index = int(np.searchsorted(self._latency_ms, allowed, side="right")) - 1
        if index < 0:
            raise InfeasibleBudget(self.smallest_ms, allowed, self.original_ms)
        return self.solution(index)

    def predict(self, solution: Solution) -> Prediction:
        """The prediction of the solution; a frontier learns nothing from it."""
        return Prediction(solution.latency_ms, solution.error_ms or 0.0)

    def to_document(self) -> dict[str, Any]:
        """Plain data for JSON; a point names its candidates by their places in `keys`. O(points x layers) numbers."""
        places: dict[str, int] = {}
        points = [
            {
                "latency_ms": point.latency_ms,
                "importance": point.importance,
                "estimated": asdict(self.estimate(point.importance)) if self.estimate else None,
                "candidates": [places.setdefault(key, len(places)) for key in self._chain(index)],
            }
            for index, point in enumerate(self.points)
        ]
        return {
            "schema_version": SCHEMA,
            "original_ms": self.original_ms,
            "fixed_ms": self.fixed_ms,
            "tick_ms": self.tick_ms,
            "layers": self.layers,
            "keys": list(places),
            "points": points,
        }

    def __str__(self) -> str:
        """A short table over about ten budgets, the smallest reachable one last."""
        scored = "importance" if self.estimate is None else "estimated score"
        lines = [
            f"{len(self.points):,} points; original {self.original_ms:.3f} ms, of which fixed {self.fixed_ms:.3f} ms",
            f"{'budget':>8}  {'latency':>12}  {'speed-up':>8}  {scored:>15}  {'convs kept':>10}  {'merged into':>11}",
        ]
        lines += [self._line(budget, solution) for budget, solution in self.listed()]
        if self.estimate is not None:
            lines.append("estimated: on held-out images, calibrated and not fine-tuned; 95 % lie within the interval")
        return "\n".join(lines)

    def listed(self) -> list[tuple[str, Solution]]:
        """The choices for about ten budgets, the smallest reachable one last."""
        shares = [f"{share}%" for share in self._shares()]
        return [*((share, self.at(share)) for share in shares), ("smallest", self.solution(0))]

    def _shares(self) -> Iterable[int]:
        """Round shares from 100% down to the smallest that can be met."""
        lowest = self.smallest_ms / self.original_ms * 100
        step = next((step for step in (1, 2, 5) if 100 - lowest <= 10 * step), 10)
        return [share for share in range(100, 0, -step) if budget_ms(f"{share}%", self.original_ms) >= self.smallest_ms]

    def _line(self, budget: str, solution: Solution) -> str:
        faster = f"{self.original_ms / solution.latency_ms:.2f}x" if solution.latency_ms > 0 else "-"
        kept = sum(len(candidate.kept) for candidate in solution.candidates)
        left = sum(candidate.spec is not None for candidate in solution.candidates)
        latency = f"{solution.latency_ms:.3f} ms"
        scored = f"{solution.importance:.4f}" if solution.estimated is None else str(solution.estimated)
        return f"{budget:>8}  {latency:>12}  {faster:>8}  {scored:>15}  {kept:>10}  {left:>11}"


def build_frontier(
    options: Sequence[Option],
    candidates: Mapping[str, Candidate],
    layers: int,
    *,
    original_ms: float,
    fixed_ms: float = 0.0,
    tick_ms: float | None = None,
    pairs: Pairs | None = None,
) -> Frontier:
    """Solves for every budget at once. Cost: that of `labels.pareto`, which also says what a tick does.

    A latency is the sum over the chain from left to right, plus the fixed cost; an importance is the sum of scores, and of what
    `pairs` adds for neighbours.
    """
    if not 0 < original_ms < np.inf:
        raise OptionError(f"the original network's latency is {original_ms} ms; it must be a positive number")
    if not 0 <= fixed_ms < np.inf:
        raise OptionError(f"the fixed cost is {fixed_ms} ms; it must be a number and not negative")
    for option in options:
        candidate = candidates.get(option.key)
        if candidate is None or (candidate.start, candidate.end) != (option.start, option.end):
            raise OptionError(f"option '{option.key}' over {option.start}..{option.end} is not a candidate of the plan")
    untouched = sorted((option.start, option.key) for option in options if candidates[option.key].untouched)
    whole = [key for _, key in untouched]
    # A tick could hide the untouched network behind a better one that is a little slower.
    also = [whole] if len(whole) == layers else []
    menu = PairedMenu(options, layers, pairs or {})
    found = pareto(menu.expanded, menu.last_place, tick_ms=tick_ms, also=[menu.chain(keys) for keys in also])
    latency = found.latency_ms + fixed_ms
    # The untouched network's parts add up to its measured latency but for rounding in the sum; "100%" must still reach it.
    noise = (layers + 4) * sys.float_info.epsilon * original_ms
    latency[(latency > original_ms) & (latency <= original_ms + noise)] = original_ms
    kept = undominated(latency, found.score)
    return Frontier(
        original_ms,
        fixed_ms,
        layers,
        tick_ms,
        latency[kept],
        found.score[kept],
        lambda index: [menu.own_keys[key] for key in found.chain(int(kept[index]))],
        candidates,
    )
