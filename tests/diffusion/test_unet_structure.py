"""Denoising networks of diffusers: what merges and what does not, and that it computes what the library's blocks would."""

from __future__ import annotations

import random
import re
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import layermerge as lm
import real_networks
from agreement import worst
from diffusion.stock import ROUNDED, TINY, attentions, blocks, noisy, small, told, unet
from layermerge.models import import_diffusers
from solutions import random_solution, randomise

SEEDS = range(14, 22)


def convs(model: nn.Module) -> dict[str, nn.Conv2d]:
    return {name: part for name, part in model.named_modules() if isinstance(part, nn.Conv2d)}


def ranges(menu: lm.Plan) -> set[tuple[str, ...]]:
    return {candidate.layers for candidate in menu.candidates if len(candidate.layers) > 1}


def pairs(model: nn.Module) -> set[tuple[str, ...]]:
    return {(f"{name}.conv1", f"{name}.conv2") for name in blocks(model)}


# -- what merges, and what does not


def test_every_conv_is_a_layer_and_ranges_are_the_bodies_of_blocks() -> None:
    """No range crosses attention, up-sampling or a concatenation, nor fuses a block that holds group norms."""
    model, trace = small()
    assert {layer.name for layer in trace.layers} == convs(model).keys()
    assert ranges(lm.plan(trace)) == pairs(model)
    assert {block.conv_shortcut is None for block in blocks(model).values()} == {True, False}


def test_what_can_be_removed_is_what_keeps_the_shape() -> None:
    model, trace = small()
    keeps_shape = {
        name for name, conv in convs(model).items() if conv.in_channels == conv.out_channels and conv.stride == (1, 1)
    }
    removable = {c.layers[0] for c in lm.plan(trace).candidates if len(c.layers) == 1 and not c.kept}
    assert removable == keeps_shape
    assert "up_blocks.0.upsamplers.0.conv" in removable


def test_the_papers_menu_removes_alone_only_convs_after_up_sampling() -> None:
    model, trace = small()
    menu = lm.plan(trace, lm.Rules.paper())
    identities = {candidate.layers for candidate in menu.entries if candidate.spec is None}
    assert identities == {("up_blocks.0.upsamplers.0.conv",)}
    shortcuts = {name for name in convs(model) if name.endswith("conv_shortcut")}
    assert {c.layers[0] for c in menu.candidates if c.fixed} == {*shortcuts, "conv_out"}
    # One entry for each conv in the table, one identity, and a 3x3 and a 5x5 for each block.
    assert len(menu.entries) == len(convs(model)) - len(shortcuts) - 1 + 1 + 2 * len(blocks(model))


@pytest.mark.parametrize(
    ("first", "last", "reason"),
    [
        ("conv_in", "down_blocks.0.resnets.0.conv1", "also read by cat"),
        ("down_blocks.0.resnets.0.conv2", "down_blocks.0.downsamplers.0.conv", "also read by cat"),
        ("mid_block.resnets.0.conv2", "mid_block.resnets.1.conv1", r"mid_block\.attentions\.0' lies between"),
        ("mid_block.resnets.1.conv2", "up_blocks.0.resnets.0.conv_shortcut", "cat in .* lies between"),
        ("up_blocks.0.resnets.1.conv2", "up_blocks.0.upsamplers.0.conv", "upsample_nearest2d in .* lies between"),
        ("up_blocks.0.upsamplers.0.conv", "up_blocks.1.resnets.0.conv_shortcut", "cat in .* lies between"),
        ("up_blocks.0.resnets.0.conv_shortcut", "up_blocks.0.resnets.0.conv1", "not the whole block"),
        ("up_blocks.0.resnets.0.conv_shortcut", "up_blocks.0.resnets.0.conv2", "holds the statistical norm"),
    ],
)
def test_why_a_range_is_not_on_the_menu(first: str, last: str, reason: str) -> None:
    _, trace = small()
    names = [layer.name for layer in trace.layers]
    place = (names.index(first), names.index(last) + 1)
    (found,) = [item.reason for item in lm.plan(trace).rejections if (item.start, item.end) == place]
    assert re.search(reason, found), found


# -- the same numbers as the library's own blocks


@cache
def solutions() -> list[tuple[lm.Candidate, ...]]:
    menu = lm.plan(small()[1])
    return [random_solution(menu, random.Random(seed)) for seed in SEEDS]


def test_the_solutions_hold_every_kind_of_change() -> None:
    """Each way to treat a body, of blocks with and without a shortcut conv, and the conv after up-sampling."""
    model, trace = small()

    def kind(candidate: lm.Candidate) -> tuple[Any, ...]:
        owner = candidate.layers[0].rpartition(".")[0]
        short = [tuple(name.rpartition(".")[2] for name in part) for part in (candidate.layers, candidate.kept)]
        return (*short, owner in blocks(model) and blocks(model)[owner].conv_shortcut is None)

    offered = {kind(candidate) for candidate in lm.plan(trace).candidates}
    assert {kind(candidate) for solution in solutions() for candidate in solution} == offered
    assert len(offered) > 12


@pytest.mark.parametrize("seed", SEEDS)
def test_rewritten_and_merged_compute_what_stock_blocks_do(seed: int) -> None:
    """At another batch size and other time steps than those that were traced."""
    model, trace = small()
    solution = solutions()[seed - SEEDS.start]
    rewritten = lm.rewrite(trace, solution).eval()
    merged = lm.merge(rewritten)
    with torch.no_grad():
        expected, original = told(model, solution)(*noisy(3)).sample, model(*noisy(3)).sample
        assert worst(expected, rewritten(*noisy(3)).sample) <= ROUNDED
        assert worst(expected, merged(*noisy(3)).sample) <= ROUNDED
        assert worst(original, expected) > 1e-2, "the solution changes nothing, so nothing was shown"


def test_the_time_step_reaches_a_merged_network_through_all_its_blocks() -> None:
    """All blocks merged: what the time embedding changes is what it changes in the unmerged network."""
    model, trace = small()
    whole = [candidate for candidate in lm.plan(trace).candidates if len(candidate.kept) == 2]
    assert len(whole) == len(blocks(model))
    merged, expected = lm.merge(lm.rewrite(trace, whole)), told(model, whole)
    sample, _ = noisy(1)
    with torch.no_grad():
        steps = [torch.tensor([step]) for step in (0, 40, 999)]
        ours, theirs = ([net(sample, step).sample for step in steps] for net in (merged, expected))
    assert worst(theirs, ours) <= ROUNDED
    assert min(worst(theirs[0], theirs[1]), worst(theirs[1], theirs[2])) > 1e-2


def test_norms_and_time_projections_stay_as_they_were() -> None:
    model, trace = small()
    whole = [candidate for candidate in lm.plan(trace).candidates if len(candidate.kept) == 2]
    state, before = lm.merge(lm.rewrite(trace, whole)).state_dict(), model.state_dict()
    same = [name for name in before if "norm" in name or "time_emb" in name or "attentions" in name]
    assert len(same) > 60
    assert all(torch.equal(before[name], state[name]) for name in same)


def test_a_block_emptied_by_two_candidates_is_its_shortcut() -> None:
    model, trace = small()
    menu = lm.plan(trace)
    gone = [c for c in menu.candidates if len(c.layers) == 1 and not c.kept and "mid_block.resnets.0" in c.layers[0]]
    assert len(gone) == 2
    merged = lm.merge(lm.rewrite(trace, gone))
    assert not any("mid_block.resnets.0" in name for name in merged.state_dict())
    with torch.no_grad():
        assert worst(told(model, gone)(*noisy(2)).sample, merged(*noisy(2)).sample) <= ROUNDED


def test_a_time_embedding_that_scales_keeps_the_convs_of_a_block_apart() -> None:
    model = unet(TINY | {"resnet_time_scale_shift": "scale_shift"})
    trace = lm.trace(model, noisy(2, 8))
    menu = lm.plan(trace)
    together = [candidate for candidate in menu.candidates if len(candidate.layers) > 1]
    whole = {name for name, block in blocks(model).items() if block.conv_shortcut is None}
    assert {candidate.layers for candidate in together} == {(f"{name}.conv1", f"{name}.conv2") for name in whole}
    assert not any(candidate.kept for candidate in together), "a body goes whole, and merges not at all"
    second = [c for c in menu.candidates if not c.kept and len(c.layers) == 1 and c.layers[0].endswith("conv2")]
    assert second
    for solution in (second, together):
        merged = lm.merge(lm.rewrite(trace, solution))
        with torch.no_grad():
            assert worst(told(model, solution)(*noisy(3, 8)).sample, merged(*noisy(3, 8)).sample) <= ROUNDED


# -- conditioned by text, class, added embeddings and a second network's features


def conditions(batch: int) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(batch)

    def normal(*shape: int) -> Tensor:
        return torch.randn(batch, *shape, generator=generator)

    maps = [(32, 16, 16), (32, 16, 16), (32, 8, 8), (64, 8, 8)]
    return {
        "sample": normal(4, 16, 16),
        "timestep": torch.tensor([13, 987, 500])[:batch],
        "encoder_hidden_states": normal(5, 32),
        "encoder_attention_mask": torch.tensor([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1], [1, 1, 0, 0, 0]]).bool()[:batch],
        "class_labels": torch.tensor([1, 5, 2])[:batch],
        "added_cond_kwargs": {"text_embeds": normal(10), "time_ids": normal(6)},
        "down_block_additional_residuals": tuple(normal(*shape) for shape in maps),
        "mid_block_additional_residual": normal(64, 8, 8),
    }


@cache
def conditional() -> tuple[Any, lm.Trace]:
    torch.manual_seed(7)
    config = real_networks.CONDITIONAL_CONFIG | {
        "num_class_embeds": 7,
        "addition_embed_type": "text_time",
        "addition_time_embed_dim": 8,
        "projection_class_embeddings_input_dim": 6 * 8 + 10,
    }
    model = randomise(import_diffusers().UNet2DConditionModel(**config), 5).eval()
    return model, lm.trace(model, conditions(2))


def test_cross_attention_is_crossed_by_no_range() -> None:
    model, trace = conditional()
    assert {layer.name for layer in trace.layers} == convs(model).keys()
    menu = lm.plan(trace)
    assert {candidate.layers for candidate in menu.candidates if len(candidate.kept) > 1} == pairs(model)
    attention = {(f"{name}.proj_in", f"{name}.proj_out") for name in attentions(model)}
    assert ranges(menu) == pairs(model) | attention, "attention goes whole or stays"


@pytest.mark.parametrize("seed", range(3))
def test_a_conditioned_network_merges_exactly(seed: int) -> None:
    model, trace = conditional()
    solution = random_solution(lm.plan(trace), random.Random(seed))
    merged = lm.merge(lm.rewrite(trace, solution))
    with torch.no_grad():
        expected = told(model, solution)(**conditions(3)).sample
        assert worst(expected, merged(**conditions(3)).sample) <= ROUNDED
        assert worst(model(**conditions(3)).sample, expected) > 1e-2


def test_every_extra_input_passes_through() -> None:
    """Each of them alone, changed, changes what the merged network returns as it changes what the library's returns."""
    model, trace = conditional()
    solution = random_solution(lm.plan(trace), random.Random(1))
    merged, stock = lm.merge(lm.rewrite(trace, solution)), told(model, solution)
    given, other = conditions(2), conditions(3)
    with torch.no_grad():
        before = stock(**given).sample
        for name in given:
            changed = given | {name: torch.utils._pytree.tree_map(lambda leaf: leaf[1:], other[name])}
            expected = stock(**changed).sample
            assert worst(before, expected) > 1e-4, name
            assert worst(expected, merged(**changed).sample) <= ROUNDED, name
