"""Compress: a trained network and data in, a faster network out. Interrupted runs continue; what is up to date is skipped."""

from __future__ import annotations

from pathlib import Path

from torch import nn

from layermerge.arguments import FilePath, checked
from layermerge.data.unlabelled import Unlabelled
from layermerge.errors import RecipeError
from layermerge.runs.context import Context, open_context
from layermerge.runs.data_recipe import DataRecipe
from layermerge.runs.methods import require_known, run_method
from layermerge.runs.opening import note_run
from layermerge.runs.recipe import RunRecipe, Settings
from layermerge.runs.records import Result
from layermerge.runs.showing import show_run
from layermerge.solving.budget import Budget
from layermerge.stages import expect
from layermerge.tasks.base import Task
from layermerge.tasks.imitation import Imitation


@checked(RecipeError)
def compress(
    model: nn.Module,
    task: Task | None = None,
    *,
    images: Unlabelled | None = None,
    budget: Budget = "60%",
    runtime: str | None = None,
    run_dir: FilePath = "runs/compress",
    settings: Settings | None = None,
) -> Result:
    """Makes a trained network meet a latency budget: plan, tables, choice, fine-tuning, merge, export, and the figures.

    Give a task, which says what the network is for, or, without labels, images alone: a folder, a tensor, a Dataset, a
    DataLoader or a list of batches, on which the faster network imitates the original (`tasks.Imitation`).
    `budget` is a share of the original latency ("60%" or 0.6), a speed-up ("1.8x") or a time ("12ms"). `settings` says how,
    including the method; `runtime` overrides its runtime. Called again, it continues where it was interrupted; with another
    budget it uses the same tables. The result holds the merged network, what was chosen and the figures of the exported file;
    `report.html` in the run directory shows them.
    """
    settings = settings or Settings()
    if runtime is not None:
        settings = settings.model_copy(update={"runtime": runtime})
    text = require_known(settings.method, budget)
    if (task is None) is (images is None):
        raise RecipeError("compress takes either a task or images; give one of them")
    data = None
    if isinstance(images, (str, Path)):  # which the recipe can name, so that no verb on the directory asks again
        data = DataRecipe.of_images(images)
        task = data.open(model)
    elif images is not None:
        task = Imitation(images, teacher=model)
    assert task is not None
    context = open_context(model, task, run_dir, settings)
    note_run(context, RunRecipe.of(settings, data))
    return compress_run(context, text)


def compress_run(context: Context, budget: str) -> Result:
    """All steps of the method that the settings name, then the report: the same from Python and the command line."""
    result = run_method(context, context.settings.method, budget)
    expect(("report",))
    show_run(context)
    return result
