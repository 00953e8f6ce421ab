"""Structure: a network as plain data: layers in chain order, residual blocks, the paths that link them, every operator.

"Follows" means along the data path: a feature map that anything else reads ends a chain, unless the reader is the other
branch of the same residual block.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from torch import fx

from layermerge.conv import ConvSpec, Sides
from layermerge.tracing.constants import is_constant
from layermerge.tracing.operators import Role

MapShape = tuple[int, int, int]
"""Channels, height, width."""


@dataclass(frozen=True)
class Layer:
    """A convolution that can be kept, removed or merged; padding nodes right before it belong to it."""

    name: str
    """That of the user's module, such as layer1.0.conv1."""
    spec: ConvSpec
    input_shape: MapShape
    """Channels, height, width."""
    output_shape: MapShape
    l1: float
    """Sum of the weights' magnitudes: which convs of a range are kept is decided by it."""
    node: str
    pads: tuple[str, ...] = ()
    unmergeable: str | None = None
    """Why it merges with nothing; None where it may."""
    after_resize: bool = False

    @property
    def irreducible(self) -> bool:
        """Whether removing it is impossible because its output has another shape than its input (R in the paper)."""
        return self.input_shape != self.output_shape


@dataclass(frozen=True)
class ConvStep:
    """A layer on a path."""

    layer: int


@dataclass(frozen=True)
class OpStep:
    """An operator between layers: norm, activation, shift, scale, padding, dropout."""

    node: str
    role: Role
    label: str
    shape: MapShape | None
    module: str | None = None
    """The module that computes it, where it has one."""
    pad: Sides = (0, 0, 0, 0)
    sized: bool = False
    """Whether its weights fix height and width too, not only the channels (LayerNorm over a map)."""


@dataclass(frozen=True)
class BlockStep:
    """A whole residual block on a path."""

    block: int


@dataclass(frozen=True)
class SubgraphStep:
    """A residual body that is not a path: gates, concats, attention and all.

    Ranges lie on the chains inside it, or drop it whole.
    """

    chains: tuple[DataPath, ...]
    openings: tuple[str, ...]
    """Why each chain begins where it does."""
    nodes: tuple[str, ...]
    """All that it is made of, in an order in which they can run."""
    barrier: str
    """The first operator that keeps it from being a path."""


Step = ConvStep | OpStep | BlockStep | SubgraphStep
DataPath = tuple[Step, ...]


@dataclass(frozen=True)
class Block:
    """A residual block: layers start..end-1; a shortcut conv, where there is one, is layer `shortcut`, first of them."""

    name: str
    start: int
    end: int
    shortcut: int | None
    body: DataPath
    bypass: DataPath
    add: str
    unfusable: str | None
    channels: int
    """Of the map where its branches fork, and of its output where its shortcut is the identity."""

    def __len__(self) -> int:
        return self.end - self.start


@dataclass(frozen=True)
class Gate:
    """Squeeze-excite: a map times one value per channel that layers start..end-1, and nothing beside them, compute from it."""

    start: int
    end: int
    product: str
    """The node that multiplies."""
    source: str
    """The map that is multiplied, from which the value is computed."""
    value: str
    nodes: tuple[str, ...]
    """All that computes the value, which is the last of them."""
    shape: MapShape


@dataclass(frozen=True)
class Operation:
    """A node of the network's graph: what it is, which feature map it transforms, and who reads what it gives."""

    name: str
    role: Role
    module: str | None
    """The module that computes it, where it has one."""
    source: str | None
    readers: tuple[str, ...]
    convolves: bool
    """Whether it is a convolution, one that no range can hold included."""
    channels: int | None = None
    """Of an activation with a weight for each channel (PReLU): how many they are."""
    stand_in: str | None = None
    """Of an activation with a cheaper one that may stand in for it: the row of the operator table that it is."""
    steep: bool = False
    """Whether it grows faster than its input, as a square does."""


@dataclass(frozen=True)
class Structure:
    """All layers and blocks of a network; `chains` are the top-level paths, `openings` why each begins where it does."""

    layers: tuple[Layer, ...]
    blocks: tuple[Block, ...]
    chains: tuple[DataPath, ...]
    openings: tuple[str, ...]
    operations: Mapping[str, Operation] = field(default_factory=dict, hash=False, repr=False)
    """Every node of the graph by name, those between the chains included."""
    gates: tuple[Gate, ...] = ()

    @cached_property
    def paths(self) -> tuple[DataPath, ...]:
        """Every path that holds a layer, outer ones before those nested in them."""
        nested = [path for block in self.blocks for path in (*_inner_paths(block.body), block.bypass)]
        return self.chains + tuple(path for path in nested if list(self.layers_of(path)))

    @cached_property
    def chain_starts(self) -> tuple[tuple[int, str], ...]:
        """The layers that chains begin with, and why there: those of the network, then of bodies that are not paths."""
        bodies = (step for block in self.blocks for step in block.body if isinstance(step, SubgraphStep))
        holders = [(self.chains, self.openings), *((body.chains, body.openings) for body in bodies)]
        pairs = [pair for chains, openings in holders for pair in zip(chains, openings, strict=True)]
        return tuple((next(self.layers_of(chain)), opening) for chain, opening in pairs)

    @cached_property
    def has_batch_norms(self) -> bool:
        return any(one.role is Role.NORM and one.module is not None for one in self.operations.values())

    def branch(self, start: int, end: int) -> Block | None:
        """The outermost residual block of just these layers that has no conv on its shortcut: it can do without them."""
        own = (block for block in self.blocks if (block.start, block.end, block.shortcut) == (start, end, None))
        return next(own, None)

    def gate(self, start: int, end: int) -> Gate | None:
        """The gate that just these layers compute."""
        return next((gate for gate in self.gates if (gate.start, gate.end) == (start, end)), None)

    def channels_into(self, item: Step) -> int:
        """Of the map that an item of a path reads; the first conv of a body that is not a path may read a part of it."""
        if isinstance(item, OpStep):
            assert item.shape is not None
            return item.shape[0]
        if isinstance(item, BlockStep):
            return self.blocks[item.block].channels
        assert isinstance(item, ConvStep)
        return self.layers[item.layer].spec.in_channels

    def layers_of(self, path: DataPath) -> Iterator[int]:
        for step in path:
            if isinstance(step, ConvStep):
                yield step.layer
            elif isinstance(step, BlockStep):
                block = self.blocks[step.block]
                yield from self.layers_of(block.bypass)
                yield from self.layers_of(block.body)
            elif isinstance(step, SubgraphStep):
                for chain in step.chains:
                    yield from self.layers_of(chain)

    def nodes_of(self, path: DataPath) -> Iterator[str]:
        """The names of all nodes that the path is made of, in an order in which they can run."""
        for step in path:
            if isinstance(step, ConvStep):
                yield from (*self.layers[step.layer].pads, self.layers[step.layer].node)
            elif isinstance(step, BlockStep):
                block = self.blocks[step.block]
                yield from self.nodes_of(block.bypass)
                yield from self.nodes_of(block.body)
                yield block.add
            elif isinstance(step, SubgraphStep):
                yield from step.nodes
            else:
                yield step.node


def _inner_paths(body: DataPath) -> Iterator[DataPath]:
    """The paths that ranges inside a body lie on: the body itself, or the chains of one that is not a path."""
    inside = [chain for step in body if isinstance(step, SubgraphStep) for chain in step.chains]
    yield from inside or [body]


def main_input(node: fx.Node) -> fx.Node:
    """The feature map that the node transforms: no constant; for a shift, the operand of more than one value per channel.

    Where both have one, it is the operand of the output's shape. Sizes alone would not tell: in a rewritten graph they change.
    """
    inputs = [arg for arg in node.args if isinstance(arg, fx.Node)]
    maps = [arg for arg in inputs if not is_constant(arg)] or inputs
    if node.meta["role"] is Role.SHIFT:
        wide = [arg for arg in maps if arg.meta["shape"][-2:] != (1, 1)]
        maps = wide or [arg for arg in maps if arg.meta["shape"] == node.meta["shape"]]
    return maps[0]
