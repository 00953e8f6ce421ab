"""Explaining: offers and obstacles are those of the plan and its tables, and every reason says what to change."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import nn

import layermerge as lm
import zoo
from layermerge.errors import PlanError
from layermerge.reporting.explaining import Explanation, explain
from layermerge.reporting.reasons import plain_words, what_to_change
from layermerge.solving.divergences import whole_rows
from layermerge.tables.latency import LatencyTable
from layermerge.tables.table import Row, Scalar, Table
from layermerge.tables.workload_clock import WHOLE
from layermerge.tables.workloads import workloads_of


def test_offers_are_the_candidates_of_a_layer() -> None:
    plan = lm.plan(zoo.traced("inverted"))
    for place, layer in enumerate(explain(plan).layers):
        covering = {c.key for c in plan.candidates if c.start <= place < c.end and not c.untouched}
        assert {offer.facts.key for offer in layer.offers} == covering
        assert layer.best is None, "nothing was measured"


def test_shares_are_of_multiplications_where_nothing_was_timed() -> None:
    found = explain(lm.plan(zoo.traced("inverted")))
    work = []
    for layer in lm.plan(zoo.traced("inverted")).layers:
        channels, high, wide = layer.output_shape
        weights = layer.spec.kernel[0] * layer.spec.kernel[1] * layer.spec.in_channels // layer.spec.groups
        work.append(channels * high * wide * weights)
    assert [layer.share for layer in found.layers] == pytest.approx([each / sum(work) for each in work])
    assert not found.timed


def test_what_stands_in_the_way_is_the_plans_own_reason() -> None:
    plan = lm.plan(zoo.traced("inverted"))
    reasons = {(each.start, each.end): each.reason for each in plan.rejections}
    for layer in explain(plan).layers:
        for each in layer.obstacles:
            assert each.what == "remove it" or each.reason in reasons.values()


@pytest.mark.parametrize(
    ("rules", "method", "says"),
    [
        (lm.Rules(pin=("a.c1",)), "layermerge", "rules.pin"),
        (lm.Rules(exclude=("a.c1",)), "layermerge", "rules.exclude"),
        (lm.Rules(identities="after_resize"), "layermerge", "rules.identities: all"),
        (lm.Rules(), "depth", "method layermerge or layeronly"),
    ],
)
def test_a_layer_that_the_rules_keep_says_which_rule(rules: lm.Rules, method: str, says: str) -> None:
    found = explain(lm.plan(zoo.traced("basic"), rules, method)).layer("a.c1")
    (kept,) = [each for each in found.obstacles if each.what == "remove it"]
    assert says in kept.change


def test_a_kernel_that_would_be_too_large_names_the_bound() -> None:
    """Neither of these two can be removed, so that only a larger kernel would do."""
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 5, 3))
    plan = lm.plan(lm.trace(net, torch.randn(2, 3, 9, 9)), lm.Rules(max_kernel=3))
    (obstacle,) = [each for each in explain(plan).layer("0").obstacles if each.what != "remove it"]
    assert obstacle.what == "merge it with 2 behind it"
    assert "rules.max_kernel" in obstacle.change


@pytest.mark.parametrize("method", ["depth", "layeronly"])
def test_a_method_that_offers_less_says_so(method: str) -> None:
    found = explain(lm.plan(zoo.traced("basic"), lm.Rules(max_kernel=3), method)).layer("a.c1")
    assert any(f"the method {method} offers no such range" in each.reason for each in found.obstacles)
    assert all(each.plain or each.change for each in found.obstacles)


def test_every_rejection_of_the_zoo_is_said_in_plain_words_with_what_to_change() -> None:
    names = (
        "basic basic_strided bottleneck inverted pre_activation dilated shared_conv squeeze_excite unet concat_branches"
    )
    for name in f"{names} reflect_padding max_pool_between even_same_residual".split():
        plan = lm.plan(zoo.traced(name))
        for each in plan.rejections:
            assert plain_words(each.reason), each.reason
            assert what_to_change(each.reason), each.reason


# -- with tables


def tables(plan: lm.Plan) -> tuple[LatencyTable, Table]:
    """Every workload takes as many tenths of a millisecond as it comes, and every change costs its number in hundredths."""
    workloads = workloads_of(zoo.traced("basic"), plan)
    keys = sorted({workload.key for workload in workloads.values() if workload is not None})
    rows = [Row(key=WHOLE, value=50.0), *(Row(key=key, value=(number + 1) / 10) for number, key in enumerate(keys))]
    provenance: dict[str, Scalar] = {
        "kind": "latency",
        "network": plan.network,
        "runtime": "torch",
        "threads": 1,
        "batch": 1,
    }
    latency = LatencyTable(plan, workloads, Table(provenance, rows))
    changing = [candidate for candidate in plan.entries if candidate.changes]
    scored = [Row(key=each.key, value=-(number + 1) / 100) for number, each in enumerate(changing[1:])]
    ruled = Row(key=changing[0].key, status="ruled_out", reason="unmerged it takes 1.0 ms, merged 2.0 ms")
    return latency, Table({"kind": "importance", "network": plan.network}, [ruled, *scored])


@pytest.fixture
def timed() -> tuple[lm.Plan, LatencyTable, Table, Explanation]:
    plan = lm.plan(zoo.traced("basic"))
    latency, importance = tables(plan)
    return plan, latency, importance, explain(plan, latency, importance)


Timed = tuple[lm.Plan, LatencyTable, Table, Explanation]


def test_savings_are_what_the_layers_take_less_what_the_candidate_takes(timed: Timed) -> None:
    plan, latency, _, found = timed
    alone = [latency.of(plan[f"{place}-{place + 1}:{'x'.join(map(str, layer.spec.kernel))}g{layer.spec.groups}"])
             for place, layer in enumerate(plan.layers)]  # fmt: skip
    for layer in found.layers:
        for offer in layer.offers:
            candidate, own = offer.facts.candidate, latency.of(offer.facts.candidate)
            assert own is not None
            taken = sum(each or 0.0 for each in alone[candidate.start : candidate.end])
            assert offer.facts.saved_ms == pytest.approx(taken - own)
    assert found.original_ms == 50.0


def test_offers_come_by_what_they_save_and_what_is_ruled_out_comes_last(timed: Timed) -> None:
    _, _, importance, found = timed
    for layer in found.layers:
        on = [offer.facts.saved_ms or 0.0 for offer in layer.offers if offer.off is None]
        assert on == sorted(on, reverse=True)
        off = [offer.off is not None for offer in layer.offers]
        assert off == sorted(off)
        for offer in layer.offers:
            assert (offer.off is not None) is (importance.rows[offer.facts.key].status == "ruled_out")


def test_worthwhile_is_what_nothing_beats(timed: Timed) -> None:
    for layer in timed[3].layers:
        known = [
            (offer.facts.saved_ms or 0.0, offer.facts.change or 0.0)
            for offer in layer.offers
            if offer.off is None and (offer.facts.saved_ms or 0.0) > 0
        ]
        best = {
            one
            for one in known
            if not any(other[0] >= one[0] and other[1] >= one[1] and other != one for other in known)
        }
        assert {(each.facts.saved_ms, each.facts.change) for each in layer.worthwhile} == best


def test_an_obstacle_says_how_much_is_at_stake(timed: Timed) -> None:
    plan, latency, _, found = timed
    first, second = (latency.of(plan.candidates[0]), found.layers[0])
    assert first is not None
    assert not whole_rows(timed[2]), "so no score can be estimated"
    assert all(offer.loss is None for layer in found.layers for offer in layer.offers)
    for each in second.obstacles:
        assert each.at_most_ms is not None
        assert each.at_most_ms >= (second.facts.latency_ms or 0.0)


# -- names


def test_a_layer_is_found_by_name_number_or_an_unambiguous_part() -> None:
    found = explain(lm.plan(zoo.traced("basic")))
    names = [layer.facts.layer.name for layer in found.layers]
    for place, name in enumerate(names):
        assert found.layer(name).place == found.layer(str(place)).place == place
    parts = [
        part for part in itertools.chain(*(name.split(".") for name in names)) if sum(part in n for n in names) == 1
    ]
    for part in parts:
        assert part in found.layer(part).facts.layer.name


@pytest.mark.parametrize(
    ("name", "says"), [("a.c9", "did you mean 'a.c"), ("c1", "fits 2 layers: "), ("99", "no layer")]
)
def test_a_layer_that_is_not_there_is_one_line_with_near_names(name: str, says: str) -> None:
    with pytest.raises(PlanError, match=says):
        explain(lm.plan(zoo.traced("basic"))).layer(name)
