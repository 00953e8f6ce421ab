"""The authors' tables, counted: our rules for them give their entries, and our own plan holds every one of theirs."""

from __future__ import annotations

import pytest

import layermerge as lm
import real_networks
from layermerge.planning.candidate import Candidate
from layermerge.planning.plan import Plan

DEEP = ["torchvision:resnet34"]
INVERTED = ["torchvision:mobilenet_v2", "timm:mobilenetv2_100"]
# The width of the denoising network decides none of these figures; tests/diffusion holds its own to 98 entries too.
DENOISING = "diffusers:narrow_ddpm"
ALL = [*DEEP, *INVERTED, DENOISING]


def paper(name: str, method: str = "layermerge") -> Plan:
    return lm.plan(real_networks.traced(name), lm.Rules.paper(), method)


def ranges(entries: tuple[Candidate, ...]) -> set[tuple[int, int]]:
    return {(entry.start, entry.end) for entry in entries}


def kernels(entries: tuple[Candidate, ...]) -> set[int]:
    return {side for entry in entries if entry.spec is not None for side in entry.spec.kernel}


@pytest.mark.parametrize(("names", "entries", "count"), [(DEEP, 150, 62), (INVERTED, 391, 171), ([DENOISING], 98, 73)])
def test_entries_and_ranges_of_the_paper(names: list[str], entries: int, count: int) -> None:
    for name in names:
        menu = paper(name)
        assert (len(menu.entries), len(ranges(menu.entries))) == (entries, count), name


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "entries", "count"),
    [("timm:resnet34", 150, 62), ("timm:mobilenetv2_140", 391, 171), ("diffusers:ddpm", 98, 73)],
)
def test_entries_and_ranges_of_the_paper_in_other_builds(name: str, entries: int, count: int) -> None:
    test_entries_and_ranges_of_the_paper([name], entries, count)


@pytest.mark.parametrize(("names", "count"), [(DEEP, 62), (INVERTED, 171)])
def test_depth_keeps_every_conv_of_each_range(names: list[str], count: int) -> None:
    for name in names:
        menu = paper(name, "depth")
        assert (len(menu.entries), len(ranges(menu.entries))) == (count, count), name
        assert all(entry.kept == entry.layers for entry in menu.entries)


@pytest.mark.parametrize(("names", "count"), [(DEEP, 29), (INVERTED, 13), ([DENOISING], 34)])
def test_layeronly_can_drop_every_reducible_conv(names: list[str], count: int) -> None:
    for name in names:
        dropped = [entry for entry in paper(name, "layeronly").entries if entry.spec is None]
        assert len(dropped) == count, name
        assert all(entry.end - entry.start == 1 for entry in dropped)


@pytest.mark.parametrize(
    ("names", "sides"),
    [(DEEP, set(range(3, 22, 2))), (INVERTED, set(range(1, 16, 2))), ([DENOISING], {3, 5})],
)
def test_merged_kernels_of_the_paper(names: list[str], sides: set[int]) -> None:
    for name in names:
        assert kernels(paper(name).entries) == sides, name


@pytest.mark.parametrize(
    ("name", "outside"),
    [
        ("torchvision:resnet34", {"conv1", *(f"layer{stage}.0.downsample.0" for stage in (2, 3, 4))}),
        ("torchvision:mobilenet_v2", {"features.0.0", "features.18.0"}),
        ("timm:mobilenetv2_100", {"conv_stem", "conv_head"}),
    ],
)
def test_layers_outside_the_papers_table_stay_in_the_plan_as_fixed(name: str, outside: set[str]) -> None:
    menu = paper(name)
    fixed = [candidate for candidate in menu.candidates if candidate.fixed]
    assert {layer for candidate in fixed for layer in candidate.layers} == outside
    assert all(candidate.untouched for candidate in fixed)
    assert not any(candidate.fixed for candidate in menu.entries)


@pytest.mark.parametrize(
    ("name", "total", "irreducible"), [("torchvision:resnet34", 36, 7), ("timm:mobilenetv2_100", 52, 39)]
)
def test_irreducible_layers(name: str, total: int, irreducible: int) -> None:
    """The stem, strided convs and shortcuts of the one; all but the 13 unstrided depthwise convs of the other."""
    layers = real_networks.traced(name).layers
    assert (len(layers), sum(layer.irreducible for layer in layers)) == (total, irreducible)


def test_the_papers_denoising_entries_are_what_it_lists() -> None:
    """51 single convs, 3 identities (the convs after up-sampling) and 22 residual blocks with kernels 3 and 5."""
    entries = paper(DENOISING).entries
    singles = [entry for entry in entries if entry.untouched]
    identities = [entry for entry in entries if entry.spec is None]
    merged = [entry for entry in entries if entry.end - entry.start == 2]
    assert (len(singles), len(identities), len(merged)) == (51, 3, 44)
    assert all("upsamplers" in entry.layers[0] for entry in identities)
    assert all([layer.rpartition(".")[2] for layer in entry.layers] == ["conv1", "conv2"] for entry in merged)


@pytest.mark.parametrize("name", ALL)
def test_ours_contains_theirs(name: str) -> None:
    unbounded = lm.Rules(max_kernel=None)
    ours = {(entry.layers, entry.kept) for entry in lm.plan(real_networks.traced(name), unbounded).entries}
    theirs = {(entry.layers, entry.kept) for entry in paper(name).entries}
    assert theirs < ours


@pytest.mark.parametrize("name", INVERTED)
def test_our_stride_rule_gives_a_larger_menu(name: str) -> None:
    trace = real_networks.traced(name)
    ends = (trace.layers[0].name, trace.layers[-1].name)
    entries = lm.plan(trace, lm.Rules(max_kernel=None, exclude=ends)).entries
    kept = tuple(entry for entry in entries if entry.spec is not None)
    assert (len(kept), len(ranges(kept))) == (819, 316)
