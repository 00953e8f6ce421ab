"""Edits: what `rewrite` does to a graph, as a list in the order in which it is done. No graph is looked at.

In: the readings of all candidates, one for every layer. Out: edits that name nodes of the traced graph.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from layermerge.conv import Sides
from layermerge.planning.flow import Flow
from layermerge.planning.reading import Reading
from layermerge.planning.remains import Remains
from layermerge.surgery.mean_gates import mean_name, replaced_gates
from layermerge.tracing.structure import Block, BlockStep, ConvStep, DataPath, Gate, OpStep


@dataclass(frozen=True)
class LeaveShortcut:
    """An emptied body goes with all it holds: the block becomes its shortcut, x and not 2x."""

    add: str
    body: tuple[str, ...]


@dataclass(frozen=True)
class Pad:
    """Zero padding around the one feature map that the readers share, for them alone."""

    readers: tuple[str, ...]
    sides: Sides
    region: int


@dataclass(frozen=True)
class Crop:
    """The reverse: a branch needs less of the padding at its range's input than the branch next to it."""

    readers: tuple[str, ...]
    sides: Sides
    region: int
    beside: str | None = None
    """Where the reader is a residual add itself: its other operand, which is not cropped."""


@dataclass(frozen=True)
class StopPadding:
    """The conv pads no more: its range pads once, at its input."""

    layer: str


@dataclass(frozen=True)
class Remove:
    """The node's readers read what it read."""

    node: str


@dataclass(frozen=True)
class MoveNorm:
    """A statistical norm leaves its place and follows another node."""

    node: str
    behind: str


@dataclass(frozen=True)
class Join:
    """These nodes compute a region: what merges into one conv."""

    nodes: tuple[str, ...]
    region: int


@dataclass(frozen=True)
class AddActivation:
    """A module that its range lost is called again after a node."""

    module: str
    behind: str


@dataclass(frozen=True)
class ReplaceActivation:
    """Another activation takes a module's place, wherever that is called: one row of the operator table."""

    module: str
    stand_in: str


@dataclass(frozen=True)
class ReplaceGate:
    """A parameter of one value per channel takes the place of a value that is computed."""

    gate: Gate
    parameter: str


Edit = (
    LeaveShortcut
    | Pad
    | Crop
    | StopPadding
    | Remove
    | MoveNorm
    | Join
    | AddActivation
    | ReplaceActivation
    | ReplaceGate
)


def edits(remains: Remains, readings: Sequence[Reading], *, add_activation: bool) -> Iterator[Edit]:
    """Emptied blocks first, then gates, then range by range, then the activations that come back.

    Ranges that keep a conv are regions.
    """
    emptied = remains.emptied_blocks()
    erased = frozenset(name for add, body in emptied.items() for name in (add, *body))
    for add, body in emptied.items():
        yield LeaveShortcut(add, body)
    for gate in replaced_gates(readings):
        if gate.product not in erased:
            yield ReplaceGate(gate, mean_name(remains.structure, gate))
    regions = [reading for reading in readings if reading.candidate.kept]
    for reading in readings:
        region = regions.index(reading) if reading.candidate.kept else None
        if region is not None and not reading.candidate.keeps_layer:
            yield from _gather_padding(remains, reading, region, erased)
        yield from (Remove(name) for name in reading.removed if name not in erased)
        if reading.moved and reading.end:
            yield MoveNorm(reading.moved, reading.end)
        if region is not None:
            apart = {*erased, *reading.removed, reading.moved}
            names = remains.structure.nodes_of(reading.steps)
            yield Join(tuple(name for name in names if name not in apart), region)
        if (one := reading.replaced) and one.module and one.stand_in:
            yield ReplaceActivation(one.module, one.stand_in)
    if add_activation:
        gone = {name for reading in readings for name in reading.gone}
        yield from _activations(Flow(remains.structure, erased | gone), regions)


def _activations(flow: Flow, regions: Sequence[Reading]) -> Iterator[AddActivation]:
    activated: set[str] = set()
    for reading in regions:
        if reading.lost is None or reading.end is None or reading.lost.module is None:
            continue
        if place := flow.needs_activation(reading.end, activated):
            activated.add(place)
            yield AddActivation(reading.lost.module, reading.moved or place if place == reading.end else place)


def _gather_padding(remains: Remains, reading: Reading, region: int, erased: frozenset[str]) -> Iterator[Edit]:
    """Pads once at the range's input; the convs inside pad no more; shortcuts inside are cropped to match."""
    structure = remains.structure
    if any(reading.spec.padding):
        yield Pad(tuple(_entries(remains, reading.steps)), reading.spec.padding, region)
    yield from _crops(remains, reading.steps, region, erased)
    for index in structure.layers_of(reading.steps):
        if index in remains.kept:
            yield StopPadding(structure.layers[index].name)


def _crops(remains: Remains, path: DataPath, region: int, erased: frozenset[str]) -> Iterator[Crop]:
    for step in path:
        if not isinstance(step, BlockStep):
            continue
        block = remains.structure.blocks[step.block]
        whole = remains.block_spec(block).padding
        for branch in remains.branches(block):
            own = remains.branch_spec(block, branch).padding
            top, bottom, left, right = (total - part for total, part in zip(whole, own, strict=True))
            if any((top, bottom, left, right)):
                readers = _entries(remains, branch)
                beside = None if readers else _body_end(remains, block, erased)
                yield Crop(tuple(readers or [block.add]), (top, bottom, left, right), region, beside)
            yield from _crops(remains, branch, region, erased)


def _body_end(remains: Remains, block: Block, erased: frozenset[str]) -> str:
    return [name for name in remains.structure.nodes_of(block.body) if name not in erased][-1]


def _entries(remains: Remains, path: DataPath) -> list[str]:
    """The nodes that read the path's input; none where nothing of the path is left but its input itself."""
    for step in path:
        if isinstance(step, ConvStep):
            layer = remains.structure.layers[step.layer]
            return [(*layer.pads, layer.node)[0]]
        if isinstance(step, OpStep):
            return [step.node]
        assert isinstance(step, BlockStep), "a subgraph is dropped or left alone"
        block = remains.structure.blocks[step.block]
        if not remains.is_emptied(block):
            branches = [_entries(remains, branch) or [block.add] for branch in (block.body, block.bypass)]
            return [name for branch in branches for name in branch]
        if shortcut := _entries(remains, block.bypass):
            return shortcut
    return []
