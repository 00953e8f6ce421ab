"""Walking: what lies between two nodes of a graph."""

from __future__ import annotations

from torch import fx


def nodes_between(fork: fx.Node, end: fx.Node) -> tuple[fx.Node, ...]:
    """All that is computed from `fork` on the way to `end`, which is the last of them; nothing where `end` does not need it."""
    above, waiting = set[fx.Node](), [end]
    while waiting:
        node = waiting.pop()
        if node not in above and fork < node:
            above.add(node)
            waiting += node.all_input_nodes
    needed: dict[fx.Node, None] = {}
    for node in sorted(above):
        if any(source is fork or source in needed for source in node.all_input_nodes):
            needed[node] = None
    return tuple(needed) if end in needed else ()
