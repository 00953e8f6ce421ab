"""Branches: residual branches with work of their own besides their convs: gates, norms, attention.

Nothing but dropping such a branch takes that work away, so it belongs to no conv's workload. The branch is timed whole, between
neighbours as workloads are; what its convs do not account for is charged to whatever keeps it. So it is with gates that may be
replaced.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx, nn

from layermerge.files import document_digest
from layermerge.planning.candidate import Candidate
from layermerge.planning.ranges import Span
from layermerge.planning.rules import Rules
from layermerge.tables.workloads import neighbour
from layermerge.tracing.inputs import Inputs
from layermerge.tracing.lift import LiftedModule
from layermerge.tracing.operators import operator_name
from layermerge.tracing.structure import MapShape, SubgraphStep
from layermerge.tracing.trace import Trace
from layermerge.tracing.walking import nodes_between


@dataclass(frozen=True)
class Branch:
    """Layers start..end-1 and all that is computed with them beside a shortcut."""

    start: int
    end: int
    shapes: tuple[tuple[int, ...], ...]
    """Of the feature map it reads, and of what else it is given, without the batch."""
    work: str
    """Digest of what it computes: branches that do the same work share one measurement."""
    gate: bool = False
    """Whether it is a gate: a map, what is computed from it, and their product."""

    @property
    def key(self) -> str:
        """Names its row in any table."""
        return f"branch {'x'.join(map(str, self.shapes[0]))} {self.work}"

    @property
    def map_shape(self) -> MapShape:
        channels, height, width = self.shapes[0]
        return channels, height, width

    def inputs(self, batch: int) -> Inputs:
        generator = torch.Generator().manual_seed(0)
        return Inputs(tuple(torch.randn(batch, *shape, generator=generator) for shape in self.shapes), {})

    def kept_by(self, candidate: Candidate) -> bool:
        """Whether the candidate covers the branch's first layer and does not drop the branch: it is charged with the rest."""
        dropped = not candidate.kept and candidate.start <= self.start and self.end <= candidate.end
        if self.gate and (candidate.start, candidate.end) == (self.start, self.end):
            dropped = candidate.replaced == "gate"  # its layers alone may go and leave the gate
        return candidate.start <= self.start < candidate.end and not dropped


@dataclass(frozen=True)
class _Excerpt:
    """The nodes from a fork to its residual add, and what they read from elsewhere: the fork's map first."""

    nodes: tuple[fx.Node, ...]
    reads: tuple[fx.Node, ...]


def branches_of(trace: Trace, rules: Rules | None = None) -> tuple[Branch, ...]:
    """The network's branches that are not chains, outer ones before those inside them; gates where the rules replace them."""
    nodes = {node.name: node for node in trace.module.graph.nodes}
    subgraphs = [block for block in trace.structure.blocks if isinstance(block.body[0], SubgraphStep)]
    found = [_branch(trace, (block.start, block.end), _excerpt(nodes[block.add])) for block in subgraphs]
    if rules is not None and "gates" in rules.replace:
        for gate in sorted(trace.structure.gates, key=lambda one: one.start - one.end):
            found.append(_branch(trace, (gate.start, gate.end), _gate_excerpt(nodes[gate.product]), gate=True))
    return tuple(branch for branch in found if branch is not None)


def _branch(trace: Trace, span: Span, excerpt: _Excerpt, *, gate: bool = False) -> Branch | None:
    shapes = tuple(_without_batch(node) for node in excerpt.reads)
    if any(shape is None for shape in shapes):
        return None
    known = tuple(shape for shape in shapes if shape is not None)
    return Branch(*span, known, _work(trace.module, excerpt), gate)


def branch_maker(trace: Trace, untouched: Callable[[], LiftedModule]) -> Callable[[Branch], nn.Module]:
    """How to cut a branch out of the untouched network, norms folded, between two neighbours; weights are shared with it."""

    def make(branch: Branch) -> nn.Module:
        network, span = untouched(), (branch.start, branch.end)
        nodes = {node.name: node for node in network.graph.nodes}
        if branch.gate:
            gate = trace.structure.gate(*span)
            assert gate is not None
            return _cut_out(network, _gate_excerpt(nodes[gate.product]), branch.map_shape[0])
        block = trace.structure.branch(*span)
        assert block is not None
        return _cut_out(network, _excerpt(nodes[block.add]), branch.map_shape[0])

    return make


def _excerpt(add: fx.Node) -> _Excerpt:
    left, right = add.all_input_nodes
    inside = nodes_between(left, right)
    fork, nodes = (left, inside) if inside else (right, nodes_between(right, left))
    within = {*nodes, fork}
    others = {source for node in nodes for source in node.all_input_nodes if source not in within}
    return _Excerpt((*nodes, add), (fork, *sorted(node for node in others if not _copied(node))))


def _gate_excerpt(product: fx.Node) -> _Excerpt:
    """From the map to its product with what is computed from it."""
    left, right = product.all_input_nodes
    source, value = (right, left) if left.meta["shape"][-2:] == (1, 1) else (left, right)
    return _Excerpt((*nodes_between(source, value), product), (source,))


def _copied(node: fx.Node) -> bool:
    """What an excerpt has a copy of: constants, sizes, and the batch size, which any map tells."""
    if node.op == "placeholder":
        return False
    return _is_batch_size(node) or _traced_size(node) is not None or all(map(_copied, node.all_input_nodes))


def _traced_size(node: fx.Node) -> int | None:
    """The value of a node that is a height or width, or follows from them: tables hold for the traced size."""
    size: int | None = node.meta.get("size")
    return size


def _is_batch_size(node: fx.Node) -> bool:
    return operator_name(node.target) == "sym_size" and node.args[1:] == (0,)


def _without_batch(node: fx.Node) -> tuple[int, ...] | None:
    shape = node.meta.get("shape")
    if not shape or shape[0] is not None or None in shape[1:]:
        return None
    return tuple(shape[1:])


def _work(network: nn.Module, excerpt: _Excerpt) -> str:
    """What the nodes compute, their names aside."""
    place = {node: index for index, node in enumerate((*excerpt.reads, *excerpt.nodes))}

    def told(value: Any) -> Any:
        return f"#{place[value]}" if value in place else _described(network, value)

    steps = []
    for node in excerpt.nodes:
        values = [str(fx.map_arg(value, lambda one: told(one))) for value in (*node.args, *node.kwargs.values())]
        steps.append([_described(network, node), values])
    return document_digest([[node.meta.get("shape") for node in excerpt.reads], steps])


def _described(network: nn.Module, node: fx.Node) -> str:
    kind = repr(network.get_submodule(str(node.target))) if node.op == "call_module" else operator_name(node.target)
    if (size := _traced_size(node)) is not None:
        return str(size)
    return f"{kind} {node.meta.get('shape')}" if node.op != "get_attr" else f"constant {node.meta.get('shape')}"


def _cut_out(network: LiftedModule, excerpt: _Excerpt, channels: int) -> nn.Module:
    graph = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    inputs = [graph.placeholder(f"input_{number}") for number in range(len(excerpt.reads))]
    fork = graph.call_module("before", (inputs[0],))
    copies.update(zip(excerpt.reads, (fork, *inputs[1:]), strict=True))

    def copy(node: fx.Node) -> Any:
        if (size := _traced_size(node)) is not None:
            return size
        if node not in copies:
            if _is_batch_size(node):
                copies[node] = graph.call_function(torch.ops.aten.sym_size.int, (fork, 0))
            else:
                copies[node] = graph.node_copy(node, copy)
        return copies[node]

    for node in excerpt.nodes:
        if _traced_size(node) is None:
            copy(node)
    graph.output(graph.call_module("after", (copies[excerpt.nodes[-1]],)))
    root = nn.Module()
    root.__dict__.update(network.__dict__)
    root._modules = {**network._modules, "before": neighbour(channels), "after": neighbour(channels)}
    return fx.GraphModule(root, graph).float().eval()
