"""Activations written by hand: `x * sigmoid(x)`, `x / (1 + |x|)`, `x * relu6(x + 3) / 6` and every other of that form.

In: the captured calls with their roles. Out: the calls that together are one element-wise function of one feature map, each
such function to become one activation that computes what the user wrote, bit for bit. No formula is known by name: where the
operands of a product, quotient, sum, difference or choice are element-wise functions of the same map, so is the result.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from torch import fx, nn

from layermerge.tracing.operators import Role

_NONLINEAR_JOINS = frozenset({"mul", "div", "maximum", "minimum", "where"})
_JOINS = _NONLINEAR_JOINS | {"add", "sub"}


@dataclass(frozen=True)
class Function:
    """An element-wise function of a map: the map, and the calls that compute it in order; the last gives the result."""

    source: fx.Node
    calls: tuple[fx.Node, ...]
    joins: bool = False
    """Whether several functions of the map meet in it."""

    def as_module(self) -> nn.Module:
        graph = fx.Graph()
        values = {self.source: graph.placeholder("x")}
        for call in self.calls:
            values[call] = graph.node_copy(call, values.__getitem__)
            values[call].meta = {}
        graph.output(values[self.calls[-1]])
        return fx.GraphModule(nn.Module(), graph)


def hand_written(calls: Iterable[fx.Node], lone: Iterable[fx.Node]) -> dict[fx.Node, Function]:
    """The largest functions that join several, by their last call, and those of `lone`: activations that torch.nn lacks."""
    functions: dict[fx.Node, Function] = {}
    for node in calls:
        function = _of_one_map(node, functions) or _joined(node, functions)
        if function is not None:
            functions[node] = function
    alone, taken = set(lone), set[fx.Node]()
    found: dict[fx.Node, Function] = {}
    for node, function in reversed(functions.items()):
        if node not in taken and (node in alone or function.joins):
            found[node] = function
            taken.update(function.calls)
    return found


def _of_one_map(node: fx.Node, functions: dict[fx.Node, Function]) -> Function | None:
    """An activation without weights, or a number; one that scales a function of several calls belongs to it."""
    role, sources = node.meta["role"], node.all_input_nodes
    if role not in (Role.ACTIVATION, Role.SCALE) or len(sources) != 1 or len(node.meta["shape"] or ()) != 4:
        return None
    (source,) = sources
    before = functions.get(source)
    scales = role is Role.SCALE and node.meta["operator"] in ("mul", "div")
    if scales and before is not None and before.joins and len(source.users) == 1:
        return Function(before.source, (*before.calls, node), joins=True)
    return Function(source, (node,))


def _joined(node: fx.Node, functions: dict[fx.Node, Function]) -> Function | None:
    operands = [arg for arg in node.args if isinstance(arg, fx.Node)]
    if node.meta["operator"] not in _JOINS or len(operands) < 2 or len(node.meta["shape"] or ()) != 4:
        return None
    ways = [_way_back(operand, functions) for operand in operands]
    fork = next((place for place in ways[0] if all(place in way for way in ways)), None)
    if fork is None or fork.meta["constant"]:
        return None
    inside = {call for way in ways for end in way[: way.index(fork)] for call in functions[end].calls}
    bends = node.meta["operator"] in _NONLINEAR_JOINS or any(call.meta["role"] is Role.ACTIVATION for call in inside)
    if not bends or any(user is not node and user not in inside for call in inside for user in call.users):
        return None
    return Function(fork, (*sorted(inside), node), joins=True)


def _way_back(node: fx.Node, functions: dict[fx.Node, Function]) -> list[fx.Node]:
    way = [node]
    while way[-1] in functions:
        way.append(functions[way[-1]].source)
    return way
