"""Meet the budget: as measured on the artifact, not only as predicted.

Latency does not depend on weights, so the merged network of a solution is built and measured whole, alongside the original,
before anything is fine-tuned. Where the measured latency misses the budget, the prediction is corrected and the choice is made
again, until the budget is kept; and again, while what is known by then promises a choice that loses clearly less.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from typing import Protocol

from torch import nn

from layermerge.arguments import checked
from layermerge.errors import InfeasibleBudget, TableError
from layermerge.planning.candidate import Candidate
from layermerge.planning.plan import Plan
from layermerge.runtimes.base import Pass, Runtime, RuntimeSettings
from layermerge.runtimes.clock import Clocks, ClockSettings
from layermerge.runtimes.registry import make_runtime
from layermerge.solving.budget import Budget, budget_ms, budget_text
from layermerge.solving.frontier import Round, Solution
from layermerge.solving.learning import Bench, Learning, Measured
from layermerge.solving.solve import Scores, objective_of
from layermerge.surgery.merge import merge
from layermerge.surgery.rewrite import rewrite
from layermerge.tables.bounds import Objective
from layermerge.tables.latency import LatencyTable, Prediction
from layermerge.tracing.trace import Trace

_ROUNDS = 8
_ENOUGH = 4
"""Rounds after which what keeps the budget is taken, whatever might be better."""
_WORTH = 0.05
"""Of what the best choice so far loses: another round has to promise that it wins back as much."""
_ROOM = 0.03
"""Of the budget: where the best choice so far leaves more, another round has to promise anything at all."""
# Asked for a little less than what should just fit: measurements scatter.
_CAUTION = 0.997
_MOST_CAUTION = 0.015


class Choices(Protocol):
    """What the loop chooses from: a frontier, or one that learns."""

    @property
    def original_ms(self) -> float: ...

    @property
    def smallest_ms(self) -> float: ...

    @property
    def highest_importance(self) -> float: ...

    def within(self, allowed: float, /) -> Solution: ...

    def predict(self, solution: Solution, /) -> Prediction: ...


@checked(TableError)
def meet_budget(
    trace: Trace,
    plan: Plan,
    latency: LatencyTable,
    scores: Scores,
    *,
    budget: Budget,
    runtime: str | Runtime = "torch",
    objective: Objective | None = None,
    clock: ClockSettings | None = None,
) -> Solution:
    """The most important solution whose merged network, measured whole on the runtime, keeps the budget.

    What is measured on the way is added to the latency table's file. Costs a few seconds for the rows of the choice, and an
    export and a few seconds of timing for each round, of which there are usually one or two.
    """
    plan.require_network(trace.structure)
    settings = latency.table.provenance
    chosen = make_runtime(runtime, RuntimeSettings(threads=int(settings["threads"] or 1)))
    if settings.get("runtime") != chosen.name:
        raise TableError(
            f"the latency table was measured on {settings.get('runtime')}, not on {chosen.name}; measure one there"
        )
    inputs = trace.inputs.resized(int(settings["batch"] or 1))

    def merged(candidates: Sequence[Candidate]) -> nn.Module:
        return merge(rewrite(trace, candidates))

    @cache
    def originals() -> Sequence[Pass]:
        return chosen.copies_of(merged([]), inputs, passes=chosen.copies).passes

    bench = Bench(chosen, inputs, originals, merged, Clocks.alike(clock) if clock else chosen.clocks)
    return meet_budget_on(bench, plan, latency, scores, budget=budget, objective=objective or objective_of(scores))


def meet_budget_on(
    bench: Bench, plan: Plan, latency: LatencyTable, scores: Scores, *, budget: Budget, objective: Objective
) -> Solution:
    """The same, with a bench that exists already."""
    loop = f"{plan.method} {objective} {budget_text(budget)}"
    learning = Learning(loop, plan, latency, scores, objective, bench)
    return close_the_loop(learning, budget, learning.measure, learning.predict_afresh)


def close_the_loop(
    choices: Choices,
    budget: Budget,
    measure: Callable[[Solution], Measured],
    predict: Callable[[Solution], Prediction] | None = None,
) -> Solution:
    """Chooses, measures, corrects, until the budget is kept; knows nothing of runtimes. `predict` is what is reported.

    A budget below every prediction is not refused at once: what is removed may take more with it than its rows say, so only a
    measurement can tell that the fastest choice is too slow.
    """
    target = budget_ms(budget, choices.original_ms)
    asked = _cautious(choices, target)
    tried: list[tuple[Solution, float]] = []
    rounds: list[Round] = []
    best: Solution | None = None
    surely = False
    while len(rounds) < (_ROUNDS if best is None else _ENOUGH):
        if best is not None and surely:
            solution = _better(choices, asked, tried, best, target)
        else:
            solution = _untried(choices, asked, tried, settle=best is not None, last=len(rounds) == _ROUNDS - 1)
        if solution is None:
            break
        prediction = (predict or choices.predict)(solution)
        found = measure(solution)
        tried.append((solution, found.ms))
        rounds.append(Round(prediction.ms, found.ms, prediction.error_ms))
        sure = found.ms + found.more_ms <= target
        if found.ms <= target and (best is None or (sure, solution.importance) > (surely, best.importance)):
            predicted = replace(solution, latency_ms=prediction.ms, error_ms=prediction.error_ms)
            best, surely = replace(predicted, measured_ms=found.ms, budget_ms=target), sure
        asked = _next_request(
            [(choices.predict(one).ms, taken) for one, taken in tried], target - _margin(found, target)
        )
    if best is None:
        raise InfeasibleBudget(min(turn.measured_ms for turn in rounds), target, choices.original_ms)
    return replace(best, rounds=tuple(rounds))


def _better(
    choices: Choices, asked: float, tried: Sequence[tuple[Solution, float]], best: Solution, target: float
) -> Solution | None:
    """A choice that is worth a round: one that should fit, or else one that may, by a standard deviation of predictions.

    Without the second, a choice whose rows came out too large would never be built, and nothing would tell that they are.
    How much room is left says little: a small part of it may hold much of the importance.
    """
    known = [solution.candidates for solution, _ in tried]
    worth = _WORTH * (choices.highest_importance - best.importance)
    roomy = (best.measured_ms or 0.0) < target * (1 - _ROOM)
    for request, least in ((asked, 0.0 if roomy else worth), (asked + choices.predict(best).error_ms / 2, worth)):
        solution = choices.within(max(request, choices.smallest_ms))
        if solution.candidates not in known and solution.importance - best.importance > least:
            return solution
    return None


def _margin(found: Measured, target: float) -> float:
    """By how much less should be asked for, so that every window keeps the budget."""
    return min(found.more_ms, _MOST_CAUTION * target)


def _cautious(choices: Choices, target: float) -> float:
    """What is asked for first: less by half a standard deviation of the prediction, so that it usually keeps the budget."""
    error_ms = choices.predict(choices.within(max(target, choices.smallest_ms))).error_ms
    return target - min(error_ms / 4, _MOST_CAUTION * target)


def _untried(
    choices: Choices, asked: float, tried: Sequence[tuple[Solution, float]], *, settle: bool, last: bool
) -> Solution | None:
    """The best choice that was not measured yet; where it was, the fastest, which is tried before giving up."""
    known = [solution.candidates for solution, _ in tried]
    for request in (asked, choices.smallest_ms) if not last or settle else (choices.smallest_ms,):
        solution = choices.within(max(request, choices.smallest_ms))
        if solution.candidates not in known:
            return solution
        if settle:
            return None
    return None


def _next_request(rounds: Sequence[tuple[float, float]], target: float) -> float:
    """The prediction whose measurement should just keep the budget, by the line through the two nearest rounds.

    After one round, and where two lie too close to give a slope, in proportion to the last. Rounds are (predicted by what
    is known now, measured).
    """
    last = rounds[-1]
    kept = max((turn for turn in rounds if turn[1] <= target), default=None)
    missed = min((turn for turn in rounds if turn[1] > target), default=None)
    near, far = (kept, missed) if kept and missed else (last, rounds[-2] if len(rounds) > 1 else last)
    rise, run = far[1] - near[1], far[0] - near[0]
    if run != 0 and rise / run > 0.05:
        return near[0] + (target * _CAUTION - near[1]) * run / rise
    return last[0] * target / last[1] * _CAUTION
