"""Begin a run: the recipe, the plan and the untouched network, all that a device needs to measure its latency table."""

from __future__ import annotations

from pathlib import Path

from torch import nn

from layermerge.planning.plan import Plan
from layermerge.runs.directory import RunDirectory
from layermerge.runs.plan_file import PlanFile
from layermerge.runs.recipe import RunRecipe
from layermerge.runs.recipe_file import note_recipe
from layermerge.surgery.merge import merge
from layermerge.surgery.rewrite import rewrite
from layermerge.tables.branches import branch_maker, branches_of
from layermerge.tables.workloads import workloads_of
from layermerge.tracing.trace import Trace


def begin_run(
    run_dir: str | Path, trace: Trace, plan: Plan, recipe: RunRecipe | None = None, *, with_weights: bool = False
) -> RunDirectory:
    """Writes what a run begins with; the untouched network has random weights unless asked otherwise."""
    directory = RunDirectory(Path(run_dir))
    directory.require_same_network(trace.structure, trace.inputs, type(trace.module).__name__)
    untouched = merge(rewrite(trace, []))
    if not with_weights:
        _forget_weights(untouched)
    workloads, branches = workloads_of(trace, plan), branches_of(trace, plan.rules)
    described = PlanFile.of(trace.inputs, plan, workloads, branches, trace.structure.blocks)
    directory.write_plan(described, untouched, trace.inputs, branch_maker(trace, lambda: untouched))
    if recipe is not None:
        note_recipe(directory, recipe)
    return directory


def _forget_weights(module: nn.Module) -> None:
    """Random weights that keep activations in range: numbers that vanish or overflow are slow, and would spoil the clock."""
    for parameter in module.parameters():
        if parameter.dim() > 1:
            nn.init.kaiming_normal_(parameter)
        else:
            nn.init.normal_(parameter, std=0.1)
