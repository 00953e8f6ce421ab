"""Independent answers to compare with: torch's own convolutions, and brute force over subsets."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, combinations
from math import gcd, prod

import torch
import torch.nn.functional as F
from torch import Tensor

from layermerge.conv import ConvSpec, Pair, Sides


def relative_difference(expected: Tensor, actual: Tensor) -> float:
    """max|a - b| / max|a|."""
    assert expected.shape == actual.shape, f"shapes {tuple(expected.shape)} and {tuple(actual.shape)}"
    if expected.numel() == 0:
        return 0.0
    a, b = expected.detach().double(), actual.detach().double()
    return float((a - b).abs().max() / a.abs().max().clamp_min(1e-30))


# -- convolutions


@dataclass(frozen=True)
class Conv:
    """A convolution with float64 weights and no bias."""

    spec: ConvSpec
    weight: Tensor

    @staticmethod
    def random(spec: ConvSpec, seed: int) -> Conv:
        generator = torch.Generator().manual_seed(seed)
        shape = (spec.out_channels, spec.in_channels // spec.groups, *spec.kernel)
        return Conv(spec, torch.randn(shape, dtype=torch.float64, generator=generator))

    def valid(self, x: Tensor) -> Tensor:
        """Applied without its padding."""
        return F.conv2d(x, self.weight, None, self.spec.stride, 0, self.spec.dilation, self.spec.groups)

    def padded(self, x: Tensor) -> Tensor:
        return self.valid(pad(x, self.spec.padding))


def pad(x: Tensor, sides: Sides) -> Tensor:
    top, bottom, left, right = sides
    return F.pad(x, (left, right, top, bottom))


def reach(specs: Sequence[ConvSpec], axis: int) -> int:
    """How many input pixels one output pixel of the sequence spans along an axis."""
    steps = (prod(before.stride[axis] for before in specs[:place]) for place in range(len(specs)))
    return 1 + sum(
        (spec.kernel[axis] - 1) * spec.dilation[axis] * step for spec, step in zip(specs, steps, strict=True)
    )


def impulse_kernel(convs: Sequence[Conv]) -> Tensor:
    """The dense kernel of a sequence of convs, each without padding: its answer to every unit impulse."""
    specs = [conv.spec for conv in convs]
    channels, height, width = specs[0].in_channels, reach(specs, 0), reach(specs, 1)
    count = channels * height * width
    answer = torch.eye(count, dtype=torch.float64).reshape(count, channels, height, width)
    for conv in convs:
        answer = conv.valid(answer)
    assert answer.shape == (count, specs[-1].out_channels, 1, 1)
    return answer.reshape(channels, height, width, -1).permute(3, 0, 1, 2).contiguous()


def placed_kernel(conv: Conv, front: Pair, size: Pair) -> Tensor:
    """The conv's kernel, dense and ungrouped, inside a larger one whose padding starts `front` pixels earlier."""
    spec = conv.spec
    dense = torch.zeros(spec.out_channels, spec.in_channels, *size, dtype=torch.float64)
    ins, outs = spec.in_channels // spec.groups, spec.out_channels // spec.groups
    for out in range(spec.out_channels):
        for within in range(ins):
            source = out // outs * ins + within
            for row in range(spec.kernel[0]):
                for column in range(spec.kernel[1]):
                    y = front[0] - spec.padding[0] + row * spec.dilation[0]
                    x = front[1] - spec.padding[2] + column * spec.dilation[1]
                    dense[out, source, y, x] += conv.weight[out, within, row, column]
    return dense


def grouped_kernel(dense: Tensor, spec: ConvSpec) -> Tensor:
    """The dense kernel as a conv of geometry `spec` stores it; fails where a weight has no place in that geometry."""
    height, width = ((size - 1) * step + 1 for size, step in zip(spec.kernel, spec.dilation, strict=True))
    assert dense.shape[2:] == (height, width), f"{tuple(dense.shape[2:])} spans, {spec} holds {(height, width)}"
    taps = dense[:, :, :: spec.dilation[0], :: spec.dilation[1]]
    ins, outs = spec.in_channels // spec.groups, spec.out_channels // spec.groups
    blocks = [taps[group * outs : (group + 1) * outs, group * ins : (group + 1) * ins] for group in range(spec.groups)]
    stored = torch.cat(blocks)
    assert torch.isclose(dense.abs().sum(), stored.abs().sum(), rtol=1e-12), "weights outside taps or groups"
    return stored


# -- brute force over kept sets


@dataclass(frozen=True)
class ChainConv:
    """What decides whether a conv of a plain chain can be kept, removed and merged."""

    kernel: Pair
    stride: Pair
    padding: Pair
    l1: float
    irreducible: bool
    groups: int = 1


Geometry = tuple[int, int, int]


def _subsets(indices: Sequence[int]) -> Iterator[tuple[int, ...]]:
    return chain.from_iterable(combinations(indices, size) for size in range(len(indices) + 1))


def best_kept_sets(convs: Sequence[ChainConv], max_kernel: int | None) -> dict[Geometry | None, float]:
    """For each (kernel height, width, groups) that some legal subset reaches, its largest L1 sum; None: nothing kept."""
    best: dict[Geometry | None, float] = {}
    must = {index for index, conv in enumerate(convs) if conv.irreducible}
    for kept in _subsets(range(len(convs))):
        if not must <= set(kept) or not _legal([convs[index] for index in kept]):
            continue
        geometry = _merged([convs[index] for index in kept])
        if geometry and max_kernel is not None and len(kept) > 1 and max(geometry[:2]) > max_kernel:
            continue
        best[geometry] = max(best.get(geometry, 0.0), sum(convs[index].l1 for index in kept))
    return best


def _legal(kept: Sequence[ChainConv]) -> bool:
    """After a kept strided conv only 1x1 convs are kept."""
    strided = [place for place, conv in enumerate(kept) if conv.stride != (1, 1)]
    return not strided or all(conv.kernel == (1, 1) for conv in kept[strided[0] + 1 :])


def _merged(kept: Sequence[ChainConv]) -> Geometry | None:
    if not kept:
        return None
    height = 1 + sum(conv.kernel[0] - 1 for conv in kept)
    width = 1 + sum(conv.kernel[1] - 1 for conv in kept)
    return height, width, gcd(*(conv.groups for conv in kept))
