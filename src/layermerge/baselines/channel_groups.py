"""Channel groups: which channels of a network go together, and which have to stay.

In: a module and its inputs. Out: groups of channels that one layer cannot lose without the others (residual adds,
concatenations, depthwise convs, norms), found by Torch-Pruning's dependency graph, each with what it is divided by.
Guarantees: what reaches the network's inputs or outputs is in no group, whatever the network looks like.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from layermerge.errors import require_package
from layermerge.tracing.inputs import Inputs


def torch_pruning() -> Any:
    return require_package("torch_pruning", "channel pruning", "layermerge[baselines]")


@dataclass(frozen=True)
class ChannelGroup:
    """Channels that go together, and into how many parts of one size norms, grouped convs and heads divide them."""

    graph: Any
    found: Any
    """The group as Torch-Pruning has it, with all channels of the layer that it starts from."""
    parts: int

    def remove(self, channels: list[int]) -> None:
        """Takes these channels of the first layer away, and whatever goes with them elsewhere."""
        root = self.found[0].dep
        self.graph.get_pruning_group(root.target.module, root.handler, channels).prune()


def find_groups(model: nn.Module, inputs: Inputs) -> list[ChannelGroup]:
    """All groups that may lose channels. The model must be in eval mode, with gradients."""
    seams = _Seams()

    def run(_model: nn.Module, _inputs: object) -> list[Tensor]:
        args, kwargs = pytree.tree_map(seams.mark, (inputs.args, dict(inputs.kwargs)))
        with seams:
            outputs = pytree.tree_leaves(model(*args, **kwargs))
        return [seams.mark(leaf) for leaf in outputs if isinstance(leaf, Tensor) and leaf.grad_fn is not None]

    graph = torch_pruning().DependencyGraph()
    graph.build_dependency(model, example_inputs=(), forward_fn=run, verbose=False)
    groups = []
    for found in graph.get_all_groups():
        nodes = [dependency.target for dependency, _ in found]
        if not any(node.grad_fn in seams.ends for node in nodes):
            parts = math.lcm(*(_divisor(graph, node.module) * seams.heads.get(node.grad_fn, 1) for node in nodes))
            groups.append(ChannelGroup(graph, found, parts))
    return groups


class _Seams(TorchFunctionMode):
    """Finds again, by their backward functions, the places that limit what may go.

    The network's ends are marked by an operator of ours; where attention runs, the number of heads is noted, as each head
    has to lose as many channels.
    """

    def __init__(self) -> None:
        super().__init__()
        self.ends: set[object] = set()
        self.heads: dict[object, int] = {}

    def mark(self, leaf: Any) -> Any:
        """The same values, passed through an operator that belongs to no layer."""
        if not isinstance(leaf, Tensor) or not leaf.is_floating_point():
            return leaf
        passed = (leaf if leaf.requires_grad else leaf.detach().requires_grad_()) * 1
        self.ends.add(passed.grad_fn)
        return passed

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        del types
        result = func(*args, **(kwargs or {}))
        if func is scaled_dot_product_attention and result.dim() > 3:
            self.heads[result.grad_fn] = result.shape[-3]
        return result


def _divisor(graph: Any, layer: nn.Module) -> int:
    """What the number of a layer's channels has to be a multiple of."""
    if isinstance(layer, nn.modules.conv._ConvNd) and layer.groups == layer.in_channels == layer.out_channels:
        return 1  # depthwise: a channel takes its group along
    pruner = graph.get_pruner_of_module(layer)
    return math.lcm(pruner.get_in_channel_groups(layer), pruner.get_out_channel_groups(layer))
