"""recipe.yaml in a run directory: the first verb writes what the run is of, and no later verb asks again.

What later verbs are told applies to them alone; only what the recipe does not say yet about the network, the data or the
runtime is added to it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from layermerge.errors import RecipeError
from layermerge.files import text_writer, write_files
from layermerge.runs.directory import RunDirectory
from layermerge.runs.recipe import RunRecipe, read_recipe

_LASTING = ("model", "weights", "input", "free_size", "data", "runtime", "threads", "batch_size", "license")
"""What a run keeps to from its first verb to its last."""


def run_recipe(directory: RunDirectory | None, given: Path | None, changes: dict[str, Any]) -> RunRecipe:
    """What a verb goes by: the recipe that it is given, or else that of the run directory, with changes that override it."""
    noted = directory.recipe if directory is not None and directory.recipe.is_file() else None
    chosen = read_recipe(given or noted, changes)
    if directory is not None and noted is not None:
        _require_same_run(directory, read_recipe(noted), chosen)
    return chosen


def _require_same_run(directory: RunDirectory, noted: RunRecipe, chosen: RunRecipe) -> None:
    facts: list[tuple[str, object, object]] = [
        ("model", noted.model, chosen.model),
        ("weights", noted.weights, chosen.weights),
        ("input", noted.input, chosen.input),
        ("data", noted.data and noted.data.source, chosen.data and chosen.data.source),
    ]
    for key, there, now in facts:
        if there is not None and now is not None and str(there) != str(now):
            raise RecipeError(f"'{directory.path}' is a run of {key} {there}, not of {now}; give another run directory")


def note_recipe(directory: RunDirectory, recipe: RunRecipe) -> None:
    """Writes the recipe where there is none: verbs that follow go by it."""
    if not directory.recipe.is_file():
        _write(directory, _stated(recipe))


def add_to_recipe(directory: RunDirectory, recipe: RunRecipe) -> None:
    """After a verb that went well: adds what lasts and the recipe does not say yet."""
    known, stated = _stated(read_recipe(directory.recipe)), _stated(recipe)
    missing = {key: stated[key] for key in _LASTING if key in stated and known.get(key) is None}
    if missing:
        _write(directory, known | missing)


def _stated(recipe: RunRecipe) -> dict[str, Any]:
    return recipe.model_dump(mode="json", exclude_unset=True)


def _write(directory: RunDirectory, document: dict[str, Any]) -> None:
    write_files({directory.recipe: text_writer(yaml.safe_dump(document, sort_keys=False))})
