"""Walk: a network run piece by piece over batches, as its layers become final one after another.

In: a graph module and batches of its inputs. Out: values of nodes, batch by batch. What has been computed is held and gone on
from, up to a number of bytes in all; batches beyond it are computed from the start each time. A walk may begin where another
stands, of a network that computes the same so far.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx
from torch.utils import _pytree as pytree

from layermerge.tracing.inputs import Inputs
from layermerge.tracing.lift import LiftedModule

Order = Callable[[fx.Graph], list[fx.Node]]


def region_order(graph: fx.Graph) -> list[fx.Node]:
    """The graph's nodes with those of a region together, where its last one stands: nothing between reads them."""
    members: dict[int, list[fx.Node]] = {}
    for node in graph.nodes:
        if "region" in node.meta:
            members.setdefault(node.meta["region"], []).append(node)
    ordered: list[fx.Node] = []
    for node in graph.nodes:
        own = members.get(node.meta.get("region", -1), [node])
        ordered += own if node is own[-1] else []
    return ordered


@dataclass(frozen=True)
class _Held:
    """The values that are still needed behind the first `done` nodes, and their size."""

    done: int
    values: dict[fx.Node, Any]
    size: int


class Walk:
    """Runs a network up to a node; what lies before it must not change any more."""

    def __init__(self, module: LiftedModule, batches: Sequence[Inputs], most_bytes: int) -> None:
        self.module, self.batches, self.most_bytes = module, batches, most_bytes
        self._held: dict[int, _Held] = {}
        self._begin: Callable[[int], _Held] = lambda number: _Held(0, self._inputs(number), 0)
        self.refresh()

    def behind(self, module: LiftedModule, twins: Mapping[fx.Node, fx.Node], first: fx.Node, most_bytes: int) -> Walk:
        """A walk of another network that begins before its node `first`; `twins` are my nodes that compute the same."""
        walk = Walk(module, self.batches, most_bytes)
        done = walk.index[first]
        needed = [node for node in walk.order[:done] if walk._last_use[node] >= done]
        mine = [twins[node] for node in needed]
        until = max((self.index[node] + 1 for node in mine), default=0)

        def begin(number: int) -> _Held:
            values = self._run(number, until, mine)
            return _Held(done, {node: values[twin] for node, twin in zip(needed, mine, strict=True)}, 0)

        walk._begin = begin
        return walk

    def refresh(self) -> None:
        """To be called when nodes that have not been run yet were replaced."""
        self.order = region_order(self.module.graph)
        self.index = {node: place for place, node in enumerate(self.order)}
        self._last_use = {
            node: max((self.index[user] for user in node.users), default=place) for node, place in self.index.items()
        }
        self._interpreter = fx.Interpreter(self.module)
        self._interpreter.extra_traceback = False

    def each(self, wanted: Sequence[fx.Node], before: fx.Node | None = None) -> Iterator[list[Tensor]]:
        """The values of some nodes for each batch; all nodes before `before` are run, or those up to the last one wanted."""
        done = max(self.index[node] + 1 for node in wanted) if before is None else self.index[before]
        for number in range(len(self.batches)):
            values = self._run(number, done, wanted)
            yield [values[node] for node in wanted]

    def returned(self) -> Iterator[Any]:
        """What the network returns for each batch, in its own structure."""
        for (given,) in self.each([self.order[-1]]):
            yield self.module.graph.process_outputs(given)

    def outputs(self) -> Iterator[list[Tensor]]:
        """The floating-point tensors of what it returns, in order."""
        for given in self.returned():
            leaves = pytree.tree_leaves(given)
            yield [leaf for leaf in leaves if isinstance(leaf, Tensor) and leaf.is_floating_point()]

    def _run(self, number: int, done: int, wanted: Collection[fx.Node]) -> dict[fx.Node, Any]:
        held = self._held.get(number) or self._begin(number)
        if held.done > done or any(node not in held.values and self.index[node] < held.done for node in wanted):
            held = self._begin(number)
        values = dict(held.values)
        self._interpreter.env = values
        with torch.no_grad():
            for place in range(held.done, done):
                node = self.order[place]
                if node.op != "placeholder":
                    values[node] = self._interpreter.run_node(node)
                for source in node.all_input_nodes:
                    if self._last_use[source] <= place and source not in wanted:
                        values.pop(source, None)
        self._hold(number, done, values, wanted)
        return values

    def _inputs(self, number: int) -> dict[fx.Node, Any]:
        inputs = self.batches[number]
        leaves = pytree.tree_leaves((inputs.args, dict(inputs.kwargs)))
        places = [node for node in self.order if node.op == "placeholder"]
        return {node: self._fit(leaf) for node, leaf in zip(places, leaves, strict=True)}

    def _fit(self, leaf: Any) -> Any:
        if not isinstance(leaf, Tensor):
            return leaf
        device = self.module.device
        leaf = leaf.to(device, self.module.dtype) if leaf.is_floating_point() else leaf.to(device)
        # Depthwise convs are a third faster for it, and nothing is slower.
        return leaf.contiguous(memory_format=torch.channels_last) if leaf.ndim == 4 else leaf

    def _hold(self, number: int, done: int, values: dict[fx.Node, Any], wanted: Collection[fx.Node]) -> None:
        self._held.pop(number, None)
        live = {node: value for node, value in values.items() if self._last_use[node] >= done or node in wanted}
        size = sum(leaf.nbytes for leaf in pytree.tree_leaves(list(live.values())) if isinstance(leaf, Tensor))
        if size + sum(held.size for held in self._held.values()) <= self.most_bytes:
            self._held[number] = _Held(done, live, size)
