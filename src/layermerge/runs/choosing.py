"""Choosing: which candidates a method takes for a budget, from the run's tables; found once, then read.

Where importance is calibrated, sums are checked against whole networks first. The merged network of the choice was measured to
keep the budget before anything is trained.
"""

from __future__ import annotations

from functools import cache

from layermerge.files import document_digest
from layermerge.runs.context import Context
from layermerge.runs.recipe import Settings
from layermerge.runs.records import Choice
from layermerge.runs.steps import (
    Menu,
    measure_importance_step,
    measure_latency_step,
    menu_of,
    original_copies,
    whole_scores,
)
from layermerge.solving.budget import budget_ms
from layermerge.solving.learning import Bench
from layermerge.solving.meet_budget import meet_budget_on
from layermerge.stages import stage
from layermerge.surgery.merge import merge
from layermerge.surgery.rewrite import rewrite
from layermerge.tables.cost import table_cost
from layermerge.tables.latency import LatencyTable
from layermerge.tables.table import Table


def method_name(menu: str, settings: Settings) -> str:
    """What a method is called that solves over a menu; the objective that belongs to the estimator is implied."""
    return menu if settings.objective_is_usual else f"{menu}-{settings.objective}"


def choose(context: Context, method: str, budget: str) -> Choice:
    """The solution whose merged network was measured to keep the budget; found once, then read."""
    menu = menu_of(context, method)
    latency = measure_latency_step(context, menu)
    scores = measure_importance_step(context, menu, latency)
    place = context.directory.choice(method_name(method, context.settings), budget)
    with stage("choice", "choose for the budget, build the network and measure it", place):
        return _chosen(context, menu, latency, scores, (method, budget))


def _chosen(context: Context, menu: Menu, latency: LatencyTable, scores: Table, asked: tuple[str, str]) -> Choice:
    method, budget = asked
    objective = context.settings.objective
    fresh = latency.fresh
    rows = [[entry.key, fresh.of(entry), _value(scores, entry.key)] for entry in menu.plan.candidates]
    stamp, name = document_digest([method, budget, objective, rows]), method_name(method, context.settings)
    if known := context.directory.known_choice(name, budget, stamp):
        return known
    bench = Bench(
        context.runtime,
        context.trace.inputs.resized(context.settings.batch_size),
        cache(lambda: original_copies(context, passes=context.runtime.copies).passes),
        lambda candidates: merge(rewrite(context.trace, candidates)),
        context.runtime.clocks,
    )
    if wholes := whole_scores(context, menu, latency):
        scores = wholes.around(scores, budget_ms(budget, latency.original_ms))
    solution = meet_budget_on(bench, menu.plan, latency, scores, budget=budget, objective=objective)
    cost = table_cost(menu.plan, scores, latency)
    choice = Choice(stamp, name, method, objective, budget, latency.original_ms, solution, cost)
    context.directory.write_choice(choice)
    return choice


def _value(scores: Table, key: str) -> float | None:
    """What a choice rests on, of tables that other methods may have added to."""
    return scores[key].value if key in scores else None
