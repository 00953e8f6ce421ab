"""Compare: several methods at several budgets, over shared tables and with the same fine-tuning, alongside the original."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path

from torch import nn

from layermerge.arguments import FilePath, checked
from layermerge.errors import LayerMergeError, PlanError, RecipeError
from layermerge.runs.context import Context, open_context
from layermerge.runs.methods import require_known, run_control, run_method
from layermerge.runs.opening import note_run
from layermerge.runs.recipe import RunRecipe, Settings
from layermerge.runs.records import Report
from layermerge.runs.showing import show_run
from layermerge.solving.budget import Budget, budget_text
from layermerge.stages import expect, note
from layermerge.tasks.base import Task


@dataclass(frozen=True)
class Missing:
    """A method without a result at a budget, and why: out of its reach, or it failed."""

    method: str
    budget: str
    reason: str


@dataclass(frozen=True)
class Comparison:
    """The control first, then each method at each budget; what could not be reached is listed as missing."""

    reports: tuple[Report, ...]
    missing: tuple[Missing, ...]
    directories: tuple[Path, ...]
    """Where each report's network and recovery curve are."""


@checked(RecipeError)
def compare(
    model: nn.Module,
    task: Task,
    *,
    methods: Iterable[str],
    budgets: Iterable[Budget],
    run_dir: FilePath,
    settings: Settings | None = None,
) -> Comparison:
    """Compresses a network by several methods to several budgets, with the same fine-tuning for all and for the original.

    Returns a report for the original and for each method at each budget, and the reason where one is missing.
    """
    settings = settings or Settings()
    methods, texts = require_comparison(methods, budgets)
    context = open_context(model, task, run_dir, settings)
    note_run(context, RunRecipe.of(settings))
    return compare_run(context, methods, texts)


def require_comparison(methods: Iterable[str], budgets: Iterable[Budget]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The methods, and the budgets as text; refuses what cannot be compared, before hours are spent on the control."""
    chosen, wanted = tuple(methods), tuple(map(budget_text, budgets))
    if not chosen or not wanted:
        raise PlanError("a comparison needs at least one method and one budget")
    for method, budget in product(chosen, wanted):
        require_known(method, budget)
    return chosen, wanted


def compare_run(context: Context, methods: Sequence[str], budgets: Sequence[str]) -> Comparison:
    """`compare` on a run that is open already."""
    results = [run_control(context)]
    missing: list[Missing] = []
    for budget, method in product(budgets, methods):
        try:
            results.append(run_method(context, method, budget))
        except LayerMergeError as error:
            missing.append(Missing(method, budget, str(error)))
            note(f"{method} at {budget} is left out: {error}")
    expect(("report",))
    show_run(context)
    reports, places = (tuple(result.report for result in results), tuple(result.directory for result in results))
    return Comparison(reports, tuple(missing), places)
