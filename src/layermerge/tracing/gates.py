"""Gates: where a network multiplies a map by one value per channel that it computes from that map (squeeze-excite).

In: the nodes of a lifted graph, its layers and blocks. Out: the gates whose value consecutive layers compute, in any way, as
long as nothing else reads what is on the way and nothing else than the map goes in.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from torch import fx

from layermerge.tracing.constants import is_constant
from layermerge.tracing.operators import Role, Shape
from layermerge.tracing.structure import Block, Gate, Layer
from layermerge.tracing.walking import nodes_between


def find_gates(nodes: Iterable[fx.Node], layers: Sequence[Layer], blocks: Sequence[Block]) -> tuple[Gate, ...]:
    places = {layer.node: index for index, layer in enumerate(layers)}
    adds, spans = {block.add for block in blocks}, {(block.start, block.end) for block in blocks}
    found = []
    for product in nodes:
        for source, value in _operands(product):
            inside = nodes_between(source, value)
            names = tuple(node.name for node in inside)
            indices = sorted(places[name] for name in names if name in places)
            consecutive = indices and indices[-1] - indices[0] == len(indices) - 1
            if not consecutive or not _apart(source, inside, product) or not adds.isdisjoint(names):
                continue
            start, end = indices[0], indices[-1] + 1
            if (start, end) not in spans:
                shape = source.meta["shape"][1:]
                found.append(Gate(start, end, product.name, source.name, value.name, names, shape))
    return tuple(found)


def _operands(product: fx.Node) -> Iterator[tuple[fx.Node, fx.Node]]:
    """A map and what has one value for each of its channels and images, if these are what is multiplied."""
    shape: Shape = product.meta.get("shape") or ()
    if product.meta.get("operator") != "mul" or product.meta["role"] is not Role.BARRIER or len(shape) != 4:
        return
    batch, channels, *size = shape
    operands = [arg for arg in product.args if isinstance(arg, fx.Node)]
    if len(operands) != 2 or None in (channels, *size) or size == [1, 1]:
        return
    for source, value in (operands, operands[::-1]):
        if source.meta.get("shape") == shape and value.meta.get("shape") == (batch, channels, 1, 1):
            yield source, value


def _apart(source: fx.Node, inside: Sequence[fx.Node], product: fx.Node) -> bool:
    """Whether nothing but the product reads what is inside, and nothing but the map and constants are read there."""
    within = {*inside, product}
    read = {arg for node in inside for arg in node.all_input_nodes}
    return all(within.issuperset(node.users) for node in inside) and all(
        node is source or node in within or is_constant(node) for node in read
    )
