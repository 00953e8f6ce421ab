"""The verb compress: all steps of a run, one after the other."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from layermerge.cli.app import JsonOption, app, print_json
from layermerge.cli.flags import RUNTIME, Flags, PlaceOption, RecipeArgument, takes

if TYPE_CHECKING:
    from layermerge.runs.recipe import RunRecipe


@app.command()
@takes(
    "budget", "model", "weights", "input", "free_size", "data", "images", "method", "label", "license", "finetune", *RUNTIME,
    "workers", "executor", "address",
)  # fmt: skip
def compress(
    recipe: RecipeArgument = None, run_dir: PlaceOption = None, as_json: JsonOption = False, *, flags: Flags
) -> None:
    """Turn a trained network and data into a faster network: plan, tables, choice, fine-tuning, merge, export, report.

    Example: layermerge compress recipes/cifar10_resnet20.yaml --budget 60% --runtime onnxruntime
    """
    from layermerge.cli.summary import on_run, show_next, show_result
    from layermerge.files import plain
    from layermerge.runs.compress import compress_run
    from layermerge.runs.methods import require_known
    from layermerge.runs.opening import open_run
    from layermerge.runs.recipe_file import add_to_recipe
    from layermerge.stages import expect

    chosen = flags.recipe(run_dir, recipe)
    for budget in chosen.budgets:
        require_known(chosen.method, budget)
    expect(("network",))
    context = open_run(chosen, run_dir or default_place(recipe, chosen))
    results = []
    for budget in chosen.budgets:
        results.append(compress_run(context, budget))
        if not as_json:
            show_result(chosen.require_model(), results[-1])
    add_to_recipe(context.directory, chosen)
    if as_json:
        print_json([plain(result.report) | {"directory": str(result.directory)} for result in results])
        return
    place, budget = context.directory, chosen.budgets[-1]
    show_next(
        (str(place.page), "the report: open it in a browser"),
        *((str(result.directory), f"the network for {result.report.budget}, to serve") for result in results),
        (on_run("explain", place.path), "why not more"),
        (on_run("export", place.path, chosen, "--budget", budget, "--int8"), "the same network in INT8"),
    )


def default_place(recipe: Path | None, chosen: RunRecipe) -> Path:
    name = recipe.stem if recipe is not None else chosen.require_model().replace(":", "-").replace("/", "-")
    return Path("runs") / name
