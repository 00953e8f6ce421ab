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

from layermerge.conv import ConvSpec, Pair
from layermerge.surgery.kernels import Kernel
from layermerge.surgery.rewrite import FitForm

RIDGES = (1e-6, 1e-4, 1e-3, 1e-2, 1e-1, 1.0)
"""In units of the features' mean square."""
TOLERANCE = 0.02
"""By how much more of the error on held-out places a larger ridge, and so smaller corrections, is worth."""
_BLOCK = 1 << 22
"""Entries of a block of features: 32 MiB in float64."""

Block = tuple[Tensor, Tensor]
"""Features (groups, unknowns, places), the last of them 1; residuals (groups, outputs, places)."""


@dataclass(frozen=True)
class Effort:
    """How much a fit may cost."""

    most_unknowns: int = 4096
    """Of one group, and the root of all entries of the Gram matrices: 128 MiB of them."""
    places_per_unknown: int = 64
    """How many places are looked at, spread evenly over the maps; neighbours say nearly the same."""
    fewest_places: int = 1 << 14
    rounds: int = 2
    """How often the values before an activation are aimed at again, from where the last fit has brought them."""


def choose_form(spec: ConvSpec, places: int, effort: Effort) -> FitForm:
    """The largest form whose Gram matrices are small enough and whose unknowns are half as many as the places, or fewer."""
    forms: tuple[FitForm, ...] = ("kernel", "mixing")
    for form in forms:
        unknowns, most = count_unknowns(form, spec), effort.most_unknowns
        small = unknowns <= most and spec.groups * unknowns**2 <= most**2
        if small and 2 * (unknowns + 1) <= places:
            return form
    return "affine"


def count_unknowns(form: FitForm, spec: ConvSpec) -> int:
    """Of one group, the bias aside."""
    if form == "affine":
        return 1
    return spec.in_channels // spec.groups * prod(spec.kernel) if form == "kernel" else spec.out_channels // spec.groups


def count_places(form: FitForm, spec: ConvSpec, effort: Effort) -> int:
    """How many places a fit looks at, in all images together."""
    return max(effort.fewest_places, effort.places_per_unknown * count_unknowns(form, spec))


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


def spread_places(size: Pair, wanted: int, phase: float) -> Tensor:
    """So many places of a map, or all, evenly over it; `phase` (0 to 1) shifts them, so that batches see different ones."""
    total = size[0] * size[1]
    count = max(1, min(total, wanted))
    return ((torch.arange(count, dtype=torch.float64) + phase) * (total / count)).long().clamp_max(total - 1)


def at_places(maps: Tensor, places: Tensor) -> Tensor:
    """(images, channels, height, width) at some places of each map: (images, channels, places, 1)."""
    return maps.flatten(2)[:, :, places.to(maps.device), None]


@dataclass(frozen=True)
class Seen:
    """A batch at some places: what the kernel gives there, what is left to correct, and how much each place counts."""

    places: Tensor
    output: Tensor
    residual: Tensor
    factors: Tensor | None = None
    """(images, 1, places, 1); None where all count alike."""


def blocks(form: FitForm, spec: ConvSpec, x: Tensor, seen: Seen) -> Iterator[Block]:
    """Features and residuals of one batch in float64, a bounded number at a time; `x` is the whole map that the conv reads.

    Both are multiplied by the root of the places' factors, so that squared errors are counted that often.
    """
    roots = None if seen.factors is None else seen.factors.double().sqrt().flatten(2)
    if form == "kernel":
        windows, width = _windows(spec, x)
        count = max(1, _BLOCK // (len(x) * spec.in_channels * prod(spec.kernel)))
        for first in range(0, len(seen.places), count):
            part = slice(first, first + count)
            some = seen.places[part].to(x.device)
            taken = windows[:, :, some // width, some % width].transpose(2, 3).transpose(3, 4)
            features = _with_ones(_by_group(taken.flatten(1, 3).double(), spec.groups))
            residuals = _by_group(seen.residual[:, :, part].double(), spec.groups)
            yield _counted_block(features, residuals, None if roots is None else roots[:, :, part])
        return
    groups = spec.groups if form == "mixing" else spec.out_channels
    features = _with_ones(_by_group(seen.output.double(), groups))
    yield _counted_block(features, _by_group(seen.residual.double(), groups), roots)


def _counted_block(features: Tensor, residuals: Tensor, roots: Tensor | None) -> Block:
    if roots is None:
        return features, residuals
    each = roots.reshape(1, 1, -1)
    return features * each, residuals * each


def _windows(spec: ConvSpec, x: Tensor) -> tuple[Tensor, int]:
    """What each output of a conv reads, without a copy: (images, channels, height, width, kernel); and the width."""
    view = _padded(x, spec)
    for axis, (kernel, stride, dilation) in enumerate(
        zip(spec.kernel, spec.stride, spec.dilation, strict=True), start=2
    ):
        view = view.unfold(axis, (kernel - 1) * dilation + 1, stride)[..., ::dilation]
    return view, view.shape[3]


def _by_group(maps: Tensor, groups: int) -> Tensor:
    """(images, channels, ...) as (groups, channels of a group, places)."""
    count, channels = maps.shape[:2]
    split = maps.reshape(count, groups, channels // groups, -1)
    return split.permute(1, 2, 0, 3).reshape(groups, channels // groups, -1)


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

    def error(self, correction: Tensor | None = None) -> float:
        """The sum of squared residuals that a correction leaves; without one, what is there."""
        assert self.gram is not None
        assert self.cross is not None
        assert self.energy is not None
        total = float(self.energy.sum())
        if correction is None:
            return total
        gained = 2 * (correction * self.cross).sum() - (correction * (self.gram @ correction)).sum()
        return max(0.0, total - float(gained))  # not below it by rounding, where nothing is left


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
    """The correction with the largest ridge, of rising ones, that is nearly the best on held-out places.

    None where none is better than what is there. Corrections that cancel each other fit a little better and train badly.
    """
    corrections = [solve_ridge(fitted, ridge) for ridge in ridges]
    errors = [held_out.error(correction) for correction in corrections]
    before, least = held_out.error(), min(errors)
    if not least < before:
        return None
    allowed = min(before, least * (1 + TOLERANCE))
    return next(found for found, error in zip(corrections[::-1], errors[::-1], strict=True) if error <= allowed)


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
