"""Constants: values of a graph that depend on parameters and buffers alone, such as a scale or a standardised weight.

They are marked once, when the graph is lifted, and evaluated from the tensors that a module has now.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, fx, nn

from layermerge.tracing.aliases import written_arguments
from layermerge.tracing.computed_conv import ComputedConv2d
from layermerge.tracing.modes import evaluating


def mark_constants(graph: fx.Graph) -> None:
    """Notes under `meta["constant"]` whether each node reads no input, draws no random number and is never written to."""
    written = ancestors(target for node in graph.nodes for target in written_arguments(node))
    for node in graph.nodes:
        fixed = _is_deterministic(node) and all(source.meta["constant"] for source in node.all_input_nodes)
        node.meta["constant"] = fixed and node not in written


def is_constant(value: object) -> bool:
    """Whether an argument of a call is a marked node."""
    return isinstance(value, fx.Node) and bool(value.meta.get("constant"))


def ancestors(nodes: Iterable[fx.Node]) -> set[fx.Node]:
    """The nodes and all that they are computed from."""
    found, waiting = set[fx.Node](), list(nodes)
    while waiting:
        node = waiting.pop()
        if node not in found:
            found.add(node)
            waiting += node.all_input_nodes
    return found


def _is_deterministic(node: fx.Node) -> bool:
    if isinstance(node.target, torch._ops.OpOverload):
        return not node.target._schema.is_mutable and torch.Tag.nondeterministic_seeded not in node.target.tags
    return node.op == "get_attr" or node.target is operator.getitem


def evaluate(module: fx.GraphModule, node: fx.Node) -> Tensor:
    """The value of a constant node in float64 and eval mode; without data where the module's parameters have none."""
    value = _Evaluation(module).value(node)
    assert isinstance(value, Tensor)
    return value


def conv_tensors(module: fx.GraphModule, call: fx.Node) -> tuple[Tensor, Tensor | None]:
    """Weight and bias of the conv that a node calls, in float64, whether the conv owns them or they are computed."""
    conv = module.get_submodule(str(call.target))
    assert isinstance(conv, nn.Conv2d)
    if isinstance(conv, ComputedConv2d):
        weight, bias = (evaluate(module, arg) if isinstance(arg, fx.Node) else None for arg in call.args[1:])
        assert weight is not None
        return weight, bias
    return conv.weight.detach().double(), None if conv.bias is None else conv.bias.detach().double()


class _Evaluation:
    def __init__(self, module: fx.GraphModule) -> None:
        self.module = module
        self.values: dict[fx.Node, Any] = {}
        self.weightless = next((parameter.is_meta for parameter in module.parameters()), False)

    def value(self, node: fx.Node) -> Any:
        if node not in self.values:
            self.values[node] = self._computed(node)
        return self.values[node]

    def _tensors(self, node: fx.Node) -> dict[str, Tensor]:
        """What the node reads from the module tree: one tensor, or those of the module that it calls."""
        path = str(node.target)
        if node.op == "get_attr":
            parent, _, name = path.rpartition(".")
            return {name: getattr(self.module.get_submodule(parent), name)}
        if node.op != "call_module":
            return {}
        part = self.module.get_submodule(path)
        return dict([*part.named_parameters(), *part.named_buffers()])

    def _computed(self, node: fx.Node) -> Any:
        tensors = {name: self._widened(tensor) for name, tensor in self._tensors(node).items()}
        if node.op == "get_attr":
            return next(iter(tensors.values()))
        args, kwargs = fx.map_arg((node.args, dict(node.kwargs)), self.value)
        with torch.no_grad():
            if node.op == "call_function":
                assert callable(node.target)
                return node.target(*args, **kwargs)
            part: nn.Module = self.module.get_submodule(str(node.target))
            with evaluating(part):
                return torch.func.functional_call(part, tensors, args, kwargs)

    def _widened(self, tensor: Tensor) -> Tensor:
        wide = tensor.detach().double() if tensor.is_floating_point() else tensor.detach()
        return wide.to("meta") if self.weightless else wide
