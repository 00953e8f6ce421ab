"""The design's table of legal ranges, case by case, and the boundaries that no range crosses."""

from __future__ import annotations

import pytest
from torch import nn

import layermerge as lm
import zoo
from layermerge.planning.plan import Plan

Names = tuple[str, ...]


def split(text: str) -> Names:
    return tuple(text.split())


def menu(name: str) -> Plan:
    return lm.plan(zoo.traced(name))


def ranges(plan: Plan) -> set[Names]:
    return {candidate.layers for candidate in plan.candidates}


def kept_sets(plan: Plan, layers: str) -> set[Names]:
    return {candidate.kept for candidate in plan.candidates if candidate.layers == split(layers)}


def heaviest(name: str, *convs: str) -> str:
    """The conv whose weights have the largest L1 norm."""
    model = zoo.build(name)

    def norm(conv: str) -> float:
        module = model.get_submodule(conv)
        assert isinstance(module, nn.Conv2d)
        return float(module.weight.detach().abs().double().sum())

    return max(convs, key=norm)


TABLE = {
    "basic": [
        *("stem", "a.c1", "a.c2", "b.c1", "b.c2"),
        *("a.c1 a.c2", "b.c1 b.c2", "a.c1 a.c2 b.c1 b.c2"),
        *("stem a.c1 a.c2", "stem a.c1 a.c2 b.c1 b.c2"),
    ],
    "bottleneck": ["sc", "c1", "c2", "c3", "c1 c2", "c2 c3", "c1 c2 c3", "sc c1 c2 c3"],
    "basic_strided": ["sc", "c1", "c2", "c1 c2", "sc c1 c2"],
    "bottleneck_strided": ["sc", "c1", "c2", "c3", "c1 c2", "c2 c3", "c1 c2 c3", "sc c1 c2 c3"],
    "inverted": [
        *("a.pw", "a.dw", "a.pl", "b.pw", "b.dw", "b.pl"),
        *("a.pw a.dw", "a.dw a.pl", "b.pw b.dw", "b.dw b.pl"),
        *("a.pw a.dw a.pl", "b.pw b.dw b.pl", "a.pw a.dw a.pl b.pw b.dw b.pl"),
    ],
    "pre_activation": ["c1", "c2", "c1 c2"],
    "pre_activation_conv_shortcut": ["sc", "c1", "c2", "c1 c2"],
    "pre_activation_after_stem": ["stem", "a.c1", "a.c2", "a.c1 a.c2", "stem a.c1 a.c2"],
    "time_shifted_block": ["c1", "c2", "c1 c2"],
    "time_shifted_block_conv_shortcut": ["sc", "c1", "c2", "c1 c2"],
    "concat_branches": [
        *("stem", "point", "pooled", "after"),
        *("deep1", "deep2", "deep3", "deep1 deep2", "deep2 deep3", "deep1 deep2 deep3"),
    ],
    "rep_branches": ["stem", "small", "big", "small big", "stem small big"],
    "functional_residual": ["stem", "c1", "c2", "c1 c2", "stem c1 c2"],
    "in_place": ["stem", "c1", "c2", "c1 c2", "stem c1 c2"],
    "stochastic_depth": ["stem", "c1", "c2", "c1 c2", "stem c1 c2"],
    "squeeze_excite": [
        *("expand", "gate.reduce", "gate.grow", "gate.reduce gate.grow", "project"),
        "expand gate.reduce gate.grow project",
    ],
    "max_pool_between": ["first", "second", "third", "second third"],
    "cumsum_between": ["first", "second", "third", "second third"],
    "shared_conv": ["before", "after"],
    "dict_output": ["first", "second"],
    "two_inputs": ["left", "right", "both"],
    "convs_on_single_pixels": ["stem", "narrow", "wide", "narrow wide"],
    "reflect_padding": ["0", "2", "4"],
    "unet": [
        *("stem", "down1.c1", "down1.c2", "down1.c1 down1.c2", "shrink"),
        *("mid.sc", "mid.c1", "mid.c2", "mid.c1 mid.c2"),
        *("attention.qkv", "attention.project", "attention.qkv attention.project"),
        *("enlarge", "up1.sc", "up1.c1", "up1.c2", "up1.c1 up1.c2", "out"),
    ],
}


@pytest.mark.parametrize("name", TABLE)
def test_legal_ranges(name: str) -> None:
    assert ranges(menu(name)) == {split(layers) for layers in TABLE[name]}


KEPT = {
    ("bottleneck", "c1 c2"): ["c1", "c1 c2"],
    ("bottleneck", "c2 c3"): ["c3", "c2 c3"],
    ("bottleneck", "c1 c2 c3"): ["c1 c3", "c1 c2 c3"],
    ("bottleneck", "sc c1 c2 c3"): ["sc c1 c3", "sc c1 c2 c3"],
    ("bottleneck", "sc"): ["sc"],
    ("basic_strided", "c2"): ["", "c2"],
    ("basic_strided", "c1 c2"): ["c1"],
    ("basic_strided", "sc c1 c2"): ["sc c1"],
    ("bottleneck_strided", "sc c1 c2 c3"): ["sc c1 c2 c3"],
    ("bottleneck_strided", "c2 c3"): ["c2 c3"],
    ("inverted", "a.dw"): ["", "a.dw"],
    ("inverted", "a.pw a.dw"): ["a.pw", "a.pw a.dw"],
    ("inverted", "a.pw a.dw a.pl"): ["", "a.pw a.pl", "a.pw a.dw a.pl"],
    ("squeeze_excite", "expand gate.reduce gate.grow project"): [""],
    ("unet", "attention.qkv attention.project"): [""],
    ("rep_branches", "small big"): ["", "small", "small big"],
    ("dilated", "0 2"): ["0"],
    ("dilated", "2 4"): ["", "4", "2 4"],
    ("dilated", "0 2 4"): ["0 4"],
    ("asymmetric", "0 2"): ["", "0", "2", "0 2"],
    ("explicit_same_padding", "stem down"): ["stem down"],
    ("explicit_same_padding", "down same"): ["down"],
    ("explicit_same_padding", "stem down same"): ["stem down"],
}


@pytest.mark.parametrize(("name", "layers"), KEPT)
def test_kept_sets(name: str, layers: str) -> None:
    assert kept_sets(menu(name), layers) == {split(kept) for kept in KEPT[name, layers]}


@pytest.mark.parametrize(
    ("name", "layers", "always", "choice"),
    [
        ("basic", "a.c1 a.c2", "", ("a.c1", "a.c2")),
        ("pre_activation", "c1 c2", "", ("c1", "c2")),
        ("time_shifted_block", "c1 c2", "", ("c1", "c2")),
        ("inverted", "a.pw a.dw a.pl b.pw b.dw b.pl", "a.pw a.pl b.pw b.pl", ("a.dw", "b.dw")),
    ],
)
def test_of_two_like_convs_the_heavier_is_kept(name: str, layers: str, always: str, choice: Names) -> None:
    """None, one or both: the merged kernel grows with each, and with one it is the one of larger norm."""
    must = set(split(always))
    expected = [must, must | {heaviest(name, *choice)}, must | set(choice)]
    assert kept_sets(menu(name), layers) == {
        tuple(layer for layer in split(layers) if layer in kept) for kept in expected
    }


@pytest.mark.parametrize(
    ("name", "layers"),
    [
        ("bottleneck", "sc c1"),
        ("bottleneck", "sc c1 c2"),
        ("basic_strided", "sc c1"),
        ("basic", "stem a.c1"),
        ("basic", "a.c2 b.c1"),
        ("basic", "a.c1 a.c2 b.c1"),
        ("inverted", "a.pl b.pw"),
        ("pre_activation_conv_shortcut", "sc c1"),
        ("pre_activation_conv_shortcut", "sc c1 c2"),
        ("concat_branches", "stem deep1"),
        ("concat_branches", "deep3 pooled"),
        ("unet", "stem down1.c1"),
        ("unet", "enlarge up1.sc"),
    ],
)
def test_illegal_ranges_have_a_reason(name: str, layers: str) -> None:
    plan = menu(name)
    names = tuple(layer.name for layer in plan.layers)
    start = names.index(split(layers)[0])
    end = start + len(split(layers))
    assert names[start:end] == split(layers)
    (reason,) = [rejection.reason for rejection in plan.rejections if (rejection.start, rejection.end) == (start, end)]
    assert reason
    assert "\n" not in reason


@pytest.mark.parametrize(
    ("name", "layers", "kernel", "stride", "padding"),
    [
        ("basic", "a.c1 a.c2", (5, 5), (1, 1), (2, 2, 2, 2)),
        ("basic", "a.c1 a.c2 b.c1 b.c2", (9, 9), (1, 1), (4, 4, 4, 4)),
        ("bottleneck", "sc c1 c2 c3", (3, 3), (1, 1), (1, 1, 1, 1)),
        ("basic_strided", "sc c1 c2", (3, 3), (2, 2), (1, 1, 1, 1)),
        ("bottleneck_strided", "sc c1 c2 c3", (3, 3), (2, 2), (1, 1, 1, 1)),
        ("inverted", "a.pw a.dw a.pl", (3, 3), (1, 1), (1, 1, 1, 1)),
        ("asymmetric", "0 2", (7, 7), (1, 1), (3, 3, 3, 3)),
        ("explicit_same_padding", "stem down", (5, 5), (2, 2), (1, 2, 1, 2)),
    ],
)
def test_geometry_of_the_largest_merge(
    name: str, layers: str, kernel: tuple[int, int], stride: tuple[int, int], padding: tuple[int, ...]
) -> None:
    plan = menu(name)
    specs = [candidate.spec for candidate in plan.candidates if candidate.layers == split(layers) and candidate.spec]
    largest = max(specs, key=lambda spec: spec.kernel)
    assert (largest.kernel, largest.stride, largest.padding, largest.groups) == (kernel, stride, padding, 1)
    first, last = (
        plan.layers[[layer.name for layer in plan.layers].index(layer)]
        for layer in (split(layers)[0], split(layers)[-1])
    )
    assert (largest.in_channels, largest.out_channels) == (first.input_shape[0], last.output_shape[0])
    assert largest.output_size(*first.input_shape[1:]) == last.output_shape[1:]
