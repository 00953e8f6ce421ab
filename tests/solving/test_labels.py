"""The dynamic programme against brute force over all chains."""

from __future__ import annotations

import doctest
import math
import random
from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from layermerge.errors import OptionError
from layermerge.solving import labels
from layermerge.solving.labels import Option, ParetoSet, pareto, undominated
from solving.instances import best_points, chains, instances, totals


def points(found: ParetoSet) -> list[tuple[float, float]]:
    return list(zip(found.latency_ms.tolist(), found.score.tolist(), strict=True))


def all_chains(found: ParetoSet) -> list[tuple[str, ...]]:
    return [found.chain(index) for index in range(len(found))]


def random_network(seed: int, layers: int, count: int) -> list[Option]:
    """Large enough for the merge to skip stretches; latencies and scores in tenths, so that ties abound."""
    draw = random.Random(seed)
    spans = [(place, place + 1) for place in range(layers)]
    while len(spans) < count:
        start = draw.randrange(layers)
        spans.append((start, min(layers, start + draw.randint(1, 6))))
    return [
        Option(a, b, draw.randint(0, 40) / 10, draw.choice([1.0, draw.random()]), f"{a}-{b}:{number}")
        for number, (a, b) in enumerate(spans)
    ]


def plain_sweep(options: list[Option], layers: int) -> list[tuple[float, float]]:
    """The same recurrence without any shortcut."""
    table: list[list[tuple[float, float]]] = [[(0.0, 0.0)]]
    for place in range(1, layers + 1):
        reached = {
            (latency + option.latency_ms, score + option.score)
            for option in options
            if option.end == place
            for latency, score in table[option.start]
        }
        kept: list[tuple[float, float]] = []
        for point in sorted(reached, key=lambda point: (point[0], -point[1])):
            if not kept or point[1] > kept[-1][1]:
                kept.append(point)
        table.append(kept)
    return table[layers]


@settings(max_examples=400)
@given(instances())
def test_equals_brute_force_to_the_last_bit(instance: tuple[list[Option], int]) -> None:
    options, layers = instance
    found = pareto(options, layers)
    assert points(found) == best_points(options, layers)
    by_key = {option.key: option for option in options}
    for index, point in enumerate(points(found)):
        chain = [by_key[key] for key in found.chain(index)]
        assert [option.start for option in chain] == [0, *(option.end for option in chain[:-1])]
        assert chain[-1].end == layers
        assert totals(chain) == point


@given(instances(), st.randoms(use_true_random=False))
def test_the_order_of_options_changes_nothing(instance: tuple[list[Option], int], shuffler: random.Random) -> None:
    options, layers = instance
    first = pareto(options, layers)
    shuffler.shuffle(options)
    again = pareto(options, layers)
    assert points(first) == points(again)
    assert all_chains(first) == all_chains(again)


@pytest.mark.parametrize("seed", range(4))
def test_skipping_stretches_loses_nothing(seed: int) -> None:
    options = random_network(seed, layers=30, count=300)
    found = pareto(options, 30)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(labels, "SMALL", 8)
        patch.setattr(labels, "STRETCH", 3)
        skipping = pareto(options, 30)
    assert points(skipping) == points(found) == plain_sweep(options, 30)
    assert all_chains(skipping) == all_chains(found)
    assert skipping.labels == found.labels


def test_large_sets_are_merged_by_skipping() -> None:
    options = [
        Option(
            place, place + 1, math.sqrt(place + 2) * which, math.log(place + 2) * (1 - 2.0**-which), f"{place}:{which}"
        )
        for place in range(16)
        for which in range(4)
    ]
    found = pareto(options, 16)
    assert 4 * len(found) > labels.SMALL, "the last merge was too small to skip anything"
    assert points(found) == plain_sweep(options, 16)


def test_one_layer_with_one_choice() -> None:
    found = pareto([Option(0, 1, 2.5, 1.0, "only")], 1)
    assert points(found) == [(2.5, 1.0)]
    assert found.chain(0) == found.chain(-1) == ("only",)
    with pytest.raises(IndexError):
        found.chain(1)


def test_a_single_chain_adds_up_from_left_to_right() -> None:
    latencies = [0.1, 0.2, 0.3, 1e9, 1e-9]
    found = pareto([Option(i, i + 1, ms, 0.7, str(i)) for i, ms in enumerate(latencies)], 5)
    assert points(found) == [(0.1 + 0.2 + 0.3 + 1e9 + 1e-9, 0.7 + 0.7 + 0.7 + 0.7 + 0.7)]


def test_zero_latencies_leave_one_point() -> None:
    options = [Option(i, i + 1, 0.0, score, f"{i}:{score}") for i in range(3) for score in (0.0, 1.0)]
    found = pareto(options, 3)
    assert points(found) == [(0.0, 3.0)]
    assert found.chain(0) == ("0:1.0", "1:1.0", "2:1.0")


def test_ties_go_to_the_longer_last_range() -> None:
    options = [Option(0, 1, 1.0, 1.0, "a"), Option(1, 2, 1.0, 1.0, "b"), Option(0, 2, 2.0, 2.0, "ab")]
    assert all_chains(pareto(options, 2)) == [("ab",)]
    twins = [Option(0, 1, 1.0, 1.0, "second"), Option(0, 1, 1.0, 1.0, "first")]
    assert all_chains(pareto(twins, 1)) == [("first",)]


def test_a_longer_range_avoids_a_costly_entry() -> None:
    """The authors' code gives up when a layer's cheapest entry exceeds the budget, though a longer block skips that layer."""
    options = [Option(0, 1, 1.0, 1.0, "a"), Option(1, 2, 100.0, 1.0, "b"), Option(0, 2, 2.0, 0.5, "ab")]
    assert points(pareto(options, 2)) == [(2.0, 0.5), (101.0, 2.0)]


def test_dead_ends_are_left_out() -> None:
    options = [Option(0, 1, 0.0, 9.0, "a"), Option(0, 2, 1.0, 1.0, "b"), Option(2, 3, 1.0, 1.0, "c")]
    found = pareto([*options, Option(1, 2, 0.5, 0.1, "d"), Option(0, 3, 9.0, 0.0, "e")], 3)
    assert points(found) == [(1.5, 10.1)]
    assert points(pareto(options, 3)) == [(2.0, 2.0)]


@settings(max_examples=200)
@given(instances(), st.sampled_from([0.1, 0.3, 1.0, 7.0, 100.0]))
def test_a_tick_rounds_up_and_keeps_its_bound(instance: tuple[list[Option], int], tick: float) -> None:
    options, layers = instance
    found = pareto(options, layers, tick_ms=tick)
    exact = best_points(options, layers)
    by_key = {option.key: option for option in options}
    assert found.ticks is not None
    for index, ticks in enumerate(found.ticks.tolist()):
        chain = [by_key[key] for key in found.chain(index)]
        assert totals(chain) == points(found)[index]
        true = sum(Fraction(option.latency_ms) for option in chain)
        assert 0 <= ticks * Fraction(tick) - true < len(chain) * Fraction(tick) or true == ticks == 0
    assert all(a[0] < b[0] and a[1] < b[1] for a, b in pairwise(points(found)))
    assert found.latency_ms[0] == exact[0][0], "the fastest chain is found in spite of rounding"
    for latency, score in exact:
        # The bound holds for real sums; the small terms cover the rounding of ours.
        reach = latency + layers * tick * (1 + 1e-12) + 1e-12
        assert max(s for ms, s in points(found) if ms <= reach) >= score - 1e-12


@given(instances())
def test_a_tick_keeps_the_chains_it_is_asked_to(instance: tuple[list[Option], int]) -> None:
    options, layers = instance
    for chain in list(chains(options, layers))[:3]:
        latency, score = totals(chain)
        found = pareto(options, layers, tick_ms=5.0, also=[[option.key for option in chain]])
        assert any(ms <= latency and s >= score for ms, s in points(found))


def test_all_layers_below_one_tick() -> None:
    """The authors' code calls this impossible."""
    options = [Option(i, i + 1, 0.01, 1.0, str(i)) for i in range(4)]
    found = pareto(options, 4, tick_ms=1.0)
    assert points(found) == [(0.01 + 0.01 + 0.01 + 0.01, 4.0)]
    assert found.ticks is not None
    assert found.ticks.tolist() == [4]


def test_whole_ticks_are_not_rounded() -> None:
    # 0.3 / 0.1 is 2.999... in floats although the float 0.3 lies below three times the float 0.1.
    found = pareto([Option(0, 1, 0.3, 1.0, "a"), Option(1, 2, 0.5, 1.0, "b")], 2, tick_ms=0.1)
    assert found.ticks is not None
    assert found.ticks.tolist() == [3 + 5]


def test_the_first_of_equal_points_stays() -> None:
    cost, score = np.array([2.0, 1.0, 1.0, 2.0, 3.0]), np.array([5.0, 1.0, 1.0, 5.0, 5.0])
    assert undominated(cost, score).tolist() == [1, 0]


GOOD = Option(0, 1, 1.0, 1.0, "good")


@pytest.mark.parametrize(
    ("options", "layers", "message"),
    [
        ([Option(0, 1, -1.0, 1.0, "x")], 1, "option 'x' has latency -1.0 ms; it must be a number from 0 to 1e\\+100"),
        ([Option(0, 1, math.nan, 1.0, "x")], 1, "option 'x' has latency nan ms"),
        ([Option(0, 1, math.inf, 1.0, "x")], 1, "option 'x' has latency inf ms"),
        ([Option(0, 1, 1.0, math.nan, "x")], 1, "option 'x' has score nan; it must be a number"),
        ([Option(0, 1, 1.0, -math.inf, "x")], 1, "option 'x' has score -inf"),
        ([Option(0, 3, 1.0, 1.0, "x")], 2, r"option 'x' covers layers 0\.\.3, which is not a range within 0\.\.2"),
        ([Option(-1, 1, 1.0, 1.0, "x")], 2, r"option 'x' covers layers -1\.\.1"),
        ([Option(1, 1, 1.0, 1.0, "x")], 2, r"option 'x' covers layers 1\.\.1"),
        ([GOOD, GOOD], 1, "option 'good' is given 2 times; give each key once"),
        ([GOOD], 2, "no chain of options covers all 2 layers: .* goes past layer 1; give layer 1 an option"),
        ([], 1, "no chain of options covers all 1 layers: .* layer 0"),
        ([], 0, "a network of 0 layers leaves nothing to choose"),
    ],
)
def test_bad_options_are_refused_in_one_line(options: list[Option], layers: int, message: str) -> None:
    with pytest.raises(OptionError, match=message) as caught:
        pareto(options, layers)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("tick", [0.0, -1.0, math.nan, math.inf])
def test_a_tick_must_be_positive(tick: float) -> None:
    with pytest.raises(OptionError, match=r"a tick of .* ms cannot count latencies; give a positive number"):
        pareto([GOOD], 1, tick_ms=tick)


def test_a_tick_can_be_too_fine() -> None:
    with pytest.raises(OptionError, match=r"a tick of 1e-30 ms is too fine .*; give a larger one"):
        pareto([GOOD], 1, tick_ms=1e-30)


def test_the_example_runs() -> None:
    failed, attempted = doctest.testmod(labels)
    assert attempted > 0
    assert failed == 0
