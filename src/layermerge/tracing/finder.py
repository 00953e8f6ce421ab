"""Finder: the chains of convolutions in a lifted graph, and the residual blocks on them.

In: a lifted module. Out: its `Structure`, which says why each chain begins where it does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import fx, nn

from layermerge.conv import ConvSpec, Sides
from layermerge.errors import TraceError
from layermerge.tracing.constants import conv_tensors
from layermerge.tracing.gates import find_gates
from layermerge.tracing.lift import LiftedModule
from layermerge.tracing.operators import RESIZE, TABLE, Role, Shape, pads_by_size
from layermerge.tracing.structure import (
    Block,
    BlockStep,
    ConvStep,
    DataPath,
    Layer,
    MapShape,
    Operation,
    OpStep,
    Step,
    Structure,
    SubgraphStep,
    main_input,
)
from layermerge.tracing.walking import nodes_between

_TRANSPARENT = {Role.NORM, Role.STAT_NORM, Role.ACTIVATION, Role.SHIFT, Role.SCALE, Role.PAD, Role.DROPOUT}


@dataclass(frozen=True)
class _Residual:
    """A residual block as nodes, before layers have numbers."""

    fork: fx.Node
    add: fx.Node
    body: tuple[fx.Node, ...]
    """The ends of its steps; all its nodes where it is not a path."""
    bypass: tuple[fx.Node, ...]
    inside: frozenset[fx.Node]
    is_path: bool = True


def find_structure(lifted: LiftedModule) -> Structure:
    return _Finder(lifted).find()


class _Finder:
    def __init__(self, lifted: LiftedModule) -> None:
        self.lifted = lifted
        self.nodes: list[fx.Node] = list(lifted.graph.nodes)
        self.residuals: dict[fx.Node, _Residual] = {}
        self.pads_of: dict[fx.Node, tuple[fx.Node, ...]] = {}
        self.layers: list[Layer] = []
        self.blocks: list[Block | None] = []

    def find(self) -> Structure:
        for node in self.nodes:
            role = node.meta["role"]
            if role is Role.CONV:
                self.pads_of[node] = self._pads_before(node)
            elif role is Role.ADD and (residual := self._residual_at(node) or self._subgraph_at(node)):
                self.residuals[node] = residual
        chains, openings = self._chains(self.nodes)
        blocks = tuple(block for block in self.blocks if block is not None)
        return Structure(
            tuple(self.layers),
            blocks,
            chains,
            openings,
            {node.name: self._operation(node) for node in self.nodes},
            find_gates(self.nodes, self.layers, blocks),
        )

    # -- steps along the data path

    def _previous(self, node: fx.Node) -> fx.Node | None:
        """The feature map that the step ending at `node` starts from; None where a chain cannot go further back."""
        role = node.meta["role"]
        if role is Role.CONV:
            pads = self.pads_of[node]
            return main_input(pads[0]) if pads else main_input(node)
        if role in _TRANSPARENT:
            return main_input(node)
        residual = self.residuals.get(node)
        return residual.fork if residual else None

    def _step_nodes(self, node: fx.Node) -> frozenset[fx.Node]:
        """All nodes that the step ending at `node` is made of."""
        if node in self.residuals:
            return self.residuals[node].inside
        return frozenset((node, *self.pads_of.get(node, ())))

    def _pads_before(self, conv: fx.Node) -> tuple[fx.Node, ...]:
        pads: list[fx.Node] = []
        node = main_input(conv)
        while node.meta["role"] is Role.PAD and len(node.users) == 1:
            pads.insert(0, node)
            node = main_input(node)
        return tuple(pads)

    def _walk_back(self, node: fx.Node) -> list[fx.Node]:
        """`node` and every feature map before it on its data path."""
        way = [node]
        while (previous := self._previous(way[-1])) is not None:
            way.append(previous)
        return way

    # -- residual blocks

    def _residual_at(self, add: fx.Node) -> _Residual | None:
        ways = [self._walk_back(operand) for operand in add.args[:2] if isinstance(operand, fx.Node)]
        if len(ways) < 2 or ways[0][0] is ways[1][0]:
            return None
        other = set(ways[1])
        fork = next((node for node in ways[0] if node in other), None)
        if fork is None:
            return None
        branches = [tuple(reversed(way[: way.index(fork)])) for way in ways]
        inside = frozenset(node for branch in branches for end in branch for node in self._step_nodes(end)) | {add}
        if any(not inside.issuperset(node.users) for branch in branches for node in branch):
            return None  # something else reads a map inside the block
        body, bypass = self._body_and_bypass(branches[0], branches[1])
        if not self._holds_conv(body) or self._conv_count(bypass) > 1 or any(node in self.residuals for node in bypass):
            return None
        return _Residual(fork, add, body, bypass, inside)

    def _subgraph_at(self, add: fx.Node) -> _Residual | None:
        """A block with an identity shortcut whose body may be anything, as long as only the add reads what it computes."""
        left, right = (operand for operand in add.args[:2] if isinstance(operand, fx.Node))
        for fork, end in ((left, right), (right, left)):
            body = nodes_between(fork, end)
            inside = frozenset(body) | {add}
            apart = all(inside.issuperset(node.users) for node in body)
            if body and apart and any(node.meta["role"] is Role.CONV for node in body):
                return _Residual(fork, add, body, (), inside, is_path=False)
        return None

    def _body_and_bypass(
        self, first: tuple[fx.Node, ...], second: tuple[fx.Node, ...]
    ) -> tuple[tuple[fx.Node, ...], tuple[fx.Node, ...]]:
        """The branch that holds a block, which no shortcut may, is the body; else the one with more convs; with as many, the
        one with the larger kernel; else the first."""

        def weight(branch: tuple[fx.Node, ...]) -> tuple[bool, int, int]:
            convs = [node for end in branch for node in self._step_nodes(end) if node.meta["role"] is Role.CONV]
            area = (self._conv(node).kernel_size[0] * self._conv(node).kernel_size[1] for node in convs)
            return any(node in self.residuals for node in branch), len(convs), sum(area)

        return (second, first) if weight(second) > weight(first) else (first, second)

    def _conv_count(self, branch: tuple[fx.Node, ...]) -> int:
        return sum(node.meta["role"] is Role.CONV for end in branch for node in self._step_nodes(end))

    def _holds_conv(self, branch: tuple[fx.Node, ...]) -> bool:
        return self._conv_count(branch) > 0

    # -- chains, in the order of their first node

    def _chains(self, nodes: Sequence[fx.Node]) -> tuple[tuple[DataPath, ...], tuple[str, ...]]:
        """The paths among these nodes that hold a conv, blocks as one step each, and why each begins where it does."""
        within = set(nodes)
        residuals = [self.residuals[node] for node in nodes if node in self.residuals]
        hidden = {node for residual in residuals for node in residual.inside if node is not residual.add}
        hidden.update(pad for pads in self.pads_of.values() for pad in pads)
        chains: dict[fx.Node, list[fx.Node]] = {}  # by the chain's last node
        for node in nodes:
            if node in hidden or (previous := self._previous(node)) is None:
                continue
            alone = previous in within and self._step_nodes(node).issuperset(previous.users)
            chain = chains.pop(previous) if previous in chains and alone else []
            chains[node] = [*chain, node]
        order = {node: position for position, node in enumerate(nodes)}
        found = sorted((tuple(chain) for chain in chains.values()), key=lambda chain: order[chain[0]])
        found = [chain for chain in found if self._holds_conv(chain)]
        return tuple(self._path(chain) for chain in found), tuple(self._opening(chain[0]) for chain in found)

    def _opening(self, first: fx.Node) -> str:
        """Why the chain that starts with the step `first` cannot reach further back."""
        source = self._previous(first)
        assert source is not None
        if source.op == "placeholder":
            return f"'{source.target}' is an input of the network"
        if self._previous(source) is None:
            if "shared" in source.meta:
                return f"'{source.meta['shared']}' is called more than once"
            if pads_by_size(source):
                return f"{_label(source)} pads by what the input's size says, which only the start of a range can have"
            return f"{_label(source)} lies between"
        readers = [user for user in source.users if user not in self._step_nodes(first)]
        return f"the feature map after {_label(source)} is also read by {_label(readers[0])}"

    def _operation(self, node: fx.Node) -> Operation:
        role, module = node.meta["role"], _module_name(node)
        source = main_input(node).name if any(isinstance(arg, fx.Node) for arg in node.args) else None
        convolves = role is Role.CONV or node.meta.get("operator") == "conv2d"
        weights = self.lifted.get_submodule(module).parameters() if module and role is Role.ACTIVATION else ()
        channels = max((weight.numel() for weight in weights if weight.numel() > 1), default=None)
        readers = tuple(user.name for user in node.users)
        row = TABLE.get(node.meta.get("operator", ""))
        stand_in = row.stand_in if row and module and role is Role.ACTIVATION else None
        steep = row is not None and row.steep
        return Operation(node.name, role, module, source, readers, convolves, channels, stand_in, steep)

    # -- layers, blocks and paths, numbered

    def _conv(self, node: fx.Node) -> nn.Conv2d:
        module = self.lifted.get_submodule(str(node.target))
        assert isinstance(module, nn.Conv2d)
        return module

    def _path(self, branch: tuple[fx.Node, ...]) -> DataPath:
        return tuple(self._step(node) for node in branch)

    def _step(self, node: fx.Node) -> Step:
        if node.meta["role"] is Role.CONV:
            self.layers.append(self._layer(node))
            return ConvStep(len(self.layers) - 1)
        if node in self.residuals:
            return self._block(self.residuals[node])
        pad = _sides(node) if node.meta["role"] is Role.PAD else (0, 0, 0, 0)
        sized = node.meta.get("operator") == "layer_norm"
        shape, module = _map_shape(node.meta["shape"]), _module_name(node)
        return OpStep(node.name, node.meta["role"], _label(node), shape, module, pad, sized)

    def _block(self, residual: _Residual) -> BlockStep:
        index = len(self.blocks)
        self.blocks.append(None)  # its place: outer blocks come before those inside them
        start = len(self.layers)
        bypass = self._path(residual.bypass)
        shortcut = start if len(self.layers) > start else None
        body = self._path(residual.body) if residual.is_path else (self._subgraph(residual.body),)
        name = residual.add.meta["owner"] or residual.add.name
        self.blocks[index] = Block(
            name,
            start,
            len(self.layers),
            shortcut,
            body,
            bypass,
            residual.add.name,
            self._why_unfusable(body, bypass),
            residual.fork.meta["shape"][1],
        )
        return BlockStep(index)

    def _subgraph(self, nodes: tuple[fx.Node, ...]) -> SubgraphStep:
        chains, openings = self._chains(nodes)
        barrier = next(node for node in nodes if self._previous(node) is None)
        return SubgraphStep(chains, openings, tuple(node.name for node in nodes), _label(barrier))

    def _why_unfusable(self, body: DataPath, bypass: DataPath) -> str | None:
        for step in body:
            if isinstance(step, SubgraphStep):
                return f"{step.barrier} in its body is not part of a chain"
            if isinstance(step, OpStep) and step.role is Role.STAT_NORM:
                return f"its body holds the statistical norm {step.label}"
            if isinstance(step, BlockStep):
                inner = self.blocks[step.block]
                if inner is not None and inner.unfusable:
                    return f"block {inner.name} inside it cannot be fused: {inner.unfusable}"
        for step in bypass:
            if isinstance(step, OpStep) and step.role not in (Role.NORM, Role.SCALE, Role.DROPOUT):
                return f"its shortcut holds {step.label} ({step.role.value})"
        return None

    def _layer(self, node: fx.Node) -> Layer:
        conv, pads = self._conv(node), self.pads_of[node]
        source = main_input(pads[0]) if pads else main_input(node)
        spec = conv_spec(conv)
        for pad in pads:
            spec = spec.padded(_sides(pad))
        input_shape, output_shape = _map_shape(source.meta["shape"]), _map_shape(node.meta["shape"])
        assert input_shape is not None
        assert output_shape is not None
        if source.meta.get("free") and input_shape == output_shape and not spec.keeps_size:
            raise TraceError(
                f"free_size: '{node.target}' keeps the size of its input only where that is "
                f"{output_shape[1]}x{output_shape[2]}; trace with a larger input"
            )
        barrier = source.meta["role"] is Role.BARRIER and not pads_by_size(source)
        padded_otherwise = barrier and "pad" in source.meta.get("operator", "")
        return Layer(
            name=str(node.target),
            spec=spec,
            input_shape=input_shape,
            output_shape=output_shape,
            l1=conv_tensors(self.lifted, node)[0].abs().sum().item(),
            node=node.name,
            pads=tuple(pad.name for pad in pads),
            unmergeable="it pads with other values than zero" if padded_otherwise else None,
            after_resize=source.meta.get("operator") in RESIZE,
        )


def _module_name(node: fx.Node) -> str | None:
    return str(node.target) if node.op == "call_module" else None


def conv_spec(conv: nn.Conv2d) -> ConvSpec:
    """The geometry of a conv module, 'same' padding resolved as torch does: the odd pixel goes to the end."""
    (kh, kw), (dh, dw) = conv.kernel_size, conv.dilation
    if conv.padding == "same":
        tall, wide = dh * (kh - 1), dw * (kw - 1)
        sides: Sides = (tall // 2, tall - tall // 2, wide // 2, wide - wide // 2)
    elif isinstance(conv.padding, str):
        sides = (0, 0, 0, 0)
    else:
        high, broad = conv.padding
        sides = (high, high, broad, broad)
    sh, sw = conv.stride
    return ConvSpec(conv.in_channels, conv.out_channels, (kh, kw), (sh, sw), sides, (dh, dw), conv.groups)


def _sides(pad: fx.Node) -> Sides:
    amounts: Any = pad.args[1]
    left, right, top, bottom = (*amounts, 0, 0, 0)[:4]
    return top, bottom, left, right


def _map_shape(shape: Shape | None) -> MapShape | None:
    if shape is None or len(shape) != 4:
        return None
    _, channels, height, width = shape
    return None if channels is None or height is None or width is None else (channels, height, width)


def _label(node: fx.Node) -> str:
    """How the user knows the node: its module's name, or the operator and the module that calls it."""
    if node.op == "call_module":
        return f"'{node.target}'"
    if node.op == "output":
        return "the network's output"
    operator = node.meta.get("operator", str(node.target))
    owner = node.meta.get("owner")
    return f"{operator} in '{owner}'" if owner else operator
