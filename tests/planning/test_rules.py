"""Rules: pins and exclusions, bounds, methods, and a readable reason for every range that is not offered."""

from __future__ import annotations

import re
import warnings
from collections import Counter
from typing import Any

import pytest
import torch
from torch import nn

import layermerge as lm
import zoo
from layermerge.errors import PlanError
from layermerge.planning.candidate import Candidate
from layermerge.planning.plan import Plan


def plan(name: str, rules: lm.Rules | None = None, method: str = "layermerge") -> Plan:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="not part of the traced network")
        return lm.plan(zoo.traced(name), rules, method)


def holding(menu: Plan, layer: str) -> list[Candidate]:
    return [candidate for candidate in menu.candidates if layer in candidate.layers]


def reason(menu: Plan, first: str, last: str) -> str:
    names = [layer.name for layer in menu.layers]
    start, end = names.index(first), names.index(last) + 1
    (found,) = [rejection.reason for rejection in menu.rejections if (rejection.start, rejection.end) == (start, end)]
    return found


@pytest.mark.parametrize("pattern", ["a.c1", "a.c[1]", "?.c1"])
def test_a_pinned_layer_is_only_ever_left_as_it_is(pattern: str) -> None:
    menu = plan("basic", lm.Rules(pin=(pattern,)))
    (only,) = holding(menu, "a.c1")
    assert only.untouched
    assert not only.fixed
    assert only in menu.entries
    assert "'a.c1' is pinned" in reason(menu, "a.c1", "a.c2")


def test_an_excluded_layer_is_left_as_it_is_and_not_counted() -> None:
    menu = plan("basic", lm.Rules(exclude=("a.*",)))
    for name in ("a.c1", "a.c2"):
        (only,) = holding(menu, name)
        assert only.untouched
        assert only.fixed
        assert only not in menu.entries
    assert "'a.c1' is outside the table" in reason(menu, "a.c1", "a.c2")
    assert {candidate.layers for candidate in menu.entries} == {("stem",), ("b.c1",), ("b.c2",), ("b.c1", "b.c2")}


def test_pins_leave_other_ranges_alone() -> None:
    free = {candidate.key for candidate in plan("basic").candidates if "stem" not in candidate.layers}
    assert {
        candidate.key for candidate in plan("basic", lm.Rules(pin=("stem",))).candidates if candidate.start > 0
    } == free


def test_a_single_string_is_one_pattern() -> None:
    assert lm.Rules(pin="a.*").pin == ("a.*",)  # type: ignore[arg-type]


@pytest.mark.parametrize("option", ["pin", "exclude"])
@pytest.mark.parametrize(
    ("pattern", "hint"),
    [("a.c3", "did you mean 'a.c"), ("a", r"did you mean 'a\.\*'"), ("zzz", r"the first layers are \['stem'")],
)
def test_a_pattern_that_matches_nothing_is_an_error(option: str, pattern: str, hint: str) -> None:
    rules = lm.Rules(pin=(pattern,)) if option == "pin" else lm.Rules(exclude=(pattern,))
    with pytest.raises(PlanError, match=rf"{option} '{pattern}' matches no layer; {hint}"):
        plan("basic", rules)


@pytest.mark.parametrize(
    "rules", [lm.Rules(pin=("*",)), lm.Rules(exclude=("*",)), lm.Rules(pin=("stem", "a.*"), exclude=("b.*",))]
)
def test_everything_pinned_is_an_error(rules: lm.Rules) -> None:
    with pytest.raises(PlanError, match="every layer is pinned or excluded"):
        plan("basic", rules)


@pytest.mark.parametrize(
    ("field", "value", "wanted"),
    [
        ("max_kernel", 0, "give a whole number of at least 1, or None"),
        ("max_kernel", -3, "give a whole number of at least 1, or None"),
        ("max_kernel", 2.5, "give a whole number or None"),
        ("max_kernel", "9", "give a whole number or None"),
        ("max_kernel", True, "give a whole number or None"),
        ("identities", "some", "give 'all' or 'after_resize'"),
        ("identities", ["all"], "give 'all' or 'after_resize'"),
        ("stop_after_stride", "no", "give True or False"),
        ("fix_ends", 1, "give True or False"),
        ("fix_shortcuts", None, "give True or False"),
        ("rule_out_slow", 0.0, "give True or False"),
        ("pin", 3, "it must be a layer's name, a glob"),
        ("pin", None, "it must be a layer's name, a glob"),
        ("exclude", ("a.c1", 3), "it must be a layer's name, a glob"),
    ],
)
def test_a_value_that_a_rule_cannot_have_is_an_error(field: str, value: Any, wanted: str) -> None:
    with pytest.raises(
        PlanError, match=rf"^(Rules: )?{field} is ({re.escape(repr(value))}|a list); {wanted}"
    ) as caught:
        lm.Rules(**{field: value})
    assert "\n" not in str(caught.value)


def test_an_unknown_method_is_an_error() -> None:
    with pytest.raises(PlanError, match="unknown method 'widths'; choose one of layermerge, depth, layeronly"):
        plan("basic", method="widths")


@pytest.mark.parametrize(("bound", "largest"), [(1, 3), (3, 3), (5, 5), (7, 7), (None, 11)])
def test_merged_kernels_stay_within_the_bound(bound: int | None, largest: int) -> None:
    """A layer's own 3x3 kernel may exceed it; no merged one does."""
    menu = plan("basic", lm.Rules(max_kernel=bound))
    assert max(side for candidate in menu.candidates if candidate.spec for side in candidate.spec.kernel) == largest


def test_the_bound_is_the_reason_where_nothing_else_forbids() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 5, 3))
    menu = lm.plan(lm.trace(net, torch.randn(2, 3, 8, 8)), lm.Rules(max_kernel=4))
    assert reason(menu, "0", "2") == "the merged kernel would be 5x5, above max_kernel=4"


def test_methods_are_filters_of_one_plan() -> None:
    everything = plan("inverted")
    depth, layeronly = plan("inverted", method="depth"), plan("inverted", method="layeronly")
    keys = {candidate.key for candidate in everything.candidates}
    assert {c.key for c in depth.candidates} == {c.key for c in everything.candidates if c.kept == c.layers}
    assert {c.key for c in layeronly.candidates} == {c.key for c in everything.candidates if c.end - c.start == 1}
    assert {c.key for c in depth.candidates} < keys
    assert [menu.method for menu in (everything, depth, layeronly)] == ["layermerge", "depth", "layeronly"]


@pytest.mark.parametrize("method", ["layermerge", "depth", "layeronly"])
@pytest.mark.parametrize("name", zoo.ZOO)
def test_the_untouched_network_is_always_a_choice(name: str, method: str) -> None:
    for rules in (lm.Rules(), lm.Rules.paper()):
        menu = plan(name, rules, method)
        untouched = {candidate.start for candidate in menu.candidates if candidate.untouched}
        assert untouched == set(range(len(menu.layers)))


@pytest.mark.parametrize("name", zoo.ZOO)
def test_every_range_is_offered_or_rejected_exactly_once(name: str) -> None:
    menu = plan(name)
    offered = {(candidate.start, candidate.end) for candidate in menu.candidates}
    rejected = [(rejection.start, rejection.end) for rejection in menu.rejections]
    count = len(menu.layers)
    assert len(rejected) == len(set(rejected))
    assert not offered & set(rejected)
    assert offered | set(rejected) == {(i, j) for i in range(count) for j in range(i + 1, count + 1)}
    assert all(rejection.reason and "\n" not in rejection.reason for rejection in menu.rejections)


@pytest.mark.parametrize("name", zoo.ZOO)
def test_candidates_are_consistent(name: str) -> None:
    menu = plan(name)
    assert Counter(candidate.key for candidate in menu.candidates).most_common(1)[0][1] == 1
    for candidate in menu.candidates:
        covered = menu.layers[candidate.start : candidate.end]
        assert menu[candidate.key] is candidate
        assert candidate.layers == tuple(layer.name for layer in covered)
        assert [layer for layer in candidate.layers if layer in candidate.kept] == list(candidate.kept)
        assert (candidate.spec is None) is (not candidate.kept)
        irreducible = {layer.name for layer in covered if layer.irreducible}
        branch = zoo.traced(name).structure.branch(candidate.start, candidate.end)
        assert irreducible <= set(candidate.kept) or (branch and not candidate.kept)


def test_a_missing_key_is_an_error() -> None:
    with pytest.raises(PlanError, match="the plan has no candidate '9-10:3x3g1'"):
        plan("basic")["9-10:3x3g1"]


@pytest.mark.parametrize(
    ("name", "first", "last", "expected"),
    [
        ("cumsum_between", "first", "second", "cumsum"),
        ("max_pool_between", "first", "third", "max_pool2d"),
        ("concat_branches", "point", "after", "cat"),
        ("squeeze_excite", "gate.grow", "project", "mul"),
        ("unet", "attention.project", "enlarge", "upsample"),
        ("shared_conv", "before", "after", "'shared' is called more than once"),
        ("dict_output", "first", "second", "also read by the network's output"),
        ("bottleneck", "sc", "c1", "shortcut conv 'sc' but not the whole block"),
        ("basic", "stem", "a.c1", "only a part of block 'a'"),
        ("pre_activation_conv_shortcut", "sc", "c2", "'bn1' (foldable norm) lies between its fork"),
        ("time_shifted_block_conv_shortcut", "sc", "c2", "its body holds the statistical norm 'norm1'"),
        ("reflect_padding", "2", "4", "'2' does not merge: it pads with other values than zero"),
    ],
)
def test_reasons_name_what_stands_in_the_way(name: str, first: str, last: str, expected: str) -> None:
    assert expected in reason(plan(name), first, last)


def test_a_dilated_conv_says_why_it_does_not_merge() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 5, 3, dilation=2))
    menu = lm.plan(lm.trace(net, torch.randn(2, 3, 12, 12)))
    assert reason(menu, "0", "2") == "a dilated conv merges only with 1x1 neighbours"


def test_a_conv_after_a_kept_stride_says_why_it_does_not_merge() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 4, 3, 2), nn.ReLU(), nn.Conv2d(4, 5, 3))
    assert "follows a strided one; only 1x1" in reason(lm.plan(lm.trace(net, torch.randn(2, 3, 12, 12))), "0", "2")


def test_a_norm_of_other_channels_cannot_move_behind_the_range() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(4, 4, 3), nn.GroupNorm(2, 4), nn.ReLU(), nn.Conv2d(4, 6, 1), nn.Conv2d(6, 4, 1))
    menu = lm.plan(lm.trace(net, torch.randn(2, 4, 8, 8)))
    assert reason(menu, "0", "3") == "'1' would move behind the range, where it meets 6 channels, not 4"
    assert ("0", "3", "4") in {candidate.layers for candidate in menu.candidates}


def test_a_layer_norm_over_a_map_keeps_the_maps_size() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(4, 4, 3, padding=1), nn.LayerNorm((4, 8, 8)), nn.Conv2d(4, 4, 1, 2))
    menu = lm.plan(lm.trace(net, torch.randn(2, 4, 8, 8)))
    assert "'1' would move behind the range" in reason(menu, "0", "2")


def test_the_paper_offers_identities_only_after_a_resize() -> None:
    identities = [candidate.layers for candidate in plan("unet", lm.Rules.paper()).candidates if candidate.spec is None]
    assert identities == []  # 'enlarge' changes the number of channels
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(4, 4, 3, padding=1), nn.Upsample(scale_factor=2), *(nn.Conv2d(4, 4, 1) for _ in "ab"))
    menu = lm.plan(lm.trace(net, torch.randn(2, 4, 8, 8)), lm.Rules.paper())
    assert [candidate.layers for candidate in menu.candidates if candidate.spec is None] == [("2",)]


def test_the_paper_stops_after_a_stride() -> None:
    menu = plan("basic_strided", lm.Rules.paper())
    assert reason(menu, "c1", "c2") == "the paper's boundary after the strided conv 'c1'"
    assert ("c1", "c2") in {candidate.layers for candidate in plan("basic_strided").candidates}


def test_paper_rules_take_pins() -> None:
    rules = lm.Rules.paper(pin=("a.c1",), exclude=("a.c2",))
    assert (rules.pin, rules.exclude, rules.max_kernel) == (("a.c1",), ("a.c2",), None)
