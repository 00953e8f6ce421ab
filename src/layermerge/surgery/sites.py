"""Sites: where each region of a rewritten graph begins and ends."""

from __future__ import annotations

from dataclasses import dataclass

from torch import fx

from layermerge.errors import SurgeryError
from layermerge.tracing.operators import Role
from layermerge.tracing.structure import main_input


@dataclass(frozen=True)
class Site:
    """A region in a graph: the map it reads, its nodes in order (the last is its output), and the shifts that join in it."""

    source: fx.Node
    members: tuple[fx.Node, ...]
    shifts: dict[str, fx.Node]

    @property
    def end(self) -> fx.Node:
        return self.members[-1]


def find_site(graph: fx.Graph, number: int) -> Site:
    """Where region `number` lies in the graph as it is now."""
    members = [node for node in graph.nodes if node.meta.get("region") == number]
    inside, read, shifts = set(members), list[fx.Node](), dict[str, fx.Node]()
    for node in members:
        if carried := node.meta.get("carries"):
            shifts[carried] = main_input(node)
            continue
        inputs = [arg for arg in node.args if isinstance(arg, fx.Node)]
        read += inputs if node.meta["role"] is Role.ADD else [main_input(node)]
        if node.meta["role"] is Role.SHIFT:
            joining = next(arg for arg in inputs if arg is not main_input(node))
            shifts |= {} if joining in inside else {node.name: joining}
    outside = {node for node in read if node not in inside}
    if len(outside) != 1:
        raise SurgeryError(f"region {number} reads {len(outside)} feature maps, so it is not one conv; report it")
    return Site(outside.pop(), tuple(members), shifts)
