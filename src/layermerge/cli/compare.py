"""The verb compare: several methods at several budgets, with the same fine-tuning for all."""

from __future__ import annotations

from typing import Annotated

import typer

from layermerge.cli.app import JsonOption, app, print_json
from layermerge.cli.compress import default_place
from layermerge.cli.flags import RUNTIME, Flags, PlaceOption, RecipeArgument, takes
from layermerge.cli.layout import show_text
from layermerge.cli.summary import show_next, show_results


@app.command()
@takes(
    "budget",
    "model",
    "weights",
    "input",
    "free_size",
    "data",
    "images",
    "label",
    *RUNTIME,
    "workers",
    "executor",
    "address",
)
def compare(
    recipe: RecipeArgument = None,
    method: Annotated[list[str] | None, typer.Option("--method", help="A method to compare; repeatable.")] = None,
    run_dir: PlaceOption = None,
    as_json: JsonOption = False,
    *,
    flags: Flags,
) -> None:
    """Compare methods at several budgets: shared tables, the same fine-tuning for all and for the original.

    Example: layermerge compare recipes/cifar10_resnet20.yaml --method layermerge --method depth --budget 60%
    """
    from layermerge.files import plain
    from layermerge.reporting.comparison import write_comparison
    from layermerge.runs.compare import compare_run, require_comparison
    from layermerge.runs.opening import open_run
    from layermerge.runs.recipe_file import add_to_recipe
    from layermerge.stages import expect

    chosen = flags.recipe(run_dir, recipe)
    methods = method or ["layermerge", "depth", "layeronly"]
    require_comparison(methods, chosen.budgets)
    expect(("network",))
    context = open_run(chosen, run_dir or default_place(recipe, chosen))
    found = compare_run(context, methods, chosen.budgets)
    add_to_recipe(context.directory, chosen)
    notes = [f"{miss.method} at {miss.budget}: {miss.reason}" for miss in found.missing]
    written = write_comparison(context.directory, found.reports, notes)
    if as_json:
        print_json([plain(report) for report in found.reports])
        return
    print()
    show_results(found.reports)
    for line in notes:
        show_text(f"- {line}", behind="  ")
    show_next(
        (str(context.directory.page), "the report: open it in a browser"),
        *((str(path), "the table, for documents") for path in written if path.suffix == ".md"),
        *((str(path), "the figures, for a spreadsheet") for path in written if path.suffix == ".csv"),
    )
