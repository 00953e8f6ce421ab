"""The verb finetune: train the network chosen for a budget, not yet merged."""

from __future__ import annotations

from typing import Annotated

import typer

from layermerge.cli.app import JsonOption, app, print_json
from layermerge.cli.flags import Flags, RecipeOption, RunArgument, takes


@app.command()
@takes("budget", "model", "weights", "input", "free_size", "data", "images", "method", "label")
def finetune(
    run_dir: RunArgument,
    recipe: RecipeOption = None,
    original: Annotated[bool, typer.Option("--original", help="Train the network as it is instead.")] = False,
    as_json: JsonOption = False,
    *,
    flags: Flags,
) -> None:
    """Choose the network for a budget, fine-tune it, not yet merged, and save it; goes on where it stopped.

    Example: layermerge finetune runs/a --budget 60%
    """
    from layermerge.runs.choosing import choose
    from layermerge.runs.methods import control_of
    from layermerge.runs.opening import open_run
    from layermerge.runs.recipe_file import add_to_recipe
    from layermerge.runs.steps import calibrated, place_of, start_of, tune, variant_of
    from layermerge.tuning.distributed import leader_first, usable_device

    chosen = flags.recipe(run_dir, recipe)
    saved = {}
    with leader_first(usable_device(chosen.device)) as group:
        context = open_run(chosen, run_dir, chosen.method)
    for budget in ["100%"] if original else chosen.budgets:
        with leader_first(usable_device(chosen.device)):
            choice = None if original else choose(context, chosen.method, budget)
            variant = variant_of(context, choice) if choice else control_of(context)
            start = start_of(context, choice.solution.candidates if choice else ())
            start = calibrated(context, variant, start)
        net = tune(context, variant, start, chosen.finetune)
        if group.leads:
            place = place_of(context, variant).unmerged.path
            saved[budget] = {"score": context.task.evaluate(net), "saved_to": str(place)}
    if group.leads:
        add_to_recipe(context.directory, chosen)
    if as_json and group.leads:
        print_json(saved)
    for budget, facts in saved.items() if not as_json else ():
        print(f"{budget}: held-out score {facts['score']:.4f}, saved to {facts['saved_to']}")
