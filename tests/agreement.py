"""Whether two networks compute the same: at their outputs, and at every place that both graphs still have."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.utils import _pytree as pytree

from layermerge.tracing.inputs import Inputs
from oracles import relative_difference


def call(model: nn.Module, inputs: Any) -> Any:
    if isinstance(inputs, dict):
        return model(**inputs)
    return model(*inputs) if isinstance(inputs, (tuple, list)) else model(inputs)


def tensors(output: Any) -> list[Tensor]:
    return [leaf for leaf in pytree.tree_leaves(output) if isinstance(leaf, Tensor)]


def worst(expected: Any, actual: Any) -> float:
    pairs = list(zip(tensors(expected), tensors(actual), strict=True))
    assert pairs
    return max(relative_difference(a, b) for a, b in pairs)


def same_bits(expected: Any, actual: Any) -> bool:
    return all(torch.equal(a, b) for a, b in zip(tensors(expected), tensors(actual), strict=True))


def to_double(inputs: Any) -> Any:
    return pytree.tree_map(
        lambda leaf: leaf.double() if isinstance(leaf, Tensor) and leaf.is_floating_point() else leaf, inputs
    )


def same_outputs(expected: nn.Module, actual: nn.Module, inputs: Any) -> bool:
    """Whether two networks compute the same, but for ten times the first one's own rounding error, or 1e-5.

    Equal weights need not give equal bits: which kernel runs depends on the processor and on how memory is aligned.
    """
    with torch.no_grad():
        own, other = call(expected, inputs), call(actual, inputs)
        exact = call(copy.deepcopy(expected).double(), to_double(inputs))
    return worst(own, other) <= max(1e-5, 10 * worst(exact, own))


class _Reader(fx.Interpreter):
    """Runs a graph and keeps what every node reads, by the node's name.

    A network in float64 stays there, also where it makes float32 of a value whatever its weights are.
    """

    def __init__(self, module: fx.GraphModule) -> None:
        super().__init__(module)
        self.read: dict[str, list[Tensor]] = {}
        self.wide = any(parameter.dtype == torch.float64 for parameter in module.parameters())

    def run_node(self, n: fx.Node) -> Any:
        args, kwargs = self.fetch_args_kwargs_from_env(n)
        if n.op not in ("placeholder", "get_attr") and n.target is not getattr:  # which reads a dtype or a device
            self.read[n.name] = [leaf for leaf in tensors((args, kwargs)) if leaf.is_floating_point()]
        value = super().run_node(n)
        return to_double(value) if self.wide else value


def features(module: fx.GraphModule, inputs: Any) -> dict[str, list[Tensor]]:
    given = Inputs.of(inputs)
    reader = _Reader(module)
    with torch.no_grad():
        reader.run(*pytree.tree_leaves((given.args, dict(given.kwargs))), enable_io_processing=False)
    return {name: read for name, read in reader.read.items() if read}


def _signatures(module: fx.GraphModule) -> dict[str, tuple[str, str]]:
    return {node.name: (node.op, str(node.target)) for node in module.graph.nodes}


def differences(expected: fx.GraphModule, actual: fx.GraphModule, inputs: Any) -> dict[str, float]:
    """For every node that both graphs have, how far what it reads differs; the outputs are what node `output` reads."""
    return feature_differences(expected, features(expected, inputs), actual, features(actual, inputs))


def feature_differences(
    expected: fx.GraphModule,
    expected_read: dict[str, list[Tensor]],
    actual: fx.GraphModule,
    actual_read: dict[str, list[Tensor]],
) -> dict[str, float]:
    ours, theirs = _signatures(expected), _signatures(actual)
    common = [name for name in expected_read if name in actual_read and ours[name] == theirs[name]]
    assert "output" in common
    return {name: worst(expected_read[name], actual_read[name]) for name in common}
