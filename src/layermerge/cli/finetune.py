"""The verb finetune: train the network chosen for a budget, not yet merged."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from layermerge.cli.app import JsonOption, app, print_json
from layermerge.cli.flags import Flags, RecipeOption, RunArgument, takes

if TYPE_CHECKING:
    from layermerge.runs.recipe import RunRecipe


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
    """Choose the network for a budget, fine-tune it, not yet merged, and save it; continues where it stopped.

    Example: layermerge finetune runs/a --budget 60%
    """
    from layermerge.runs.choosing import choose
    from layermerge.runs.methods import control_of, stages_of
    from layermerge.runs.opening import open_run
    from layermerge.runs.recipe_file import add_to_recipe
    from layermerge.runs.steps import calibrated, place_of, start_of, tune, variant_of
    from layermerge.stages import expect
    from layermerge.tuning.distributed import leader_first, usable_device

    chosen = flags.recipe(run_dir, recipe)
    saved = {}
    expect(("network",))
    with leader_first(usable_device(chosen.device)) as group:
        context = open_run(chosen, run_dir, chosen.method)
    for budget in ["100%"] if original else chosen.budgets:
        with leader_first(usable_device(chosen.device)):
            steps = ("fine-tuning",) if original else stages_of(chosen.method, chosen.settings)[1:-1]
            expect(steps, f"{chosen.method} at {budget}" if not original else "the original, fine-tuned")
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
    elif group.leads:
        _show(saved, run_dir, flags, chosen)


def _show(saved: dict[str, dict[str, Any]], run_dir: Path, flags: Flags, recipe: RunRecipe) -> None:
    from layermerge.cli.summary import Line, on_run, show_next, show_summary

    lines: list[Line] = [
        (budget, "", _held_out(facts["score"], recipe), f"saved to {facts['saved_to']}")
        for budget, facts in saved.items()
    ]
    show_summary(f"Fine-tuned networks of {run_dir}, scored on held-out training data", lines, ("", "held-out score"))
    words = [*flags.words("method"), *flags.words("label")]
    show_next(
        *(
            (on_run("merge", run_dir, recipe, "--budget", budget, *words), "few convolutions that compute the same")
            for budget in saved
        )
    )


def _held_out(score: float, recipe: RunRecipe) -> str:
    """A share in percent; of other tasks the score is a loss negated."""
    from layermerge.reporting.numbers import share

    classifies = recipe.data is not None and recipe.data.task == "classification"
    return share(score) if classifies else f"{score:.4g}"
