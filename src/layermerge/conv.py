"""The geometry of convolutions: one, one after another, and two side by side. No torch.

In: the shapes that a conv has. Out: the shape of the single conv that replaces several.
Guarantees: `compose` and `parallel` give a conv that reads exactly the same input pixels (or a few more, with zero
weights) and yields the same output size, provided all padding is applied once, at the input of the whole.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import gcd

from layermerge.errors import GeometryError

Pair = tuple[int, int]
Sides = tuple[int, int, int, int]
"""Padding as (top, bottom, left, right)."""


@dataclass(frozen=True, slots=True)
class Axis:
    """One spatial axis of a conv: output o reads input o * stride - front + t * dilation, for t in 0..kernel-1."""

    kernel: int
    stride: int
    dilation: int
    front: int
    back: int

    @property
    def last_tap(self) -> int:
        """Where the last tap of output 0 reads, relative to input 0."""
        return (self.kernel - 1) * self.dilation - self.front

    def output_size(self, size: int) -> int:
        return (size + self.front + self.back - (self.kernel - 1) * self.dilation - 1) // self.stride + 1

    def then(self, after: Axis) -> Axis:
        """This axis, then `after`; all padding moves to the front of both, scaled by the stride it crosses."""
        stride = self.stride * after.stride
        front = self.front + after.front * self.stride
        back = self.back + after.back * self.stride
        if after.kernel == 1:
            return Axis(self.kernel, stride, self.dilation, front, back)
        if self.kernel == 1 and self.stride == 1:
            return Axis(after.kernel, stride, after.dilation, front, back)
        if self.stride == 1 and self.dilation == after.dilation:
            return Axis(self.kernel + after.kernel - 1, stride, self.dilation, front, back)
        reach = (self.kernel - 1) * self.dilation + (after.kernel - 1) * after.dilation * self.stride
        return Axis(reach + 1, stride, 1, front, back)

    def beside(self, other: Axis) -> Axis:
        """This axis and `other` reading the same input, summed: the aligned union of their taps."""
        if self.stride != other.stride:
            raise GeometryError(f"strides {self.stride} and {other.stride} run side by side; they must be equal")
        steps = {axis.dilation for axis in (self, other) if axis.kernel > 1} or {1}
        step = steps.pop() if len(steps) == 1 else 1
        if (self.front - other.front) % step:
            step = 1
        front = max(self.front, other.front)
        reach = front + max(self.last_tap, other.last_tap)
        return Axis(reach // step + 1, self.stride, step, front, max(self.back, other.back))


@dataclass(frozen=True, slots=True)
class ConvSpec:
    """The shape of a 2-d convolution: all that decides what it costs and what it can merge with."""

    in_channels: int
    out_channels: int
    kernel: Pair
    stride: Pair = (1, 1)
    padding: Sides = (0, 0, 0, 0)
    dilation: Pair = (1, 1)
    groups: int = 1

    def __post_init__(self) -> None:
        try:
            sizes = (self.in_channels, self.out_channels, self.groups, *self.kernel, *self.stride, *self.dilation)
            whole = (
                len(sizes) == 9 and len(self.padding) == 4 and all(isinstance(n, int) for n in (*sizes, *self.padding))
            )
        except TypeError:  # of a number in the place of a pair
            whole = False
        if not whole:
            raise GeometryError(f"kernel, stride and dilation are pairs of whole numbers, padding is four: {self!r}")
        if min(sizes) < 1:
            raise GeometryError(f"channels, kernel, stride, dilation and groups must be at least 1: {self}")
        if min(self.padding) < 0:
            raise GeometryError(f"padding must not be negative: {self}")
        if self.in_channels % self.groups or self.out_channels % self.groups:
            raise GeometryError(
                f"{self.groups} groups do not divide {self.in_channels} -> {self.out_channels} channels"
            )

    @staticmethod
    def identity(channels: int) -> ConvSpec:
        """The conv that changes nothing: 1x1 depthwise. Neutral for `compose`."""
        return ConvSpec(channels, channels, (1, 1), groups=channels)

    @staticmethod
    def from_axes(in_channels: int, out_channels: int, height: Axis, width: Axis, groups: int) -> ConvSpec:
        return ConvSpec(
            in_channels,
            out_channels,
            (height.kernel, width.kernel),
            (height.stride, width.stride),
            (height.front, height.back, width.front, width.back),
            (height.dilation, width.dilation),
            groups,
        )

    @property
    def height(self) -> Axis:
        return Axis(self.kernel[0], self.stride[0], self.dilation[0], self.padding[0], self.padding[1])

    @property
    def width(self) -> Axis:
        return Axis(self.kernel[1], self.stride[1], self.dilation[1], self.padding[2], self.padding[3])

    @property
    def depthwise(self) -> bool:
        return self.groups > 1 and self.groups == self.in_channels == self.out_channels

    @property
    def strided(self) -> bool:
        return self.stride != (1, 1)

    @property
    def keeps_size(self) -> bool:
        """Whether the output has the size of the input, whatever that is."""
        return all(axis.stride == 1 and axis.last_tap == axis.back for axis in (self.height, self.width))

    @property
    def weights(self) -> int:
        return self.out_channels * (self.in_channels // self.groups) * self.kernel[0] * self.kernel[1]

    def output_size(self, height: int, width: int) -> Pair:
        return self.height.output_size(height), self.width.output_size(width)

    def padded(self, extra: Sides) -> ConvSpec:
        """The same conv with more padding in front of it."""
        top, bottom, left, right = (own + more for own, more in zip(self.padding, extra, strict=True))
        return replace(self, padding=(top, bottom, left, right))

    def __str__(self) -> str:
        text = f"{self.kernel[0]}x{self.kernel[1]}"
        if self.strided:
            text += f"/{self.stride[0]}" if self.stride[0] == self.stride[1] else f"/{self.stride[0]}x{self.stride[1]}"
        if self.dilation != (1, 1):
            text += f" d{max(self.dilation)}"
        if self.depthwise:
            text += " dw"
        elif self.groups > 1:
            text += f" g{self.groups}"
        return text


def compose(first: ConvSpec, second: ConvSpec) -> ConvSpec:
    """The geometry of `first` then `second` as one conv, padding gathered at the input.

    >>> str(compose(ConvSpec(3, 8, (3, 3), stride=(2, 2)), ConvSpec(8, 8, (3, 3))))  # (k2 - 1) * s1 + k1
    '7x7/2'

    Two convs whose groups share a divisor keep that many groups: depthwise after depthwise stays depthwise.
    """
    if first.out_channels != second.in_channels:
        raise GeometryError(f"{first.out_channels} channels come out, {second.in_channels} are expected")
    return ConvSpec.from_axes(
        first.in_channels,
        second.out_channels,
        first.height.then(second.height),
        first.width.then(second.width),
        gcd(first.groups, second.groups),
    )


def parallel(body: ConvSpec, shortcut: ConvSpec) -> ConvSpec:
    """The geometry of two convs on the same input, summed, as one conv: the aligned union of their kernels.

    >>> str(parallel(ConvSpec(8, 8, (3, 3), padding=(1, 1, 1, 1)), ConvSpec.identity(8)))
    '3x3'
    """
    if (body.in_channels, body.out_channels) != (shortcut.in_channels, shortcut.out_channels):
        raise GeometryError(f"channels differ side by side: {body} and {shortcut}")
    return ConvSpec.from_axes(
        body.in_channels,
        body.out_channels,
        body.height.beside(shortcut.height),
        body.width.beside(shortcut.width),
        gcd(body.groups, shortcut.groups),
    )
