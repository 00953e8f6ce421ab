"""Cards: what the verbs that write a network of a run leave beside it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from layermerge.runs.networks import FoundNetwork


def leave_card(run_dir: Path, found: FoundNetwork) -> None:
    """Writes the model card of a run's network; one that stands for itself has no figures to tell."""
    from layermerge.reporting.facts import gather
    from layermerge.reporting.model_card import write_card
    from layermerge.runs.directory import RunDirectory
    from layermerge.runs.recipe_file import add_to_recipe

    if found.variant is None:
        return
    directory = RunDirectory(run_dir)
    if directory.recipe.is_file():
        add_to_recipe(directory, found.recipe)
    write_card(gather(run_dir), found.variant, found.recipe.license)
