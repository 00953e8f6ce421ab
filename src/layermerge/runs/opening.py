"""Opening: from a recipe to a `Context`: the network by its name, the data, the run directory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import Tensor
from torch.utils import _pytree as pytree

from layermerge.data.preparation import size_of
from layermerge.errors import RecipeError
from layermerge.models import LoadedModel, load_model, parse_shape
from layermerge.planning.plan import Plan, plan
from layermerge.runs.context import Context, open_context, trace_as_served
from layermerge.runs.recipe import RunRecipe
from layermerge.runs.recipe_file import note_recipe
from layermerge.stages import stage
from layermerge.tasks.base import Task
from layermerge.tracing.trace import Trace


def load_network(recipe: RunRecipe) -> LoadedModel:
    shape = parse_shape(recipe.input) if recipe.input is not None else None
    return load_model(recipe.require_model(), recipe.weights, shape)


def open_task(recipe: RunRecipe, loaded: LoadedModel) -> Task:
    """The recipe's task; its images have the recipe's input size, where that says one."""
    data = recipe.require_data()
    shape = parse_shape(recipe.input) if recipe.input is not None else None
    known = shape or (_first_shape(loaded.known_inputs) if data.task == "imitation" else None)
    task = data.open(loaded.module, size_of(known) if known is not None and len(known) == 3 else None)
    if shape is not None and (found := _first_shape(task.example_inputs())) != shape:
        said = "x".join(map(str, found or ()))
        raise RecipeError(
            f"input is {recipe.input}, but the images of {data.source} come as {said}; leave out the input"
        )
    return task


def _first_shape(inputs: Any) -> tuple[int, ...] | None:
    return next((tuple(leaf.shape[1:]) for leaf in pytree.tree_leaves(inputs) if isinstance(leaf, Tensor)), None)


def open_plan(recipe: RunRecipe) -> tuple[Trace, Plan]:
    """The recipe's network, traced, and what its rules and its method offer; nothing is written."""
    with stage("network", f"load and trace {recipe.require_model()}"):
        loaded = load_network(recipe)
        inputs = open_task(recipe, loaded).example_inputs() if recipe.data is not None else loaded.example_inputs
        traced = trace_as_served(loaded.module, inputs, free_size=recipe.free_size)
        return traced, plan(traced, recipe.rules, recipe.method)


def open_run(recipe: RunRecipe, place: Path, menu: str = "layeronly") -> Context:
    """Loads the network and the data, and notes the recipe for verbs that follow.

    Rules that fit no layer, and methods that have no menu where one is needed, are refused before anything is written.
    """
    with stage("network", f"load and trace {recipe.require_model()}"):
        loaded = load_network(recipe)
        context = open_context(loaded.module, open_task(recipe, loaded), place, recipe.settings)
    note_run(context, recipe, menu)
    return context


def note_run(context: Context, recipe: RunRecipe, menu: str = "layeronly") -> None:
    """Notes the recipe for verbs that follow, once its rules are known to fit the network."""
    plan(context.trace, recipe.rules, menu)
    note_recipe(context.directory, recipe)
