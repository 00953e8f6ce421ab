"""Nested graphs: the parts of forward() under `torch.no_grad()` or `torch.autocast`, brought back into the flat graph.

In: an exported graph, in which each such part is a graph of its own. Out: one flat graph. What leaves a part without gradients
is detached, and its nodes are marked: `is_frozen`. A part with autocast switched off needs no mark, one with it on is refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, fx

from layermerge.errors import TraceError
from layermerge.tracing.aliases import written_arguments

_FROZEN = "without gradients"


def is_frozen(node: fx.Node) -> bool:
    """Whether the user's code computes this node under `torch.no_grad()`."""
    return bool(node.meta.get(_FROZEN))


def inline_nested(flat: fx.GraphModule) -> None:
    """Puts every nested graph in the place of its call."""
    for node in list(flat.graph.nodes):
        name = getattr(node.target, "__name__", "")
        if node.op != "call_function" or not isinstance(node.target, torch._ops.HigherOrderOperator):
            continue
        if name == "wrap_with_set_grad_enabled":
            enabled, part, *operands = node.args
            _Inlining(flat, node, frozen=not enabled).replace_call(_nested(flat, part), operands)
        elif name == "wrap_with_autocast":
            device, dtype, enabled, _cache, part, *operands = node.args
            if enabled:
                raise TraceError(
                    f"forward() switches on torch.autocast({str(device)!r}, {dtype}); a network of two precisions "
                    "does not merge exactly; take it out of forward() and put it around the call of the network"
                )
            _Inlining(flat, node, frozen=is_frozen(node)).replace_call(_nested(flat, part), operands)
    for node in reversed(flat.graph.nodes):
        if (
            node.op == "get_attr"
            and not node.users
            and isinstance(getattr(flat, str(node.target), None), fx.GraphModule)
        ):
            flat.graph.erase_node(node)


def _nested(flat: fx.GraphModule, part: Any) -> fx.GraphModule:
    module = flat.get_submodule(str(part.target))
    assert isinstance(module, fx.GraphModule)
    inline_nested(module)
    return module


class _Inlining:
    def __init__(self, flat: fx.GraphModule, call: fx.Node, *, frozen: bool) -> None:
        self.graph = flat.graph
        self.call = call
        self.frozen = frozen
        self.outer: dict[fx.Node, fx.Node] = {}

    def replace_call(self, part: fx.GraphModule, operands: Sequence[Any]) -> None:
        values: dict[fx.Node, Any] = {}
        waiting = iter(operands)
        results: Any = ()
        with self.graph.inserting_before(self.call):
            for node in part.graph.nodes:
                if node.op == "placeholder":
                    values[node] = next(waiting)
                elif node.op == "output":
                    results = [self._leaving(value, values) for value in node.args[0]]
                else:
                    values[node] = self.graph.node_copy(node, values.__getitem__)
                    if self.frozen:
                        values[node].meta[_FROZEN] = True
        for reader in list(self.call.users):
            reader.replace_all_uses_with(results[reader.args[1]])
            self.graph.erase_node(reader)
        self.graph.erase_node(self.call)

    def _leaving(self, node: Any, values: dict[fx.Node, Any]) -> Any:
        """What the graph around reads: a tensor of its own that the part only wrote to keeps its gradients."""
        same = node
        while isinstance(same, fx.Node) and (written := written_arguments(same)):
            same = written[0]
        inside = values.get(node, node)
        if not isinstance(node, fx.Node) or not self.frozen or same.op == "placeholder" or not _has_gradients(node):
            return values.get(same, inside) if isinstance(same, fx.Node) and same.op == "placeholder" else inside
        detached = self.graph.call_function(torch.ops.aten.detach.default, (inside,))
        detached.meta = {key: value for key, value in inside.meta.items() if key != _FROZEN}
        return detached


def _has_gradients(node: fx.Node) -> bool:
    value = node.meta.get("val")
    return isinstance(value, Tensor) and (value.is_floating_point() or value.is_complex())
