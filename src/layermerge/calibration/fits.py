"""Fits: the correction of a conv that brings its output nearest to a target, in closed form. Tensors in, tensors out.

A fit is ridge regression of the residual target - conv(x) on what the conv reads, so the ridge pulls toward the kernel that
is there: a kernel that is right already stays as it is, bit for bit. What is kept of the images are `Moments`, sums over all
of them in float64; memory does not grow with their number.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import prod

import torch
from torch import Tensor
from torch.nn import functional as F

from layermerge.conv import ConvSpec
from layermerge.surgery.kernels import Kernel
from layermerge.surgery.rewrite import FitForm

MOST_UNKNOWNS = 4096
"""Of one group, and the root of all entries of the Gram matrices: 128 MiB of them."""
RIDGES = (1e-6, 1e-4, 1e-2, 1.0)
"""In units of the features' mean square."""
_BLOCK = 1 << 22
"""Entries of a block of patches: 32 MiB in float64."""

Block = tuple[Tensor, Tensor]
"""Features (groups, unknowns, places), the last of them 1; residuals (groups, outputs, places)."""


def choose_form(spec: ConvSpec, places: int) -> FitForm:
    """The largest form whose Gram matrix is small enough and whose unknowns are half as many as the places, or fewer."""
    sizes: dict[FitForm, tuple[int, int]] = {
        "kernel": (spec.groups, spec.in_channels // spec.groups * prod(spec.kernel) + 1),
        "mixing": (spec.groups, spec.out_channels // spec.groups + 1),
    }
    for form, (groups, unknowns) in sizes.items():
        small = unknowns - 1 <= MOST_UNKNOWNS and groups * (unknowns - 1) ** 2 <= MOST_UNKNOWNS**2
        if small and 2 * unknowns <= places:
            return form
    return "affine"


def apply_kernel(kernel: Kernel, x: Tensor, shifts: dict[str, Tensor]) -> Tensor:
    """What a kernel makes of a map, in the map's dtype."""
    spec = kernel.spec
    out = F.conv2d(_padded(x, spec), kernel.weight.to(x), kernel.bias.to(x), spec.stride, 0, spec.dilation, spec.groups)
    for name, matrix in kernel.shifts.items():
        out = out + F.conv2d(shifts[name], matrix[:, :, None, None].to(x))
    return out


def _padded(x: Tensor, spec: ConvSpec) -> Tensor:
    top, bottom, left, right = spec.padding
    return F.pad(x, (left, right, top, bottom)) if any(spec.padding) else x


def blocks(form: FitForm, spec: ConvSpec, x: Tensor, output: Tensor, residual: Tensor) -> Iterator[Block]:
    """Features and residuals of one batch, in float64, a bounded number of places at a time."""
    if form == "kernel":
        yield from _patches(spec, x, residual)
        return
    groups = spec.groups if form == "mixing" else spec.out_channels
    yield _with_ones(_by_group(output.double(), groups)), _by_group(residual.double(), groups)


def _patches(spec: ConvSpec, x: Tensor, residual: Tensor) -> Iterator[Block]:
    padded, (height, width) = _padded(x, spec), residual.shape[2:]
    reach = (spec.kernel[0] - 1) * spec.dilation[0] + 1
    row = spec.in_channels * prod(spec.kernel) * width
    rows = max(1, min(height, _BLOCK // row))
    count = max(1, _BLOCK // (row * rows))
    for first in range(0, len(x), count):
        for top in range(0, height, rows):
            bottom = min(height, top + rows)
            window = padded[first : first + count, :, top * spec.stride[0] : (bottom - 1) * spec.stride[0] + reach]
            taken = F.unfold(window.double(), spec.kernel, spec.dilation, 0, spec.stride)
            taken = taken.reshape(len(window), -1, bottom - top, taken.shape[2] // (bottom - top))[..., :width]
            wanted = residual[first : first + count, :, top:bottom].double()
            yield _with_ones(_by_group(taken, spec.groups)), _by_group(wanted, spec.groups)


def _by_group(maps: Tensor, groups: int) -> Tensor:
    """(images, channels, height, width) as (groups, channels of a group, places)."""
    count, channels = maps.shape[:2]
    return (
        maps.reshape(count, groups, channels // groups, -1).permute(1, 2, 0, 3).reshape(groups, channels // groups, -1)
    )


def _with_ones(features: Tensor) -> Tensor:
    return torch.cat([features, features.new_ones(features.shape[0], 1, features.shape[2])], dim=1)


@dataclass
class Moments:
    """Sums over places: features x features, features x residuals, residuals squared (of each output)."""

    gram: Tensor | None = None
    cross: Tensor | None = None
    energy: Tensor | None = None

    def add(self, block: Block, *, gram: bool = True) -> None:
        features, residuals = block
        across = features.transpose(1, 2)
        if gram:
            self.gram = features @ across if self.gram is None else self.gram.baddbmm_(features, across)
        cross, energy = features @ residuals.transpose(1, 2), residuals.square().sum(2)
        self.cross = cross if self.cross is None else self.cross.add_(cross)
        self.energy = energy if self.energy is None else self.energy.add_(energy)

    def retargeted(self) -> Moments:
        """The same features, of which nothing is summed again, for other residuals."""
        return Moments(self.gram)

    def error(self, correction: Tensor | None = None) -> float:
        """The sum of squared residuals that a correction leaves; without one, what is there."""
        assert self.gram is not None
        assert self.cross is not None
        assert self.energy is not None
        total = float(self.energy.sum())
        if correction is None:
            return total
        gained = 2 * (correction * self.cross).sum() - (correction * (self.gram @ correction)).sum()
        return total - float(gained)


def solve_ridge(moments: Moments, ridge: float) -> Tensor:
    """The correction (groups, unknowns, outputs) with the least squared error plus ridge times its square, bias aside.

    >>> moments = Moments()
    >>> moments.add((torch.tensor([[[1.0, 2.0], [1.0, 1.0]]]).double(), torch.tensor([[[3.0, 5.0]]]).double()))
    >>> solve_ridge(moments, 0.0).flatten().round(decimals=9).tolist()  # y = 2x + 1
    [2.0, 1.0]
    """
    assert moments.gram is not None
    assert moments.cross is not None
    found = []
    for gram, cross in zip(moments.gram, moments.cross, strict=True):
        weights = gram.diagonal()[:-1]
        penalty = gram.new_zeros(len(gram))
        penalty[:-1] = ridge * weights.mean()
        # Features that are zero everywhere, or the sum of others, leave a direction open: it stays as it is.
        penalty += 1e-13 * gram.diagonal().mean()
        damped = gram.clone()
        damped.diagonal().add_(penalty)
        factor, failed = torch.linalg.cholesky_ex(damped)
        found.append(torch.zeros_like(cross) if failed else torch.cholesky_solve(cross, factor))
    return torch.stack(found)


def best_correction(fitted: Moments, held_out: Moments, ridges: Sequence[float] = RIDGES) -> Tensor | None:
    """The correction with the ridge that is best on held-out places; None where none is better than what is there."""
    best, least = None, held_out.error()
    for ridge in ridges:
        correction = solve_ridge(fitted, ridge)
        if (error := held_out.error(correction)) < least:
            best, least = correction, error
    return best


def corrected(kernel: Kernel, form: FitForm, correction: Tensor) -> Kernel:
    """The kernel with a correction of it (`kernel`), or followed by 1 + that (`mixing`, `affine`)."""
    slopes, offsets = correction[:, :-1].transpose(1, 2), correction[:, -1].reshape(-1)
    if form == "kernel":
        weight = kernel.weight + slopes.reshape(kernel.weight.shape)
        return replace(kernel, weight=weight, bias=kernel.bias + offsets)
    if form == "affine":
        return kernel.scaled(1 + slopes.reshape(-1), offsets)
    channels = kernel.spec.out_channels
    mixing = slopes + torch.eye(slopes.shape[1], dtype=slopes.dtype, device=slopes.device)
    spec = ConvSpec(channels, channels, (1, 1), groups=kernel.spec.groups)
    return kernel.then(Kernel(mixing.reshape(channels, -1, 1, 1), offsets, spec))
