"""Networks of a run: the fine-tuned or merged network for a budget, found by what the recipe and the flags say."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from torch import nn

from layermerge.errors import ArtifactError
from layermerge.models import load_model
from layermerge.runs.choosing import method_name
from layermerge.runs.directory import NetworkDirectory, RunDirectory, VariantDirectory
from layermerge.runs.recipe import RunRecipe
from layermerge.runs.saving import load
from layermerge.surgery.merge import MergedModule, merge
from layermerge.surgery.rewrite import RewrittenModule


@dataclass(frozen=True)
class FoundNetwork:
    """A saved network, the variant of a run that it belongs to (None where it is not part of a run), and its original."""

    place: NetworkDirectory
    variant: VariantDirectory | None
    recipe: RunRecipe

    def load(self, original: nn.Module | None = None) -> RewrittenModule | MergedModule:
        """On a fresh original, whose weights do not matter."""
        return load(self.place.path, original or load_model(self.recipe.require_model()).module)

    @property
    def merged_place(self) -> Path:
        return self.place.merged.path if self.variant is None else self.variant.path


def find_network(run_dir: Path, recipe: RunRecipe, *, unmerged: bool = False) -> FoundNetwork:
    """The network of a directory that `save` wrote, or else the run's for the recipe's method, budget and label.

    Merged where it was merged already, unless `unmerged` is asked for.
    """
    directory = RunDirectory(run_dir)
    directory.read_plan()  # says so where this is not a run directory
    if directory.holds_network:
        return FoundNetwork(directory, None, recipe)
    if len(recipe.budgets) > 1:
        raise ArtifactError(f"the recipe has {len(recipe.budgets)} budgets; say which one with --budget")
    method, (budget,) = method_name(recipe.method, recipe), recipe.budgets
    variant = directory.variant(method, budget, recipe.label)
    place = variant if variant.holds_network and not unmerged else variant.unmerged
    if not place.holds_network:
        there = sorted({(read := found.read_variant()).method + " at " + read.budget for found in directory.variants()})
        raise ArtifactError(
            f"'{run_dir}' has no network of {method} at {budget} ({recipe.label}) yet"
            f"{'; it has ' + ', '.join(there) if there else ''}; fine-tune it first: "
            f"layermerge finetune {run_dir} --budget {budget}"
        )
    return FoundNetwork(place, variant, recipe)


def merged(module: RewrittenModule | MergedModule) -> MergedModule:
    return module if isinstance(module, MergedModule) else merge(module)
