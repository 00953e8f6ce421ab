"""The frontier: budgets, thresholds, the untouched network, its document and its listing."""

from __future__ import annotations

import json
import math
import random
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter

from layermerge.errors import BudgetError, InfeasibleBudget, OptionError
from layermerge.planning.candidate import Candidate
from layermerge.solving.frontier import Frontier, Round, Solution, build_frontier
from layermerge.solving.labels import Option
from solving.instances import best_points, candidate, instances


class Stub(dict[str, Candidate]):
    """A candidate for every key of a random instance, which may hold several of one range."""

    def __init__(self, options: list[Option]) -> None:
        super().__init__({option.key: candidate(option.start, option.end, kept=0) for option in options})


def small() -> tuple[list[Option], dict[str, Candidate]]:
    """Three layers of 4, 3 and 2 ms; the last two merge, the middle one may go."""
    menu = [candidate(0, 1), candidate(1, 2), candidate(2, 3), candidate(1, 3, 5), candidate(1, 2, None)]
    values = [(4.0, 1.0), (3.0, 1.0), (2.0, 1.0), (3.5, 0.9), (0.0, -0.2)]
    options = [Option(c.start, c.end, ms, score, c.key) for c, (ms, score) in zip(menu, values, strict=True)]
    return options, {c.key: c for c in menu}


def frontier(**changes: Any) -> Frontier:
    options, candidates = small()
    return build_frontier(options, candidates, 3, **{"original_ms": 10.0, "fixed_ms": 1.0, **changes})


def keys(solution: Solution) -> list[str]:
    return [chosen.key for chosen in solution.candidates]


def test_points_include_the_fixed_cost() -> None:
    found = frontier()
    assert [(point.latency_ms, point.importance) for point in found.points] == [(7.0, 1.8), (8.5, 1.9), (10.0, 3.0)]
    assert (found.smallest_ms, found.original_ms, found.fixed_ms, found.slack_ms) == (7.0, 10.0, 1.0, 0.0)


@pytest.mark.parametrize(
    ("budget", "chosen"),
    [
        ("100%", ["0-1:3x3g1", "1-2:3x3g1", "2-3:3x3g1"]),
        ("99.99%", ["0-1:3x3g1", "1-3:5x5g1"]),
        ("8.5ms", ["0-1:3x3g1", "1-3:5x5g1"]),
        ("8.49ms", ["0-1:3x3g1", "1-2:identity", "2-3:3x3g1"]),
        ("1.25x", ["0-1:3x3g1", "1-2:identity", "2-3:3x3g1"]),
        ("7ms", ["0-1:3x3g1", "1-2:identity", "2-3:3x3g1"]),
        ("500%", ["0-1:3x3g1", "1-2:3x3g1", "2-3:3x3g1"]),
    ],
)
def test_the_best_point_within_a_budget(budget: str, chosen: list[str]) -> None:
    solution = frontier().at(budget)
    assert keys(solution) == chosen
    assert solution.measured_ms is None


def test_below_the_smallest_raises_what_can_be_reached() -> None:
    found = frontier()
    with pytest.raises(InfeasibleBudget, match=r"in 6\.9900 ms; .* 7\.0000 ms, 70\.00% of the original") as caught:
        found.at("6.99ms")
    assert (caught.value.smallest_ms, caught.value.budget_ms) == (7.0, 6.99)
    with pytest.raises(BudgetError, match="cannot read the budget '60'"):
        found.at("60")


def decimal(value: float) -> str:
    """All digits of a float, without an exponent."""
    return f"{value:.1100f}"


@given(instances(), st.sampled_from([None, 0.3, 50.0]))
def test_the_smallest_budget_works_and_nothing_below(instance: tuple[list[Option], int], tick: float | None) -> None:
    options, layers = instance
    found = build_frontier(options, Stub(options), layers, original_ms=7.0, fixed_ms=0.1, tick_ms=tick)
    assert found.smallest_ms == best_points(options, layers)[0][0] + 0.1
    assert found.at(f"{decimal(found.smallest_ms)}ms") == found.solution(0)
    with pytest.raises(InfeasibleBudget):
        found.at(f"{decimal(math.nextafter(found.smallest_ms, 0))}ms")


@given(instances(), st.floats(0.01, 30))
def test_at_equals_brute_force_at_any_budget(instance: tuple[list[Option], int], budget: float) -> None:
    options, layers = instance
    found = build_frontier(options, Stub(options), layers, original_ms=1e6)
    within = [point for point in best_points(options, layers) if point[0] <= budget]
    if within:
        solution = found.at(f"{decimal(budget)}ms")
        assert (solution.latency_ms, solution.importance) == within[-1]
    else:
        with pytest.raises(InfeasibleBudget):
            found.at(f"{decimal(budget)}ms")


@given(st.lists(st.floats(0.001, 10), min_size=1, max_size=30), st.floats(0, 5), st.sampled_from([None, 0.01, 4.0]))
def test_the_untouched_network_meets_100_percent(latencies: list[float], fixed: float, tick: float | None) -> None:
    """The whole is measured, the fixed cost is what is left: the parts add up to the whole but for rounding."""
    whole = math.fsum(latencies) + fixed
    left = max(0.0, whole - math.fsum(reversed(latencies)))
    menu = [candidate(i, i + 1) for i in range(len(latencies))]
    slower = [candidate(i, i + 1, 5, kept=0) for i in range(len(latencies))]
    options = [Option(c.start, c.end, ms, 1.0, c.key) for c, ms in zip(menu, latencies, strict=True)]
    options += [Option(c.start, c.end, ms * 1.1, 1.5, c.key) for c, ms in zip(slower, latencies, strict=True)]
    candidates = {c.key: c for c in (*menu, *slower)}
    found = build_frontier(options, candidates, len(latencies), original_ms=whole, fixed_ms=left, tick_ms=tick)
    solution = found.at("100%")
    assert solution.latency_ms <= whole
    assert solution.importance >= len(latencies)
    assert found.at("1x") == solution


def test_a_tick_states_its_bound() -> None:
    assert frontier(tick_ms=0.25).slack_ms == 0.75
    assert frontier(tick_ms=0.25).at("100%") == frontier().at("100%")


def test_the_order_of_options_changes_nothing() -> None:
    options, candidates = small()
    expected = frontier().to_document()
    for seed in range(5):
        random.Random(seed).shuffle(options)
        again = build_frontier(options, candidates, 3, original_ms=10.0, fixed_ms=1.0)
        assert again.to_document() == expected


@given(instances(), st.sampled_from([None, 0.7]))
def test_the_document_says_what_the_frontier_does(instance: tuple[list[Option], int], tick: float | None) -> None:
    options, layers = instance
    found = build_frontier(options, Stub(options), layers, original_ms=3.3, fixed_ms=0.1, tick_ms=tick)
    document = json.loads(json.dumps(found.to_document(), allow_nan=False))
    assert {key: document[key] for key in ("schema_version", "original_ms", "fixed_ms", "tick_ms", "layers")} == {
        "schema_version": 2,
        "original_ms": 3.3,
        "fixed_ms": 0.1,
        "tick_ms": tick,
        "layers": layers,
    }
    by_key = {option.key: option for option in options}
    for index, (written, point) in enumerate(zip(document["points"], found.points, strict=True)):
        assert (written["latency_ms"], written["importance"]) == (point.latency_ms, point.importance)
        chain = [by_key[document["keys"][place]] for place in written["candidates"]]
        assert [(part.start, part.end) for part in chain] == [
            (chosen.start, chosen.end) for chosen in found.solution(index).candidates
        ]
        assert sum(part.score for part in chain) == pytest.approx(point.importance)


@pytest.mark.parametrize("allowed", ["60%", "12", math.nan, None, -1, True])
def test_what_is_not_a_number_of_milliseconds_is_refused(allowed: Any) -> None:
    with pytest.raises(BudgetError, match=r"give a number of milliseconds; for 60% or 1\.8x ask at"):
        frontier().within(allowed)
    assert frontier().within(math.inf) == frontier().within(10) == frontier().at("100%")


def test_a_solution_survives_json() -> None:
    solution = replace(frontier().at("90%"), measured_ms=8.0, budget_ms=9.0, rounds=(Round(8.5, 8.0),))
    adapter = TypeAdapter(Solution)
    assert adapter.validate_json(adapter.dump_json(solution)) == solution


def test_the_listing_is_readable() -> None:
    lines = str(frontier()).splitlines()
    assert lines[0] == "3 points; original 10.000 ms, of which fixed 1.000 ms"
    assert lines[1].split() == ["budget", "latency", "speed-up", "importance", "convs", "kept", "merged", "into"]
    assert [line.split()[0] for line in lines[2:]] == ["100%", "95%", "90%", "85%", "80%", "75%", "70%", "smallest"]
    assert lines[2].split() == ["100%", "10.000", "ms", "1.00x", "3.0000", "3", "3"]
    assert lines[3].split() == ["95%", "8.500", "ms", "1.18x", "1.9000", "3", "2"]
    assert lines[-1].split() == ["smallest", "7.000", "ms", "1.43x", "1.8000", "2", "2"]
    assert len({len(line) for line in lines[1:]}) == 1


@pytest.mark.parametrize(("original", "rows"), [(7.0, 1), (6.0, 0), (100.0, 10), (7.1, 2), (8.0, 7)])
def test_the_listing_stays_short(original: float, rows: int) -> None:
    lines = str(frontier(original_ms=original)).splitlines()
    assert len(lines) == 2 + rows + 1


def test_the_listing_of_a_network_that_costs_nothing() -> None:
    option = candidate(0, 1, None)
    found = build_frontier([Option(0, 1, 0.0, 0.0, option.key)], {option.key: option}, 1, original_ms=1.0)
    assert re.search(r"smallest +0\.000 ms +- +0\.0000 +0 +0$", str(found))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"original_ms": 0.0}, "the original network's latency is 0.0 ms; it must be a positive number"),
        ({"original_ms": math.nan}, "the original network's latency is nan ms"),
        ({"fixed_ms": -1.0}, "the fixed cost is -1.0 ms; it must be a number and not negative"),
        ({"fixed_ms": math.inf}, "the fixed cost is inf ms"),
    ],
)
def test_bad_latencies_of_the_whole_are_refused(changes: Mapping[str, float], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        frontier(**changes)


def test_options_must_be_candidates() -> None:
    options, candidates = small()
    with pytest.raises(OptionError, match=r"option 'other' over 0\.\.3 is not a candidate of the plan"):
        build_frontier([*options, Option(0, 3, 1.0, 1.0, "other")], candidates, 3, original_ms=1.0)
    moved = [Option(0, 2, 1.0, 1.0, options[1].key), *options[2:]]
    with pytest.raises(OptionError, match=r"option '1-2:3x3g1' over 0\.\.2 is not a candidate of the plan"):
        build_frontier(moved, candidates, 3, original_ms=1.0)


def test_latencies_that_the_fixed_cost_makes_equal_are_one_point() -> None:
    """Near 1e17 floats are 16 apart: both choices take the same time, and the more important one stays."""
    menu = {"a": candidate(0, 1), "b": candidate(0, 1, 5)}
    options = [Option(0, 1, 1.0, 1.0, "a"), Option(0, 1, 2.0, 2.0, "b")]
    found = build_frontier(options, menu, 1, original_ms=1e18, fixed_ms=1e17)
    assert [(point.latency_ms, point.importance) for point in found.points] == [(1e17, 2.0)]
