"""How much of a network's convolution work a plan can reach, by removing convs and by merging them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from agreement import call
from layermerge.planning.plan import Plan
from layermerge.tracing.structure import Layer


@dataclass(frozen=True)
class Shares:
    """Of the floating-point operations of all convolutions in the network."""

    removal: float
    """Those of layers that some candidate removes."""
    merging: float
    """Those of layers that some candidate merges with at least one other conv."""


def conv_flops(model: nn.Module, inputs: Any) -> int:
    """Of every convolution that the user's model computes, counted by torch: those that are no layers of ours included."""
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        call(model, inputs)
    counts = counter.get_flop_counts()["Global"].items()
    return sum(count for operator, count in counts if "convolution" in str(operator))


def shares(plan: Plan, total: int, batch: int) -> Shares:
    """`total` is what `conv_flops` counts at this batch size."""
    removed, merged = set[str](), set[str]()
    for candidate in plan.candidates:
        removed.update(set(candidate.layers).difference(candidate.kept))
        if len(candidate.kept) > 1:
            merged.update(candidate.kept)
    work = {layer.name: batch * _flops(layer) for layer in plan.layers}
    return Shares(*(sum(work[name] for name in names) / total for names in (removed, merged)))


def _flops(layer: Layer) -> int:
    """Of a layer for one image: two for each weight and output pixel."""
    channels, height, width = layer.output_shape
    per_pixel = layer.spec.in_channels // layer.spec.groups * layer.spec.kernel[0] * layer.spec.kernel[1]
    return 2 * channels * height * width * per_pixel
