"""Compare: several methods at several budgets, over shared tables and with the same fine-tuning, beside the original."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path

from torch import nn

from layermerge.errors import LayerMergeError, PlanError
from layermerge.reporting.page import write_report
from layermerge.runs.context import Context, open_context
from layermerge.runs.methods import require_known, run_control, run_method
from layermerge.runs.recipe import RunRecipe, Settings
from layermerge.runs.recipe_file import note_recipe
from layermerge.runs.records import Report
from layermerge.tasks.base import Task


@dataclass(frozen=True)
class Missing:
    """A method that gave nothing at a budget, and why: out of its reach, or it failed; the others go on."""

    method: str
    budget: str
    reason: str


@dataclass(frozen=True)
class Comparison:
    """The control first, then each method at each budget; what could not be reached is said."""

    reports: tuple[Report, ...]
    missing: tuple[Missing, ...]
    directories: tuple[Path, ...]
    """Where each report's network and recovery curve are."""


def compare(
    model: nn.Module,
    task: Task,
    *,
    methods: Sequence[str],
    budgets: Sequence[str],
    run_dir: str | Path,
    settings: Settings | None = None,
) -> Comparison:
    """Compresses a network by several methods to several budgets, with the same fine-tuning for all and for the original.

    Gives a report for the original and for each method at each budget, and why one is missing where it gave nothing.
    """
    settings = settings or Settings()
    require_comparison(methods, budgets)
    context = open_context(model, task, run_dir, settings)
    note_recipe(context.directory, RunRecipe.of(settings))
    return compare_run(context, methods, budgets)


def require_comparison(methods: Sequence[str], budgets: Sequence[str]) -> None:
    """Refuses what cannot be compared, before hours are spent on the control."""
    if not methods or not budgets:
        raise PlanError("a comparison needs at least one method and one budget")
    for method, budget in product(methods, budgets):
        require_known(method, budget)


def compare_run(context: Context, methods: Sequence[str], budgets: Sequence[str]) -> Comparison:
    """`compare` on a run that is open already."""
    results = [run_control(context)]
    missing: list[Missing] = []
    for budget, method in product(budgets, methods):
        try:
            results.append(run_method(context, method, budget))
        except LayerMergeError as error:
            missing.append(Missing(method, budget, str(error)))
    write_report([context.directory.path], context.directory.page)
    reports, places = (tuple(result.report for result in results), tuple(result.directory for result in results))
    return Comparison(reports, tuple(missing), places)
