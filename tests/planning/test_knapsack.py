"""The best kept set for each merged geometry, against brute force over all subsets."""

from __future__ import annotations

from itertools import pairwise
from typing import Any, cast

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

import layermerge as lm
from layermerge.conv import ConvSpec
from layermerge.tracing.structure import ConvStep, Layer, Structure
from oracles import ChainConv, Geometry, best_kept_sets

CHANNELS = 4


def as_trace(convs: list[ChainConv]) -> lm.Trace:
    """A plain chain without a network behind it: a plan reads nothing but the structure."""
    layers = []
    for index, conv in enumerate(convs):
        (high, wide), groups = conv.padding, conv.groups
        spec = ConvSpec(CHANNELS, CHANNELS, conv.kernel, conv.stride, (high, high, wide, wide), groups=groups)
        before = (CHANNELS, 64, 64)
        after = (CHANNELS, 32, 32) if conv.irreducible else before
        layers.append(Layer(f"c{index}", spec, before, after, conv.l1, f"c{index}"))
    path = tuple(ConvStep(index) for index in range(len(layers)))
    structure = Structure(tuple(layers), (), (path,), ("the input",))
    return lm.Trace(module=cast(Any, None), structure=structure, inputs=cast(Any, None))


@st.composite
def chain_convs(draw: st.DrawFn) -> ChainConv:
    kernel = draw(st.sampled_from([(1, 1), (3, 3), (5, 5), (1, 3)]))
    stride = draw(st.sampled_from([(1, 1), (1, 1), (1, 1), (2, 2)]))
    padding = draw(st.sampled_from([(kernel[0] // 2, kernel[1] // 2), (kernel[0] // 2, kernel[1] // 2), (0, 0)]))
    shrinks = stride != (1, 1) or padding != (kernel[0] // 2, kernel[1] // 2)
    return ChainConv(
        kernel,
        stride,
        padding,
        draw(st.floats(0.5, 9.5)),
        shrinks or draw(st.sampled_from([False, False, True])),
        draw(st.sampled_from([1, 1, 2, CHANNELS])),
    )


@given(st.lists(chain_convs(), min_size=1, max_size=7), st.sampled_from([None, 1, 3, 5, 9]))
def test_random_chains_agree_with_brute_force(convs: list[ChainConv], max_kernel: int | None) -> None:
    menu = lm.plan(as_trace(convs), lm.Rules(max_kernel=max_kernel))
    rejected = {(rejection.start, rejection.end) for rejection in menu.rejections}
    for start in range(len(convs)):
        for end in range(start + 1, len(convs) + 1):
            found: dict[Geometry | None, float] = {}
            for entry in menu.candidates:
                if (entry.start, entry.end) == (start, end):
                    kept = [convs[int(name[1:])] for name in entry.kept]
                    geometry = (*entry.spec.kernel, entry.spec.groups) if entry.spec else None
                    assert geometry not in found
                    found[geometry] = sum(conv.l1 for conv in kept)
                    assert all(conv in kept for conv in convs[start:end] if conv.irreducible)
            expected = best_kept_sets(convs[start:end], max_kernel)
            assert found == pytest.approx(expected, rel=1e-12), (start, end)
            assert ((start, end) in rejected) is not bool(expected)


@given(st.lists(chain_convs(), min_size=2, max_size=6))
def test_the_merged_geometry_is_that_of_the_kept_convs(convs: list[ChainConv]) -> None:
    """Stride and padding too: padding is gathered at the front, scaled by the strides it crosses."""
    for entry in lm.plan(as_trace(convs), lm.Rules(max_kernel=None)).candidates:
        if entry.spec is None:
            continue
        stride, padding = 1, [0, 0]
        for conv in (convs[int(name[1:])] for name in entry.kept):
            padding = [total + own * stride for total, own in zip(padding, conv.padding, strict=True)]
            stride *= conv.stride[0]
        assert entry.spec.stride == (stride, stride)
        assert entry.spec.padding == (padding[0], padding[0], padding[1], padding[1])


def test_a_traced_chain_agrees_with_brute_force() -> None:
    torch.manual_seed(2)
    kernels = [3, 1, 3, 5, 3]
    convs = [nn.Conv2d(4, 4, kernel, padding=kernel // 2) for kernel in kernels]
    net = nn.Sequential(*(module for conv in convs for module in (conv, nn.ReLU())))
    menu = lm.plan(lm.trace(net, torch.randn(2, 4, 12, 12)), lm.Rules(max_kernel=9))
    norms = [float(conv.weight.detach().double().abs().sum()) for conv in convs]
    whole = [ChainConv((k, k), (1, 1), (k // 2, k // 2), norm, False) for k, norm in zip(kernels, norms, strict=True)]
    found = {
        (*entry.spec.kernel, entry.spec.groups) if entry.spec else None: sum(
            norms[entry.layers.index(name)] for name in entry.kept
        )
        for entry in menu.candidates
        if (entry.start, entry.end) == (0, 5)
    }
    assert found == pytest.approx(best_kept_sets(whole, 9), rel=1e-9)


def test_a_chain_of_a_hundred_convs_plans() -> None:
    """No walk over its 2^100 subsets."""
    menu = lm.plan(as_trace([ChainConv((3, 3), (1, 1), (1, 1), 2.0, False)] * 100), lm.Rules(max_kernel=21))
    assert len({(entry.start, entry.end) for entry in menu.candidates}) == 100 * 101 // 2
    assert menu.rejections == ()
    sides = {side for entry in menu.candidates if entry.spec for side in entry.spec.kernel}
    assert sides == set(range(3, 22, 2))
    sizes = [len(entry.kept) for entry in menu.candidates if (entry.start, entry.end) == (0, 100)]
    assert sizes == list(range(11))


class Askew(nn.Module):
    """A block whose dilated kernel does not line up with its skip, and of which no conv can go."""

    def __init__(self) -> None:
        super().__init__()
        self.wide, self.narrow = nn.Conv2d(4, 6, 2, dilation=3), nn.Conv2d(6, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.narrow(self.wide(nn.functional.pad(x, (1, 2, 1, 2))))  # type: ignore[no-any-return]


def test_a_range_reports_its_own_reason_and_not_that_of_another() -> None:
    """Two of the convs before the block do not fit below the bound, which is no matter for a range with one of them."""
    net = nn.Sequential(*(nn.Conv2d(4, 4, 3, padding=1) for _ in range(3)), Askew())
    menu = lm.plan(lm.trace(net, torch.randn(2, 4, 12, 12)), lm.Rules(max_kernel=3))
    reasons = {one.start: one.reason for one in menu.rejections if one.end == 5}
    assert reasons == dict.fromkeys(range(3), "a dilated body does not line up with its shortcut")


@pytest.mark.parametrize("count", [3, 5])
def test_equal_norms_prefer_more_and_then_earlier_convs(count: int) -> None:
    same = ChainConv((3, 3), (1, 1), (1, 1), 2.0, False)
    best = {
        entry.spec.kernel[0]: entry.kept
        for entry in lm.plan(as_trace([same] * count)).candidates
        if entry.spec is not None and (entry.start, entry.end) == (0, count)
    }
    assert best == {2 * size + 1: tuple(f"c{index}" for index in range(size)) for size in range(1, count + 1)}


def test_equal_norms_prefer_more_convs() -> None:
    """A 1x1 conv of no weight changes neither geometry nor norm; a set with it keeps more of the network."""
    convs = [ChainConv((3, 3), (1, 1), (1, 1), 2.0, False), ChainConv((1, 1), (1, 1), (0, 0), 0.0, False)]
    (both,) = [entry for entry in lm.plan(as_trace(convs)).candidates if entry.key == "0-2:3x3g1"]
    assert both.kept == ("c0", "c1")


def test_the_same_network_gives_the_same_plan() -> None:
    convs = [ChainConv((3, 3), (1, 1), (1, 1), 1.5, False)] * 6
    first, second = lm.plan(as_trace(convs)), lm.plan(as_trace(convs))
    assert first == second
    assert [entry.key for entry in first.candidates] == [entry.key for entry in second.candidates]
    order = [(entry.start, entry.end) for entry in first.candidates]
    assert all(before <= after for before, after in pairwise(order))
