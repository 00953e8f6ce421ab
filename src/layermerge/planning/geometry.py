"""Geometry: the one conv that a given kept set of a range becomes.

In: path steps and the layers kept among them. Out: the merged `ConvSpec`, or a `PlanError` that names the rule broken.
Where `knapsack` searches over kept sets, this computes a single one; surgery uses it to place padding and crops.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from layermerge.conv import ConvSpec, compose, parallel
from layermerge.errors import PlanError
from layermerge.planning.ranges import (
    PathWalk,
    drops_an_activation,
    span,
    why_no_range,
    why_not_fused,
    why_not_together,
)
from layermerge.planning.rules import in_series, side_by_side
from layermerge.tracing.operators import Role
from layermerge.tracing.structure import Block, BlockStep, ConvStep, DataPath, Structure

Kept = Collection[int]
"""Indices of the layers that stay."""


def merged_spec(structure: Structure, path: DataPath, kept: Kept, channels: int) -> ConvSpec:
    """The conv that the path becomes when only `kept` stay; the identity where none does."""
    spec, any_kept = ConvSpec.identity(channels), False
    for step in path:
        if isinstance(step, ConvStep):
            layer = structure.layers[step.layer]
            if step.layer not in kept:
                if layer.irreducible:
                    raise PlanError(f"'{layer.name}' cannot be removed: it changes the shape of its input")
                continue
            added = layer.spec
        elif isinstance(step, BlockStep):
            added = block_spec(structure, structure.blocks[step.block], kept)
            if not _any_kept(structure, (step,), kept):
                continue
        elif step.role is Role.PAD:
            added = ConvSpec.identity(spec.out_channels).padded(step.pad)
            spec = compose(spec, added)
            continue
        else:
            continue
        if any_kept and (reason := in_series(spec, added)):
            raise PlanError(reason)
        spec, any_kept = compose(spec, added), True
    return spec


def block_spec(structure: Structure, block: Block, kept: Kept) -> ConvSpec:
    """A whole block as one conv: its body beside its shortcut; the shortcut alone where the body is emptied."""
    bypass = branch_spec(structure, block, block.bypass, kept)
    if is_emptied(structure, block, kept):
        return bypass
    body = branch_spec(structure, block, block.body, kept)
    if reason := side_by_side(body, bypass):
        raise PlanError(reason)
    return parallel(body, bypass)


def branch_spec(structure: Structure, block: Block, branch: DataPath, kept: Kept) -> ConvSpec:
    return merged_spec(structure, branch, kept, structure.layers[block.start].spec.in_channels)


def is_emptied(structure: Structure, block: Block, kept: Kept) -> bool:
    """Whether no conv of the body stays: then the block is its shortcut, x and not 2x."""
    return not _any_kept(structure, block.body, kept)


def _any_kept(structure: Structure, path: DataPath, kept: Kept) -> bool:
    return any(index in kept for index in structure.layers_of(path))


@dataclass(frozen=True)
class Reading:
    """A range as a piece of one path: its items with the operators between them, and the operators behind it."""

    steps: DataPath
    behind: DataPath


def read_range(structure: Structure, start: int, end: int, kept: Kept) -> tuple[Reading, ConvSpec]:
    """How a candidate's range lies on its path, and what it merges to; outer readings, which fuse more, come first."""
    refusal: PlanError | None = None
    for path in structure.paths:
        reading = _slice(structure, path, start, end)
        if reading is None:
            continue
        walk = PathWalk.of(reading.steps)
        blocked = [why_not_fused(structure, item, first=item is walk.items[0]) for item in walk.items]
        lone_block = end - start == 1 and isinstance(walk.items[0], BlockStep)
        if any(blocked) or (lone_block and drops_an_activation(structure, reading.steps)):
            continue
        if reason := why_not_together(structure, reading.steps, start, end):
            refusal = refusal or PlanError(reason)
            continue
        try:
            return reading, merged_spec(structure, reading.steps, kept, structure.layers[start].spec.in_channels)
        except PlanError as error:
            refusal = refusal or error
    raise refusal or PlanError(why_no_range(structure, start, end))


def _slice(structure: Structure, path: DataPath, start: int, end: int) -> Reading | None:
    first = last = None
    for position, step in enumerate(path):
        if isinstance(step, (ConvStep, BlockStep)):
            begins, ends = span(structure, step)
            first = position if begins == start else first
            last = position if ends == end else last
    if first is None or last is None or last < first:
        return None
    behind = last + 1
    while behind < len(path) and not isinstance(path[behind], (ConvStep, BlockStep)):
        behind += 1
    return Reading(path[first : last + 1], path[last + 1 : behind])
