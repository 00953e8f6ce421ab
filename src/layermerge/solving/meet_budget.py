"""Meet the budget: on the artifact, not on paper.

Latency does not depend on weights, so the merged network of a solution is built and measured whole, beside the original,
before anything is fine-tuned. Where the measured latency misses the budget, the prediction is corrected by what was seen and
the frontier is asked again, until the budget is kept; where it leaves room, once more for the room.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from statistics import median

from layermerge.arguments import checked
from layermerge.errors import InfeasibleBudget, TableError
from layermerge.planning.plan import Candidate, Plan
from layermerge.runtimes.base import Pass, Runtime, RuntimeSettings
from layermerge.runtimes.clock import ClockSettings
from layermerge.runtimes.registry import make_runtime
from layermerge.solving.budget import Budget, budget_ms
from layermerge.solving.frontier import Frontier, Round, Solution
from layermerge.solving.solve import Objective, Scores, solve
from layermerge.surgery.merge import merge
from layermerge.surgery.rewrite import rewrite
from layermerge.tables.latency import LatencyTable
from layermerge.tracing.trace import Trace

_ROUNDS = 8
_WINDOWS = 3
_ROOM = 0.03
# Asked for a little less than what should just fit: measurements scatter.
_CAUTION = 0.997


@checked(TableError)
def meet_budget(
    trace: Trace,
    plan: Plan,
    latency: LatencyTable,
    scores: Scores,
    *,
    budget: Budget,
    runtime: str | Runtime = "torch",
    objective: Objective = "exp",
    clock: ClockSettings | None = None,
) -> Solution:
    """The most important solution whose merged network, measured whole on the runtime, keeps the budget.

    Costs an export and a few seconds of timing for each round, of which there is usually one or two.
    """
    plan.require_network(trace.structure)
    settings = latency.table.provenance
    chosen = make_runtime(runtime, RuntimeSettings(threads=int(settings["threads"] or 1)))
    if settings.get("runtime") != chosen.name:
        raise TableError(
            f"the latency table was measured on {settings.get('runtime')}, not on {chosen.name}; measure one there"
        )
    inputs = trace.inputs.resized(int(settings["batch"] or 1))

    def prepare(candidates: Sequence[Candidate]) -> Pass:
        return chosen.prepare(merge(rewrite(trace, candidates)), inputs)

    original = cache(lambda: prepare([]))  # not before the budget is known to be one

    def measure(solution: Solution) -> float:
        return measured_beside(chosen, original(), prepare(solution.candidates), latency.original_ms, clock)

    return close_the_loop(solve(plan, latency, scores, objective=objective), budget, measure)


def measured_beside(
    runtime: Runtime, original: Pass, merged: Pass, original_ms: float, clock: ClockSettings | None = None
) -> float:
    """The merged network's time on the table's scale: measured beside the original, so that drift cancels.

    The median of three: the loop accepts the first that keeps the budget, and so would favour a lucky one.
    """
    runs = {"original": original, "merged": merged}
    windows = [runtime.time(runs, clock or runtime.clocks.whole) for _ in range(_WINDOWS)]
    return median(sample["merged"].value_ms / sample["original"].value_ms for sample in windows) * original_ms


def close_the_loop(frontier: Frontier, budget: Budget, measure: Callable[[Solution], float]) -> Solution:
    """Asks the frontier, measures, corrects, until the budget is kept; knows nothing of runtimes.

    A budget below every prediction is no exception: what is removed may take more with it than its rows say (the norms of
    an emptied block), so only a measurement can tell that the fastest choice is too slow.
    """
    target = asked = budget_ms(budget, frontier.original_ms)
    rounds: list[Round] = []
    best: Solution | None = None
    while len(rounds) < _ROUNDS:
        last_chance = best is None and len(rounds) == _ROUNDS - 1
        # The fastest choice is tried before giving up, whatever the correction asks for.
        solution = frontier.within(frontier.smallest_ms if last_chance else max(asked, frontier.smallest_ms))
        if any(turn.predicted_ms == solution.latency_ms for turn in rounds):
            if best is not None or any(turn.predicted_ms == frontier.smallest_ms for turn in rounds):
                break
            solution = frontier.within(frontier.smallest_ms)
        measured = measure(solution)
        rounds.append(Round(solution.latency_ms, measured))
        if measured <= target and (best is None or solution.importance > best.importance):
            best = replace(solution, measured_ms=measured, budget_ms=target)
        if best is not None and (best.measured_ms or 0.0) >= target * (1 - _ROOM):
            break
        asked = _next_request(rounds, target)
    if best is None:
        raise InfeasibleBudget(min(turn.measured_ms for turn in rounds), target, frontier.original_ms)
    return replace(best, rounds=tuple(rounds))


def _next_request(rounds: list[Round], target: float) -> float:
    """The prediction whose measurement should just keep the budget, by the line through the two nearest rounds.

    After one round, and where two lie too close to give a slope, in proportion to the last.
    """
    last = rounds[-1]
    kept = max(
        (turn for turn in rounds if turn.measured_ms <= target), key=lambda turn: turn.predicted_ms, default=None
    )
    missed = min(
        (turn for turn in rounds if turn.measured_ms > target), key=lambda turn: turn.predicted_ms, default=None
    )
    near, far = (kept, missed) if kept and missed else (last, rounds[-2] if len(rounds) > 1 else last)
    rise, run = far.measured_ms - near.measured_ms, far.predicted_ms - near.predicted_ms
    if run != 0 and rise / run > 0.05:
        return near.predicted_ms + (target * _CAUTION - near.measured_ms) * run / rise
    return last.predicted_ms * target / last.measured_ms * _CAUTION
