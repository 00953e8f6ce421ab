"""Compress: a trained network and data in, a faster network out. Goes on where it was interrupted, skips what is up to date."""

from __future__ import annotations

from torch import nn

from layermerge.arguments import FilePath, checked
from layermerge.errors import RecipeError
from layermerge.reporting.page import write_report
from layermerge.runs.context import Context, open_context
from layermerge.runs.methods import require_known, run_method
from layermerge.runs.opening import note_run
from layermerge.runs.recipe import RunRecipe, Settings
from layermerge.runs.records import Result
from layermerge.solving.budget import Budget
from layermerge.tasks.base import Task


@checked(RecipeError)
def compress(
    model: nn.Module,
    task: Task,
    *,
    budget: Budget = "60%",
    runtime: str | None = None,
    run_dir: FilePath = "runs/compress",
    settings: Settings | None = None,
) -> Result:
    """Makes a trained network keep a latency budget: plan, tables, choice, fine-tuning, merge, export, and the figures.

    `budget` is a share of the original latency ("60%" or 0.6), a speed-up ("1.8x") or a time ("12ms"). `settings` says how,
    method included; `runtime` goes before what it says. Called again, it goes on where it was interrupted; with another
    budget it uses the same tables. The result holds the merged network, what was chosen and the figures of the exported file;
    `report.html` in the run directory shows them.
    """
    settings = settings or Settings()
    if runtime is not None:
        settings = settings.model_copy(update={"runtime": runtime})
    text = require_known(settings.method, budget)
    context = open_context(model, task, run_dir, settings)
    note_run(context, RunRecipe.of(settings))
    return compress_run(context, text)


def compress_run(context: Context, budget: str) -> Result:
    """All steps of the method that the settings name, then the report: the same from Python and the command line."""
    result = run_method(context, context.settings.method, budget)
    write_report([context.directory.path], context.directory.page)
    return result
