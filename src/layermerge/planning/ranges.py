"""Ranges: which consecutive layers can be treated as one, as far as the network's topology decides.

In: the structure of a traced network. Out: for each range of layers the path steps it covers, or why it cannot be one.
`why_illegal` decides for the plan, which offers ranges, and for `reading`, which takes them from a file or a user.
"""

from __future__ import annotations

from dataclasses import dataclass

from layermerge.tracing.operators import Role
from layermerge.tracing.structure import (
    Block,
    BlockStep,
    ConvStep,
    DataPath,
    MapShape,
    OpStep,
    Step,
    Structure,
    SubgraphStep,
)

Span = tuple[int, int]
"""Layers start..end-1."""


@dataclass(frozen=True)
class PathWalk:
    """The items (layers and whole blocks) of one path, each with the operators that lie before it."""

    items: tuple[ConvStep | BlockStep, ...]
    before: tuple[tuple[OpStep, ...], ...]

    @staticmethod
    def of(path: DataPath) -> PathWalk:
        items: list[ConvStep | BlockStep] = []
        before: list[tuple[OpStep, ...]] = []
        waiting: list[OpStep] = []
        for step in path:
            if isinstance(step, OpStep):
                waiting.append(step)
            elif not isinstance(step, SubgraphStep):
                items.append(step)
                before.append(tuple(waiting))
                waiting = []
        return PathWalk(tuple(items), tuple(before))


def span(structure: Structure, item: Step) -> Span:
    if isinstance(item, ConvStep):
        return item.layer, item.layer + 1
    assert isinstance(item, BlockStep)
    block = structure.blocks[item.block]
    return block.start, block.end


def lead(structure: Structure, block: Block) -> OpStep | None:
    """The first operator, other than padding, between the fork and the first conv of the body (or of a block in it)."""
    for step in block.body:
        if isinstance(step, ConvStep):
            return None
        if isinstance(step, BlockStep):
            return lead(structure, structure.blocks[step.block])
        if isinstance(step, OpStep) and step.role not in (Role.PAD, Role.DROPOUT):
            return step
    return None


def _why_not_fused(structure: Structure, block: Block, first: bool) -> str | None:
    """Why a range cannot hold this whole block as one of its items; `first`: nothing of the range comes before it."""
    if block.unfusable:
        return f"block '{block.name}' cannot be fused: {block.unfusable}"
    if first and (op := lead(structure, block)):
        return f"block '{block.name}' cannot be fused: {op.label} ({op.role.value}) lies between its fork and its first conv"
    return None


def why_illegal(structure: Structure, steps: DataPath) -> str | None:
    """What keeps these steps of one path from becoming one conv, whichever of their convs are kept."""
    blocks = [(place, structure.blocks[step.block]) for place, step in enumerate(steps) if isinstance(step, BlockStep)]
    for place, block in blocks:
        if reason := _why_not_fused(structure, block, first=place == 0):
            return reason
    start, end = span(structure, steps[0])[0], span(structure, steps[-1])[1]
    if end - start == 1:
        alone = blocks and _drops_an_activation(structure, blocks[0][1].body)
        return f"block '{blocks[0][1].name}' holds one conv, which is left to itself" if alone else None
    for layer in structure.layers[start:end]:
        if layer.unmergeable:
            return f"'{layer.name}' does not merge: {layer.unmergeable}"
    return _why_no_norm_moves(steps, structure.layers[end - 1].output_shape)


def _drops_an_activation(structure: Structure, path: DataPath) -> bool:
    return any(
        step.role is Role.ACTIVATION
        if isinstance(step, OpStep)
        else isinstance(step, BlockStep) and _drops_an_activation(structure, structure.blocks[step.block].body)
        for step in path
    )


def _why_no_norm_moves(steps: DataPath, output: MapShape) -> str | None:
    for step in steps:
        if isinstance(step, OpStep) and step.role is Role.STAT_NORM:
            assert step.shape is not None
            if step.shape[0] != output[0] or (step.sized and step.shape != output):
                return f"{step.label} would move behind the range, where it meets {output[0]} channels, not {step.shape[0]}"
    return None


def why_no_range(structure: Structure, start: int, end: int) -> str:
    """Why layers start..end-1 cannot be a range: what the topology puts between them."""
    for first, opening in structure.chain_starts:
        if start < first < end:
            before, after = structure.layers[first - 1].name, structure.layers[first].name
            return f"'{before}' and '{after}' are not on one chain: {opening}"
    for block in structure.blocks:
        overlap = start < block.end and block.start < end
        whole = start <= block.start and block.end <= end
        if overlap and not whole:
            if block.shortcut is not None and start <= block.shortcut < end:
                name = structure.layers[block.shortcut].name
                return f"it holds the shortcut conv '{name}' but not the whole block '{block.name}'"
            if start < block.start or end > block.end:
                return f"it holds only a part of block '{block.name}' and reaches beyond it"
    for block in structure.blocks:
        inside = start <= block.start and block.end <= end
        if inside and (reason := _why_not_fused(structure, block, first=start == block.start)):
            return reason
    raise AssertionError(f"layers {start}..{end - 1} are a range")
