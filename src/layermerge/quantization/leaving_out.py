"""Leaving out: layers that stay in float32, because in integers they cost more than is allowed.

How much a layer hurts is read off the outputs, noise against signal, in two ways: with it alone in float32, which shows what
its weights do; and with it alone in integers, which shows what rounding the maps around it does, to which its neighbours would
round them too. Those that hurt most are left out together, as few as it takes, in the order that needs fewer.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from layermerge.errors import ArtifactError
from layermerge.quantization.network import Network
from layermerge.runtimes.int8_file import WEIGHTED, Model

_ROUNDING = (*WEIGHTED, "Add", "Mul", "Concat", "Sigmoid", "HardSigmoid", "Softmax", "LayerNormalization", "Where")
"""Operators that round in integers; others only pass on what was rounded."""


def leave_out(
    model: Model, loss_without: Callable[[Collection[str]], float], loss: float, most: float
) -> tuple[str, ...]:
    """As few nodes as bring the loss to `most`. `loss_without` is the loss with these nodes in float32.

    Costs two passes over the held-out images for each node that rounds, and some more.
    """
    if loss <= most:
        return ()
    nodes = [node.name for node in model.graph.node if node.op_type in _ROUNDING]
    left_alone = {name: loss_without((name,)) for name in nodes}
    rounded_alone = {name: loss_without([other for other in nodes if other != name]) for name in nodes}
    orders = sorted(nodes, key=lambda name: left_alone[name]), sorted(nodes, key=lambda name: -rounded_alone[name])
    found = min((_fewest(order, lambda some: loss_without(some) <= most) for order in orders), key=_length)
    weighted = {node.name for node in model.graph.node if node.op_type in WEIGHTED}
    if found is None or weighted <= set(found):
        raise ArtifactError(
            f"in integers the outputs are off by {loss:.2g} of their size (squared), and to get below {most:g} every layer "
            "would have to stay in float32; allow a larger loss, or serve float32"
        )
    return found


def _fewest(worst_first: Sequence[str], enough: Callable[[Collection[str]], bool]) -> tuple[str, ...] | None:
    """The shortest beginning of the list that is enough, by halving; it was tried itself. None where all are not."""
    too_few, most = 0, len(worst_first)
    if not enough(worst_first):
        return None
    while most - too_few > 1:
        middle = (too_few + most) // 2
        if enough(worst_first[:middle]):
            most = middle
        else:
            too_few = middle
    return tuple(worst_first[:most])


def _length(found: tuple[str, ...] | None) -> float:
    return float("inf") if found is None else len(found)


def layer_names(model: Model, nodes: Collection[str]) -> tuple[str, ...]:
    """As users know them, in the order in which they run: by the module of the weights, or by the node."""
    known = {layer.node.name: layer.name for layer in Network(model).layers}
    return tuple(known.get(node.name, node.name) for node in model.graph.node if node.name in nodes)
