"""Layers in chain order, residual blocks, shortcuts, boundaries between chains, and what lies on a path."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import nn

import layermerge as lm
import zoo
from layermerge.tracing.finder import conv_spec
from layermerge.tracing.operators import Role
from layermerge.tracing.structure import BlockStep, DataPath, OpStep, Structure
from oracles import pad


def chains(name: str) -> list[str]:
    """The layers of each chain, shortcut convs before the body they bridge."""
    structure = zoo.traced(name).structure
    return [" ".join(structure.layers[index].name for index in structure.layers_of(path)) for path in structure.chains]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("plain", ["0 3 6"]),
        ("functional_relu", ["first second third"]),
        ("one_relu_five_times", ["convs.0 convs.1 convs.2 convs.3 convs.4"]),
        ("basic", ["stem a.c1 a.c2 b.c1 b.c2"]),
        ("bottleneck", ["sc c1 c2 c3"]),
        ("rep_branches", ["stem small big"]),
        ("shared_conv", ["before", "after"]),
        ("max_pool_between", ["first", "second third"]),
        ("cumsum_between", ["first", "second third"]),
        ("reflect_padding", ["0", "2 4"]),
        ("squeeze_excite", ["expand gate.reduce gate.grow project"]),
        ("dict_output", ["first", "second"]),
        ("two_inputs", ["left", "right", "both"]),
        ("auxiliary_head", ["stem body"]),
    ],
)
def test_chains_hold_the_layers_in_data_path_order(name: str, expected: list[str]) -> None:
    assert chains(name) == expected


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("concat_branches", {"stem", "deep1 deep2 deep3", "pooled", "point", "after"}),
        (
            "unet",
            {
                "stem down1.c1 down1.c2",
                "shrink mid.sc mid.c1 mid.c2 attention.qkv attention.project",
                "enlarge",
                "up1.sc up1.c1 up1.c2 out",
            },
        ),
    ],
)
def test_branches_are_chains_laid_end_to_end(name: str, expected: set[str]) -> None:
    found = chains(name)
    assert set(found) == expected
    assert len(found) == len(expected)
    assert " ".join(found).split() == [layer.name for layer in zoo.traced(name).layers]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("plain", []),
        ("basic", [("a", "a.c1 a.c2", None), ("b", "b.c1 b.c2", None)]),
        ("inverted", [("a", "a.pw a.dw a.pl", None), ("b", "b.pw b.dw b.pl", None)]),
        ("pre_activation_after_stem", [("a", "a.c1 a.c2", None)]),
        ("squeeze_excite", [("add", "expand gate.reduce gate.grow project", None)]),
        (
            "unet",
            [
                ("down1", "down1.c1 down1.c2", None),
                ("mid", "mid.sc mid.c1 mid.c2", "mid.sc"),
                ("attention", "attention.qkv attention.project", None),
                ("up1", "up1.sc up1.c1 up1.c2", "up1.sc"),
            ],
        ),
    ],
)
def test_blocks_are_named_and_contiguous(name: str, expected: list[tuple[str, str, str | None]]) -> None:
    traced = zoo.traced(name)
    found = []
    for block in traced.blocks:
        layers = [layer.name for layer in traced.layers[block.start : block.end]]
        assert len(block) == len(layers)
        shortcut = None if block.shortcut is None else traced.layers[block.shortcut].name
        found.append((block.name, " ".join(layers), shortcut))
    assert found == expected


@pytest.mark.parametrize(
    ("name", "layers", "shortcut"),
    [
        ("basic_strided", 3, 0),
        ("bottleneck", 4, 0),
        ("bottleneck_strided", 4, 0),
        ("pre_activation", 2, None),
        ("pre_activation_conv_shortcut", 3, 0),
        ("functional_residual", 2, None),
        ("in_place", 2, None),
        ("stochastic_depth", 2, None),
        ("time_shifted_block_conv_shortcut", 3, 0),
    ],
)
def test_a_shortcut_conv_is_the_layer_before_its_body(name: str, layers: int, shortcut: int | None) -> None:
    (block,) = zoo.traced(name).blocks
    assert (len(block), block.shortcut) == (layers, shortcut)


def test_three_branches_are_a_block_within_a_block() -> None:
    outer, inner = zoo.traced("rep_branches").blocks
    assert (outer.start, outer.end, outer.shortcut) == (1, 3, None)
    assert (inner.start, inner.end, inner.shortcut) == (1, 3, 1)
    assert [step for step in outer.body if isinstance(step, BlockStep)] == [BlockStep(1)]


@pytest.mark.parametrize(
    ("name", "irreducible"),
    [
        ("plain", {"0"}),
        ("basic", {"stem"}),
        ("basic_strided", {"sc", "c1"}),
        ("bottleneck", {"sc", "c1", "c3"}),
        ("bottleneck_strided", {"sc", "c1", "c2", "c3"}),
        ("inverted", {"a.pw", "a.pl", "b.pw", "b.pl"}),
        ("explicit_same_padding", {"stem", "down"}),
        ("asymmetric", set()),
        ("convs_on_single_pixels", {"stem"}),
    ],
)
def test_a_conv_is_irreducible_where_its_output_has_another_shape(name: str, irreducible: set[str]) -> None:
    assert {layer.name for layer in zoo.traced(name).layers if layer.irreducible} == irreducible


def test_layers_carry_geometry_shapes_and_norm() -> None:
    stem, down, same = zoo.traced("explicit_same_padding").layers
    assert (stem.spec.kernel, stem.spec.padding, stem.pads) == ((3, 3), (1, 1, 1, 1), ())
    assert (down.spec.stride, down.spec.padding, len(down.pads)) == ((2, 2), (0, 1, 0, 1), 1)
    assert (down.input_shape, down.output_shape) == ((4, 16, 16), (4, 8, 8))
    assert (same.spec.kernel, same.spec.padding) == ((5, 3), (2, 2, 1, 1))
    weight = zoo.build("explicit_same_padding").get_parameter("down.weight")
    assert down.l1 == pytest.approx(float(weight.detach().double().abs().sum()))


@pytest.mark.parametrize("name", zoo.ZOO)
def test_geometry_gives_the_traced_shapes(name: str) -> None:
    for layer in zoo.traced(name).layers:
        channels, *size = layer.input_shape
        assert layer.spec.in_channels == channels
        assert (layer.spec.out_channels, *layer.spec.output_size(*size)) == layer.output_shape


def test_only_the_conv_right_after_a_resize_says_so() -> None:
    assert [layer.name for layer in zoo.traced("unet").layers if layer.after_resize] == ["enlarge"]


def test_padding_with_other_values_is_noted() -> None:
    notes = {layer.name: layer.unmergeable for layer in zoo.traced("reflect_padding").layers}
    assert notes == {"0": None, "2": "it pads with other values than zero", "4": None}


def all_steps(structure: Structure) -> list[OpStep]:
    nested: list[DataPath] = [*structure.chains]
    nested += [path for block in structure.blocks for path in (block.body, block.bypass)]
    return [step for path in nested for step in path if isinstance(step, OpStep)]


def test_roles_on_the_path_of_a_diffusion_block() -> None:
    structure = zoo.traced("time_shifted_block").structure
    roles = [step.role for step in structure.blocks[0].body if isinstance(step, OpStep)]
    silu, norm = Role.ACTIVATION, Role.STAT_NORM
    assert roles == [norm, silu, Role.SHIFT, norm, silu, Role.DROPOUT]
    assert Role.SCALE in [step.role for step in all_steps(structure)]
    assert structure.blocks[0].unfusable == "its body holds the statistical norm 'norm1'"


def test_stochastic_depth_is_nothing_at_inference() -> None:
    (block,) = zoo.traced("stochastic_depth").blocks
    labels = {step.label: step.role for step in block.body if isinstance(step, OpStep)}
    assert labels["'drop_path'"] is Role.DROPOUT
    assert block.unfusable is None


def test_foldable_and_statistical_norms_are_told_apart() -> None:
    steps = {step.label: step.role for step in all_steps(zoo.traced("norms_of_every_kind").structure)}
    assert steps["'slow'"] is Role.NORM
    assert {steps[f"'{name}'"] for name in ("instance", "group", "batch_statistics")} == {Role.STAT_NORM}
    assert steps["'slope'"] is Role.ACTIVATION


@pytest.mark.parametrize(("kernel", "dilation"), [((2, 3), 1), ((4, 5), 1), ((4, 2), 3), ((3, 3), 2)])
def test_same_padding_is_resolved_as_torch_does(kernel: tuple[int, int], dilation: int) -> None:
    conv = nn.Conv2d(2, 2, kernel, padding="same", dilation=dilation)
    bare = nn.Conv2d(2, 2, kernel, dilation=dilation)
    bare.load_state_dict(conv.state_dict())
    x = torch.randn(1, 2, 14, 15)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Using padding='same' with even kernel lengths")
        expected = conv(x)
    assert torch.allclose(expected, bare(pad(x, conv_spec(conv).padding)), atol=1e-5)


def test_a_conv_that_reads_a_map_of_the_output_ends_its_chain() -> None:
    """Hidden features handed out by the network must survive, so nothing merges across them."""
    assert zoo.traced("namedtuple_output").structure.openings[1].endswith("is also read by the network's output")


def test_the_public_trace_has_layers_and_blocks() -> None:
    traced = zoo.traced("basic")
    assert isinstance(traced, lm.Trace)
    assert traced.layers is traced.structure.layers
    assert traced.blocks is traced.structure.blocks
