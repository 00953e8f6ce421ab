"""Concatenations of a merged network: what names a map twice needs it once.

Where layers were removed, several inputs of a concatenation can be the same map. The slices of the conv after it that read
this map then add up, and the concatenation gets smaller or goes.
"""

from __future__ import annotations

import torch
from torch import Tensor, fx, nn

from layermerge.tracing.lift import LiftedModule
from layermerge.tracing.operators import Role

_CHANNELS = (1, -3)


def add_up_repeats(merged: LiftedModule) -> None:
    """Rewrites every concatenation over channels that names a map more than once and that one conv alone reads."""
    for node in list(merged.graph.nodes):
        if (conv := _only_conv(merged, node)) is None:
            continue
        maps, dim = node.args
        sizes = [one.meta["shape"][1] for one in maps]
        sums: dict[fx.Node, Tensor] = {}
        for one, slice_ in zip(maps, torch.split(conv.weight.double(), sizes, dim=1), strict=True):
            sums[one] = sums[one] + slice_ if one in sums else slice_
        weight = torch.cat(list(sums.values()), dim=1).to(conv.weight.dtype)
        conv.weight, conv.in_channels = nn.Parameter(weight), weight.shape[1]
        smaller = maps[0]
        if len(sums) > 1:
            with merged.graph.inserting_before(node):
                smaller = merged.graph.call_function(node.target, (list(sums), dim))
            batch, _, *size = node.meta["shape"]
            smaller.meta = {**node.meta, "shape": (batch, conv.in_channels, *size)}
        node.replace_all_uses_with(smaller)
        merged.graph.erase_node(node)


def _only_conv(merged: LiftedModule, node: fx.Node) -> nn.Conv2d | None:
    """The one conv that reads a concatenation with repeats, where its weight can be cut by inputs."""
    if (
        node.meta.get("operator") != "cat"
        or len(node.args) != 2
        or node.args[1] not in _CHANNELS
        or len(node.users) != 1
    ):
        return None
    maps, (reader,) = node.args[0], node.users
    if not isinstance(maps, (list, tuple)) or len(set(maps)) == len(maps) or reader.meta["role"] is not Role.CONV:
        return None
    conv = merged.get_submodule(str(reader.target))
    assert isinstance(conv, nn.Conv2d)
    return conv if conv.groups == 1 else None
