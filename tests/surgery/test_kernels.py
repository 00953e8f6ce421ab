"""Kernels multiplied and added, against torch's convolutions in float64 on an input padded once, in front."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from layermerge.conv import ConvSpec, Pair, Sides
from layermerge.surgery.kernels import Kernel, norm_as_affine
from oracles import pad, relative_difference

EXACT = 1e-11


def random_kernel(spec: ConvSpec, seed: int, *, bias: bool = True) -> Kernel:
    generator = torch.Generator().manual_seed(seed)
    shape = (spec.out_channels, spec.in_channels // spec.groups, *spec.kernel)
    weight = torch.randn(shape, dtype=torch.float64, generator=generator)
    offset = torch.randn(spec.out_channels, dtype=torch.float64, generator=generator) if bias else None
    return Kernel.of(weight, offset, spec)


def valid(kernel: Kernel, x: Tensor) -> Tensor:
    """The conv without its padding, by torch."""
    spec = kernel.spec
    return F.conv2d(x, kernel.weight, kernel.bias, spec.stride, 0, spec.dilation, spec.groups)


def whole(kernel: Kernel, x: Tensor, shifts: dict[str, Tensor] | None = None) -> Tensor:
    """What a kernel stands for, as its definition says: pad, conv, bias, shifts by their matrices."""
    out = valid(kernel, pad(x, kernel.spec.padding))
    for name, matrix in kernel.shifts.items():
        assert shifts is not None
        out = out + torch.einsum("oc,nchw->nohw", matrix, shifts[name])
    return out


def image(channels: int, height: int = 13, width: int = 15, seed: int = 2) -> Tensor:
    return torch.randn(2, channels, height, width, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def in_sequence(kernels: list[Kernel], x: Tensor) -> Tensor:
    """One after the other, all padding in front: each side's padding times the strides it has to cross."""
    sides = [0, 0, 0, 0]
    strides = [1, 1]
    for kernel in kernels:
        for side in range(4):
            sides[side] += kernel.spec.padding[side] * strides[side // 2]
        strides = [own * more for own, more in zip(strides, kernel.spec.stride, strict=True)]
    x = pad(x, (sides[0], sides[1], sides[2], sides[3]))
    for kernel in kernels:
        x = valid(kernel, x)
    return x


GROUPS = [1, 2, 3, 4, 6, 12]
kernels = st.tuples(st.integers(1, 4), st.integers(1, 4))
paddings = st.tuples(*[st.integers(0, 2)] * 4)


@st.composite
def pairs(draw: st.DrawFn) -> tuple[ConvSpec, ConvSpec]:
    """Legal neighbours: after a stride only 1x1; beside a dilated conv only 1x1; any groups of 12 channels."""
    first_kernel, second_kernel = draw(kernels), draw(kernels)
    stride: Pair = draw(st.sampled_from([(1, 1), (2, 2), (1, 2), (3, 1)]))
    dilations: tuple[Pair, Pair] = ((1, 1), (1, 1))
    kind = draw(st.sampled_from(["plain", "strided", "dilated first", "dilated second"]))
    if kind == "strided":
        second_kernel = (1, 1)
    elif kind == "dilated first":
        stride, second_kernel, dilations = (1, 1), (1, 1), ((2, 3), (1, 1))
    elif kind == "dilated second":
        stride, first_kernel, dilations = (1, 1), (1, 1), ((1, 1), (2, 2))
    else:
        stride = (1, 1)
    last_stride: Pair = draw(st.sampled_from([(1, 1), (2, 1), (2, 2)]))
    first = ConvSpec(12, 12, first_kernel, stride, draw(paddings), dilations[0], draw(st.sampled_from(GROUPS)))
    second = ConvSpec(12, 12, second_kernel, last_stride, draw(paddings), dilations[1], draw(st.sampled_from(GROUPS)))
    return first, second


# -- one after another


@given(specs=pairs(), seed=st.integers(0, 10**6), biases=st.tuples(st.booleans(), st.booleans()))
def test_one_after_another(specs: tuple[ConvSpec, ConvSpec], seed: int, biases: tuple[bool, bool]) -> None:
    first = random_kernel(specs[0], seed, bias=biases[0])
    second = random_kernel(specs[1], seed + 1, bias=biases[1])
    product = first.then(second)
    x = image(12)
    assert product.weight.shape[2:] == product.spec.kernel
    assert relative_difference(in_sequence([first, second], x), whole(product, x)) <= EXACT


@given(specs=st.lists(pairs(), min_size=2, max_size=2), seed=st.integers(0, 10**6))
def test_three_in_a_row_in_any_order_of_multiplication(specs: list[tuple[ConvSpec, ConvSpec]], seed: int) -> None:
    plain = [replace(spec, stride=(1, 1), dilation=(1, 1)) for pair in specs for spec in pair][:3]
    a, b, c = (random_kernel(spec, seed + place) for place, spec in enumerate(plain))
    x = image(12)
    expected = in_sequence([a, b, c], x)
    assert relative_difference(expected, whole(a.then(b).then(c), x)) <= EXACT
    assert relative_difference(expected, whole(a.then(b.then(c)), x)) <= EXACT


@pytest.mark.parametrize(("first", "second", "merged"), [(4, 4, 4), (6, 4, 2), (12, 3, 3), (3, 4, 1), (12, 12, 12)])
def test_groups_of_the_product(first: int, second: int, merged: int) -> None:
    a = random_kernel(ConvSpec(12, 24, (3, 3), groups=first), 1)
    b = random_kernel(ConvSpec(24, 12, (3, 1), groups=second), 2)
    product = a.then(b)
    assert product.spec.groups == merged
    assert product.weight.shape == (12, 12 // merged, 5, 3)
    assert relative_difference(valid(b, valid(a, image(12))), valid(product, image(12))) <= EXACT


def test_depthwise_stays_depthwise() -> None:
    a = random_kernel(ConvSpec(6, 6, (3, 3), groups=6), 1)
    b = random_kernel(ConvSpec(6, 6, (5, 1), groups=6), 2)
    product = a.then(b)
    assert product.spec.depthwise
    assert product.weight.shape == (6, 1, 7, 3)


@pytest.mark.parametrize("place", ["before", "after"])
def test_the_identity_changes_nothing(place: str) -> None:
    kernel = random_kernel(ConvSpec(4, 6, (3, 2), (2, 1), (1, 0, 1, 2), groups=2), 3)
    one = Kernel.identity(4 if place == "before" else 6, torch.device("cpu"))
    product = one.then(kernel) if place == "before" else kernel.then(one)
    assert product.spec == kernel.spec
    assert torch.equal(product.weight, kernel.weight)
    assert torch.equal(product.bias, kernel.bias)


def test_float32_weights_are_multiplied_in_float64() -> None:
    torch.manual_seed(0)
    first, second = nn.Conv2d(3, 8, 3), nn.Conv2d(8, 4, 3)
    product = Kernel.of(first.weight, first.bias, ConvSpec(3, 8, (3, 3))).then(
        Kernel.of(second.weight, second.bias, ConvSpec(8, 4, (3, 3)))
    )
    assert product.weight.dtype == product.bias.dtype == torch.float64
    assert not product.weight.requires_grad
    x = image(3)
    assert relative_difference(second.double()(first.double()(x)), valid(product, x)) <= EXACT


# -- side by side


@st.composite
def neighbours(draw: st.DrawFn) -> tuple[ConvSpec, ConvSpec]:
    """Two convs on one input that yield maps of the same size: padding decides how they line up."""
    stride: Pair = draw(st.sampled_from([(1, 1), (2, 2), (1, 2)]))
    big, small = draw(kernels), draw(kernels)
    front = draw(st.tuples(st.integers(0, 2), st.integers(0, 2)))
    other = draw(st.tuples(st.integers(0, 2), st.integers(0, 2)))

    def sides(kernel: Pair, at: Pair) -> Sides:
        (top, left), (high, wide) = at, kernel
        # Behind, as much padding as makes every map the same size.
        return top, 6 - top + high - 1, left, 6 - left + wide - 1

    groups = st.sampled_from(GROUPS)
    return (
        ConvSpec(12, 12, big, stride, sides(big, front), groups=draw(groups)),
        ConvSpec(12, 12, small, stride, sides(small, other), groups=draw(groups)),
    )


@given(specs=neighbours(), seed=st.integers(0, 10**6))
def test_side_by_side(specs: tuple[ConvSpec, ConvSpec], seed: int) -> None:
    body, shortcut = random_kernel(specs[0], seed), random_kernel(specs[1], seed + 1)
    x = image(12)
    expected = valid(body, pad(x, specs[0].padding)) + valid(shortcut, pad(x, specs[1].padding))
    for fused in (body.beside(shortcut), shortcut.beside(body)):
        assert relative_difference(expected, whole(fused, x)) <= EXACT


@pytest.mark.parametrize(
    ("kernel", "padding", "offset"),
    [
        ((3, 3), (1, 1, 1, 1), (1, 1)),
        ((2, 2), (0, 1, 0, 1), (0, 0)),
        ((4, 2), (1, 2, 0, 1), (1, 0)),
        ((5, 1), (2, 2, 0, 0), (2, 0)),
    ],
)
def test_an_identity_skip_lies_at_the_front_padding(kernel: Pair, padding: Sides, offset: Pair) -> None:
    body = random_kernel(ConvSpec(4, 4, kernel, padding=padding), 5)
    fused = body.beside(Kernel.identity(4, torch.device("cpu")))
    assert fused.spec.kernel == kernel
    expected = body.weight.clone()
    for channel in range(4):
        expected[channel, channel, offset[0], offset[1]] += 1
    assert torch.equal(fused.weight, expected)
    x = image(4)
    assert relative_difference(x + whole(body, x), whole(fused, x)) <= EXACT


def test_a_depthwise_body_beside_its_skip_stays_depthwise() -> None:
    body = random_kernel(ConvSpec(4, 4, (3, 3), padding=(1, 1, 1, 1), groups=4), 5)
    fused = body.beside(Kernel.identity(4, torch.device("cpu")))
    assert fused.spec.depthwise
    assert fused.weight.shape == (4, 1, 3, 3)


def test_a_strided_shortcut_conv_beside_a_strided_body() -> None:
    body = random_kernel(ConvSpec(4, 6, (3, 3), (2, 2), (1, 1, 1, 1)), 1)
    shortcut = random_kernel(ConvSpec(4, 6, (1, 1), (2, 2)), 2)
    fused = body.beside(shortcut)
    x = image(4)
    assert fused.spec.kernel == (3, 3)
    assert relative_difference(whole(body, x) + whole(shortcut, x), whole(fused, x)) <= EXACT


def test_a_dilated_body_beside_its_skip() -> None:
    body = random_kernel(ConvSpec(4, 4, (3, 3), padding=(2, 2, 2, 2), dilation=(2, 2)), 1)
    fused = body.beside(Kernel.identity(4, torch.device("cpu")))
    x = image(4)
    assert fused.weight.shape == (4, 4, 3, 3)
    assert relative_difference(x + whole(body, x), whole(fused, x)) <= EXACT


# -- scales, shifts, padding


@given(specs=pairs(), seed=st.integers(0, 10**6), eps=st.sampled_from([1e-5, 1e-3]))
def test_a_norm_between_two_convs(specs: tuple[ConvSpec, ConvSpec], seed: int, eps: float) -> None:
    first, second = random_kernel(specs[0], seed), random_kernel(specs[1], seed + 1)
    mean, weight, bias = (image(1, 1, 12, seed + place)[0].flatten() for place in range(3))
    variance = image(1, 1, 12, seed + 3)[0].flatten().abs() + 0.1
    product = first.scaled(*norm_as_affine(mean, variance, eps, weight, bias)).then(second)
    x = image(12)
    moved = replace(specs[0], padding=product.spec.padding)
    y = F.batch_norm(valid(first, pad(x, moved.padding)), mean, variance, weight, bias, eps=eps)
    assert relative_difference(valid(second, y), whole(product, x)) <= EXACT


@given(specs=pairs(), seed=st.integers(0, 10**6), behind=st.booleans())
def test_a_shift_is_pushed_through_what_follows(specs: tuple[ConvSpec, ConvSpec], seed: int, behind: bool) -> None:
    first, second = random_kernel(specs[0], seed), random_kernel(specs[1], seed + 1)
    time, late = (image(12, 1, 1, seed + place) for place in range(2))
    scale = torch.linspace(0.5, 2, 12, dtype=torch.float64)
    product = first.shifted("time").scaled(scale, torch.ones_like(scale)).then(second)
    product = product.shifted("late") if behind else product
    assert set(product.shifts) == ({"time", "late"} if behind else {"time"})
    x = image(12)
    y = (valid(first, pad(x, product.spec.padding)) + time) * scale.view(1, -1, 1, 1) + 1
    expected = valid(second, y) + (late if behind else 0)
    assert relative_difference(expected, whole(product, x, {"time": time, "late": late})) <= EXACT


def test_a_shift_of_a_body_survives_beside_the_skip() -> None:
    body = random_kernel(ConvSpec(4, 4, (3, 3), padding=(1, 1, 1, 1)), 1).shifted("time")
    other = random_kernel(ConvSpec(4, 4, (1, 1)), 2).shifted("time")
    time, x = image(4, 1, 1), image(4)
    fused = body.beside(other)
    expected = whole(body, x, {"time": time}) + whole(other, x, {"time": time})
    assert relative_difference(expected, whole(fused, x, {"time": time})) <= EXACT


@given(sides=paddings, stride=st.sampled_from([(1, 1), (2, 1), (3, 3)]))
def test_padding_behind_a_kernel_moves_in_front_of_it(sides: Any, stride: Pair) -> None:
    kernel = random_kernel(ConvSpec(3, 4, (3, 2), stride, (1, 0, 0, 1)), 1)
    moved = kernel.padded(sides)
    top, bottom, left, right = sides
    high, wide = stride
    assert moved.spec.padding == (1 + top * high, bottom * high, left * wide, 1 + right * wide)
    assert torch.equal(moved.weight, kernel.weight)
    assert moved.spec.kernel == kernel.spec.kernel
