"""Added activations: where merging leaves two convs with nothing non-linear between them, one activation comes back.

The rule: a conv is kept in the range, the range lost an activation, and some path from its end reaches a conv before an
activation. It stands behind the residual add, if the range ends in one, and never at the network's output.
"""

from __future__ import annotations

from collections.abc import Iterable

from torch import fx

from layermerge.tracing.operators import Role


def add_activations(graph: fx.Graph, ends: Iterable[tuple[fx.Node, str]]) -> None:
    """For each (end of a range, module of the last activation it lost): calls that module behind the end if needed."""
    for end, module in ends:
        place = _behind_the_add(end)
        if not _meets_a_conv(place):
            continue
        with graph.inserting_after(place):
            activation = graph.call_module(module, (place,))
        activation.meta = {**place.meta, "role": Role.ACTIVATION, "operator": "activation"}
        activation.meta.pop("region", None)
        place.replace_all_uses_with(activation, lambda user, new=activation: user is not new)  # type: ignore[misc]


def _behind_the_add(end: fx.Node) -> fx.Node:
    """The end itself, or the residual add that alone reads it."""
    readers = list(end.users)
    return readers[0] if len(readers) == 1 and readers[0].meta.get("role") is Role.ADD else end


def _meets_a_conv(start: fx.Node) -> bool:
    """Whether some way forward reaches a conv before any activation."""
    seen: set[fx.Node] = set()
    waiting = list(start.users)
    while waiting:
        node = waiting.pop()
        if node in seen or node.meta.get("role") is Role.ACTIVATION:
            continue
        if node.meta.get("role") is Role.CONV or node.meta.get("operator") == "conv2d":
            return True
        seen.add(node)
        waiting.extend(node.users)
    return False
