"""Kernels: convolutions that multiply and add, norms with fixed statistics as scale and shift. Tensors in and out, in float64.

A `Kernel` is a conv without its tensors' owner: weight, bias, geometry, and the per-channel shifts that joined on the way,
each with the matrix that carries it to the output. All padding of a kernel is applied once, at its input.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import product

import torch
from torch import Tensor

from layermerge.conv import Axis, ConvSpec, Sides, compose, parallel


@dataclass(frozen=True)
class Kernel:
    """x -> conv(pad(x), weight) + bias + sum of matrix @ shift over the named shifts."""

    weight: Tensor
    bias: Tensor
    spec: ConvSpec
    shifts: Mapping[str, Tensor] = field(default_factory=dict)

    @staticmethod
    def of(weight: Tensor, bias: Tensor | None, spec: ConvSpec) -> Kernel:
        offset = torch.zeros(spec.out_channels, dtype=torch.float64, device=weight.device)
        return Kernel(weight.detach().double(), offset if bias is None else bias.detach().double(), spec)

    @staticmethod
    def identity(channels: int, device: torch.device) -> Kernel:
        ones = torch.ones(channels, 1, 1, 1, dtype=torch.float64, device=device)
        return Kernel.of(ones, None, ConvSpec.identity(channels))

    @property
    def is_diagonal(self) -> bool:
        """Whether it multiplies each channel by a number and does nothing else (padding and offsets aside)."""
        spec = self.spec
        return spec.kernel == (1, 1) and not spec.strided and spec.groups == spec.in_channels == spec.out_channels

    def then(self, after: Kernel) -> Kernel:
        """This kernel followed by another."""
        spec = compose(self.spec, after.spec)
        weight = _product(self, after, spec)
        gain = _grouped_gain(after)
        carried = {name: _dense(gain, after.spec.groups) @ matrix for name, matrix in self.shifts.items()}
        return Kernel(
            weight, _apply_gain(gain, self.bias, after.spec.groups) + after.bias, spec, carried | dict(after.shifts)
        )

    def beside(self, other: Kernel) -> Kernel:
        """This kernel and another on the same input, summed: shortcut and body of a residual block."""
        spec = parallel(self.spec, other.spec)
        weight = self.weight.new_zeros(spec.out_channels, spec.in_channels // spec.groups, *spec.kernel)
        for kernel in (self, other):
            rows, columns = _offsets(kernel.spec.height, spec.height), _offsets(kernel.spec.width, spec.width)
            weight[:, :, rows, columns] += _regrouped(kernel.weight, kernel.spec.groups, spec.groups)
        shifts = dict(self.shifts)
        for name, matrix in other.shifts.items():
            shifts[name] = shifts[name] + matrix if name in shifts else matrix
        return Kernel(weight, self.bias + other.bias, spec, shifts)

    def scaled(self, scale: Tensor, shift: Tensor) -> Kernel:
        """Followed by a scale and shift per channel: a folded norm, or a scalar."""
        weight, bias = fold_affine(self.weight, self.bias, scale, shift)
        carried = {name: scale.reshape(-1, 1) * matrix for name, matrix in self.shifts.items()}
        return Kernel(weight, bias, self.spec, carried)

    def shifted(self, name: str) -> Kernel:
        """With a shift (N, C, 1, 1) named `name` added to its output."""
        eye = torch.eye(self.spec.out_channels, dtype=torch.float64, device=self.weight.device)
        return Kernel(self.weight, self.bias, self.spec, {**self.shifts, name: eye})

    def padded(self, sides: Sides) -> Kernel:
        """Followed by zero padding, which moves to its input."""
        spec = compose(self.spec, ConvSpec.identity(self.spec.out_channels).padded(sides))
        return Kernel(self.weight, self.bias, spec, self.shifts)


def norm_as_affine(
    mean: Tensor, variance: Tensor, eps: float, weight: Tensor | None = None, bias: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """The scale and shift that a BatchNorm applies at inference, with its own eps and with or without affine weights.

    >>> scale, shift = norm_as_affine(torch.tensor([1.0]), torch.tensor([3.0]), eps=1.0)
    >>> scale.item(), shift.item()
    (0.5, -0.5)
    """
    scale = (variance.double() + eps).rsqrt()
    if weight is not None:
        scale = scale * weight.double()
    shift = -mean.double() * scale
    return scale, shift if bias is None else shift + bias.double()


def fold_affine(weight: Tensor, bias: Tensor | None, scale: Tensor, shift: Tensor) -> tuple[Tensor, Tensor]:
    """A conv's weight and bias with a following scale and shift folded in."""
    folded = weight.double() * scale.reshape(-1, 1, 1, 1)
    moved = shift if bias is None else bias.double() * scale + shift
    return folded, moved.to(torch.float64)


def _product(first: Kernel, second: Kernel, spec: ConvSpec) -> Tensor:
    """The weight of `first` then `second`: tap t1 * d1 + t2 * d2 * s1 collects every pair, summed over the middle channels.

    One batched matrix product for each tap of the second. Where one number of groups divides the other, the larger one
    groups the computation, so that a depthwise conv is never written out as a dense one.
    """
    g1, g2 = first.spec.groups, second.spec.groups
    w1, w2 = first.weight, second.weight
    if first.is_diagonal:
        return w2 * w1.reshape(g2, 1, -1).expand(-1, w2.shape[0] // g2, -1).reshape(w2.shape[0], -1, 1, 1)
    if second.is_diagonal:
        return w1 * w2.reshape(-1, 1, 1, 1)
    if max(g1, g2) % min(g1, g2):
        w1, w2 = _regrouped(w1, g1, spec.groups), _regrouped(w2, g2, spec.groups)
        g1 = g2 = spec.groups
    fine, (middle, reads, *size) = max(g1, g2), w1.shape
    rows = w1.reshape(fine, middle // fine, -1)
    reach = [(k - 1) * d for k, d in zip(size, first.spec.dilation, strict=True)]
    steps = [s * d for s, d in zip(first.spec.stride, second.spec.dilation, strict=True)]
    extent = [r + 1 + (k - 1) * step for r, k, step in zip(reach, second.spec.kernel, steps, strict=True)]
    out = w2.shape[0]
    taps = w1.new_zeros(out, reads * fine // g2, *extent)
    for row, column in product(*map(range, second.spec.kernel)):
        columns = w2[:, :, row, column].reshape(g2, out // g2, fine // g2, middle // fine).transpose(1, 2)
        pairs = torch.bmm(columns.reshape(fine, out // g2, middle // fine), rows)
        pairs = pairs.reshape(g2, fine // g2, out // g2, reads, *size).transpose(1, 2)
        top, left = row * steps[0], column * steps[1]
        window = taps[
            :, :, top : top + reach[0] + 1 : first.spec.dilation[0], left : left + reach[1] + 1 : first.spec.dilation[1]
        ]
        window += pairs.reshape(out, -1, *size)
    return taps[:, :, :: spec.dilation[0], :: spec.dilation[1]].contiguous()


def _regrouped(weight: Tensor, groups: int, fewer: int) -> Tensor:
    """The same conv written with fewer groups: zeros where groups did not connect."""
    if groups == fewer:
        return weight
    out, per_group = weight.shape[:2]
    ratio = groups // fewer
    wide = weight.new_zeros(fewer, ratio, out // groups, ratio, per_group, *weight.shape[2:])
    split = weight.reshape(fewer, ratio, out // groups, per_group, *weight.shape[2:])
    for part in range(ratio):
        wide[:, part, :, part] = split[:, part]
    return wide.reshape(out, ratio * per_group, *weight.shape[2:])


def _offsets(own: Axis, frame: Axis) -> slice:
    """Where the taps of one axis fall in another: its offset is the frame's front padding minus its own."""
    step = own.dilation // frame.dilation if own.kernel > 1 else 1
    first = (frame.front - own.front) // frame.dilation
    return slice(first, first + (own.kernel - 1) * step + 1, step)


def _grouped_gain(kernel: Kernel) -> Tensor:
    """What the kernel does to an input that is constant over space: (out, in / groups)."""
    return kernel.weight.sum(dim=(2, 3))


def _apply_gain(gain: Tensor, vector: Tensor, groups: int) -> Tensor:
    split = gain.reshape(groups, -1, gain.shape[1])
    return torch.bmm(split, vector.reshape(groups, -1, 1)).reshape(-1)


def _dense(gain: Tensor, groups: int) -> Tensor:
    return _regrouped(gain[:, :, None, None], groups, 1)[:, :, 0, 0]
