"""Seeds of a run: what its random choices were drawn from, for result files."""

from __future__ import annotations

from layermerge.runs.context import Context


def seeds_of(context: Context) -> dict[str, int]:
    """Of the held-out part, and of what trains: order and augmentation of images, noise."""
    drawn, recipe = context.task.describe()["held_out_seed"], context.settings.finetune
    assert isinstance(drawn, int), "tasks of images say what they hold out"
    return {"held_out": drawn} | ({"training": recipe.seed} if recipe is not None else {})
