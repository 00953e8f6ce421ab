"""From tables to the frontier: how candidates score, which are on the menu, and that the best choice is found."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from contextlib import nullcontext as nothing_said
from dataclasses import replace
from functools import cache

import pytest

import layermerge as lm
import zoo
from layermerge.errors import TableError
from layermerge.planning.candidate import Candidate
from layermerge.planning.plan import Plan
from layermerge.solving.frontier import Frontier
from layermerge.tables.bounds import Objective
from layermerge.tables.latency import LatencyTable
from layermerge.tables.table import Row, Table
from layermerge.tables.workload_clock import WHOLE
from layermerge.tables.workloads import workloads_of


@cache
def menu(name: str = "plain", method: str = "layermerge") -> Plan:
    return lm.plan(zoo.traced(name), method=method)


def latencies(name: str = "plain", method: str = "layermerge", whole_ms: float = 50.0, seed: int = 0) -> LatencyTable:
    """A table with random milliseconds."""
    plan, rng = menu(name, method), random.Random(seed)
    workloads = workloads_of(zoo.traced(name), plan)
    keys = sorted({workload.key for workload in workloads.values() if workload is not None})
    rows = [Row(key=WHOLE, value=whole_ms), *(Row(key=key, value=rng.uniform(0.5, 4.0)) for key in keys)]
    return LatencyTable(plan, workloads, Table({}, rows))


def changes(plan: Plan, seed: int = 1) -> dict[str, float]:
    rng = random.Random(seed)
    return {entry.key: 0.0 if entry.untouched else -rng.uniform(0.01, 1.0) for entry in plan.candidates}


def rows(values: dict[str, float], **others: str) -> Table:
    """An importance table; `others` maps a status to the key that has it."""
    marked = {key: status for status, key in others.items()}
    return Table(
        {},
        (
            Row(key=key, status=marked[key], reason="why not") if key in marked else Row(key=key, value=value)  # type: ignore[arg-type]
            for key, value in values.items()
        ),
    )


def chains(plan: Plan, place: int = 0) -> Iterator[tuple[Candidate, ...]]:
    if place == len(plan.layers):
        yield ()
    for candidate in plan.candidates:
        if candidate.start == place:
            for rest in chains(plan, candidate.end):
                yield (candidate, *rest)


def best(plan: Plan, latency: LatencyTable, scores: dict[str, float], budget_ms: float) -> float:
    """The oracle: the highest score of all choices that keep the budget; scores by key."""
    return max(
        sum(scores[candidate.key] for candidate in chain)
        for chain in chains(plan)
        if latency.fixed_ms + sum(latency.of(candidate) or 0.0 for candidate in chain) <= budget_ms + 1e-9
    )


def price(frontier: Frontier, *keys: str) -> float:
    """The importance of the point that chose exactly these."""
    for index, point in enumerate(frontier.points):
        if tuple(candidate.key for candidate in frontier.solution(index).candidates) == keys:
            return point.importance
    raise AssertionError(f"no point chose {keys}")


# -- how candidates score


def fixed_menu(*keys: str, method: str = "layermerge") -> tuple[Plan, LatencyTable]:
    """The plan with these candidates only, so that there is one choice."""
    whole, table = menu("plain", method), latencies("plain", method)
    plan = replace(whole, candidates=tuple(whole[key] for key in keys), rejections=())
    return plan, LatencyTable(plan, table.workloads, table.table)


SINGLES = ("0-1:3x3g1", "1-2:3x3g1", "2-3:3x3g1")


@pytest.mark.parametrize(
    ("keys", "method", "objective", "expected"),
    [
        (SINGLES, "layermerge", "exp", 3.0),
        (SINGLES, "layermerge", "delta", 0.0),
        (("0-2:5x5g1", SINGLES[2]), "layermerge", "exp", math.exp(-0.3) + 1),
        (("0-2:5x5g1", SINGLES[2]), "layermerge", "delta", -0.3),
        ((*SINGLES[:2], "2-3:identity"), "layermerge", "exp", 2 + math.exp(-0.3) - 1),
        ((*SINGLES[:2], "2-3:identity"), "layeronly", "exp", 2 + math.exp(-0.3)),
        ((*SINGLES[:2], "2-3:identity"), "layermerge", "delta", -0.3),
        ((SINGLES[0], "1-3:identity"), "layermerge", "exp", 1 + math.exp(-0.3) - 1),
    ],
)
def test_scores(keys: tuple[str, ...], method: str, objective: str, expected: float) -> None:
    plan, table = fixed_menu(*keys, method=method)
    scores = {entry.key: -0.3 for entry in plan.candidates if not entry.untouched}
    frontier = lm.solve(plan, table, scores, objective=objective)  # type: ignore[arg-type]
    assert price(frontier, *keys) == pytest.approx(expected)


def test_dropping_a_conv_and_its_activation_earns_nothing_said_than_merging_it() -> None:
    """The same network either way: only the split says otherwise, and it must not win by what it is called."""
    plan, table = fixed_menu("0-1:3x3g1", "1-2:identity", "2-3:3x3g1")
    split = price(lm.solve(plan, table, {"1-2:identity": -0.2}), "0-1:3x3g1", "1-2:identity", "2-3:3x3g1")
    plan, table = fixed_menu("0-2:3x3g1", "2-3:3x3g1")
    merged = price(lm.solve(plan, table, {"0-2:3x3g1": -0.2}), "0-2:3x3g1", "2-3:3x3g1")
    assert split == pytest.approx(merged)


# -- which are on the menu


@pytest.mark.parametrize("kind", ["mapping", "table"])
def test_a_missing_score_is_an_error(kind: str) -> None:
    scores = changes(menu())
    del scores["0-2:5x5g1"]
    message = r"no (entry|row) for '0-2:5x5g1'; measure it"
    with pytest.raises(TableError, match=message):
        lm.solve(menu(), latencies(), scores if kind == "mapping" else rows(scores))


@pytest.mark.parametrize("kind", ["mapping", "table"])
def test_untouched_candidates_may_be_absent(kind: str) -> None:
    full = changes(menu())
    partial = {key: value for key, value in full.items() if not menu()[key].untouched}
    assert len(partial) == len(full) - 3
    expected = lm.solve(menu(), latencies(), full).points
    assert lm.solve(menu(), latencies(), partial if kind == "mapping" else rows(partial)).points == expected


def test_an_untouched_candidate_that_was_measured_counts_as_measured() -> None:
    plan, table = fixed_menu(*SINGLES)
    assert price(lm.solve(plan, table, {"0-1:3x3g1": 0.5}), *SINGLES) == pytest.approx(2 + math.exp(0.5))
    measured = rows({"0-1:3x3g1": 0.5})
    assert price(lm.solve(plan, table, measured), *SINGLES) == pytest.approx(2 + math.exp(0.5))


@pytest.mark.parametrize("status", ["failed", "ruled_out"])
def test_rows_without_a_value_leave_the_menu(status: str) -> None:
    scores = {**changes(menu()), "0-3:7x7g1": 5.0}
    chosen = lm.solve(menu(), latencies(), rows(scores))
    assert "0-3:7x7g1" in {entry.key for entry in chosen.solution(-1).candidates}
    without = lm.solve(menu(), latencies(), rows(scores, **{status: "0-3:7x7g1"}))
    for index in range(len(without.points)):
        assert "0-3:7x7g1" not in {entry.key for entry in without.solution(index).candidates}


def test_an_unknown_objective_is_refused() -> None:
    with pytest.raises(TableError, match="objective is 'log'; give 'exp' or 'delta'"):
        lm.solve(menu(), latencies(), changes(menu()), objective="log")  # type: ignore[arg-type]


# -- what is chosen


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(("name", "method"), [("plain", "layermerge"), ("basic", "layermerge"), ("basic", "layeronly")])
@pytest.mark.parametrize("objective", ["exp", "delta"])
def test_no_choice_beats_the_frontier(name: str, method: str, objective: str, seed: int) -> None:
    plan, table = menu(name, method), latencies(name, method, whole_ms=20.0, seed=seed)
    given = changes(plan, seed)
    frontier = lm.solve(plan, table, given, objective=objective)  # type: ignore[arg-type]
    credit = 0.0 if method == "layeronly" else 1.0
    scores = {
        key: change if objective == "delta" else math.exp(change) - (credit if plan[key].spec is None else 0.0)
        for key, change in given.items()
    }
    span = table.original_ms - frontier.smallest_ms
    for step in range(8):
        budget = frontier.smallest_ms + span * step / 7
        solution = frontier.at(f"{budget + 1e-6:.9f}ms")
        assert solution.latency_ms <= budget + 1e-6
        assert solution.importance == pytest.approx(best(plan, table, scores, budget), abs=1e-9)
        assert [entry.start for entry in solution.candidates] == [0, *(entry.end for entry in solution.candidates[:-1])]


@pytest.mark.parametrize("name", ["plain", "basic", "inverted", "time_shifted_block"])
@pytest.mark.parametrize("whole_ms", [1.0 / 3, 7.7, 50.0])
def test_all_of_the_budget_leaves_the_network_untouched(name: str, whole_ms: float) -> None:
    table = latencies(name, whole_ms=whole_ms, seed=3)
    solution = lm.solve(table.plan, table, changes(table.plan)).at("100%")
    assert all(candidate.untouched for candidate in solution.candidates)
    assert len(solution.candidates) == len(table.plan.layers)
    assert solution.latency_ms == pytest.approx(table.original_ms)
    assert solution.importance == pytest.approx(len(table.plan.layers))


def test_a_tick_rounds_latencies_up() -> None:
    table = latencies()
    exact, coarse = (lm.solve(menu(), table, changes(menu()), tick_ms=tick) for tick in (None, 0.5))
    assert coarse.tick_ms == 0.5
    for share in (60, 70, 80, 90, 100):
        budget = f"{table.original_ms * share / 100:.6f}ms"
        if coarse.smallest_ms <= table.original_ms * share / 100:
            assert coarse.at(budget).importance <= exact.at(budget).importance + 1e-12


@pytest.mark.parametrize("as_table", [True, False])
def test_a_change_that_no_score_has_names_the_table_and_the_row(as_table: bool) -> None:
    absurd = changes(menu()) | {"0-2:5x5g1": 1e6}
    named = "the table" if as_table else "the scores"
    message = rf"^{named}: value of '0-2:5x5g1' is 1e\+06, too large for a change of the score; measure it again$"
    with pytest.raises(TableError, match=message):
        lm.solve(menu(), latencies(), rows(absurd) if as_table else absurd)
    assert lm.solve(menu(), latencies(), absurd, objective="delta").points


# -- merges of which only a bound is known


FIVE = "0-2:5x5g1"


def bounded_latencies() -> LatencyTable:
    """The merge of two layers, and whatever shares its workload, is only known to be slower."""
    table = latencies()
    workload = table.workloads[FIVE]
    assert workload is not None
    slower = Row(key=workload.key, status="slower", value=9.0, reason="one pass takes 9.000 ms")
    others = [row for row in table.table.rows.values() if row.key != workload.key]
    return replace(table, table=Table({}, [*others, slower]))


@pytest.mark.parametrize(
    ("objective", "change", "said"),
    [("exp", 0.6, False), ("exp", 0.8, True), ("delta", 0.0, False), ("delta", -0.5, False), ("delta", 0.1, True)],
)
def test_a_bounded_merge_that_would_score_more_than_its_layers_is_not_left_out_in_silence(
    objective: Objective, change: float, said: bool
) -> None:
    """exp(0.8) is more than the two layers earn, exp(0.6) is less; under delta they earn 0."""
    given = dict.fromkeys(changes(menu()), -0.5) | {FIVE: change}
    expectation = (
        pytest.warns(UserWarning, match=f"^1 merges are left out .* '{objective}': all") if said else nothing_said()
    )
    with expectation:
        lm.solve(menu(), bounded_latencies(), given, objective=objective)


def test_a_merge_that_was_never_scored_because_of_its_bound_is_told_under_delta() -> None:
    """Latency may have been measured to the end since; the score is missing all the same."""
    scores = rows(changes(menu()), slower=FIVE)
    for latency in (latencies(), bounded_latencies()):
        assert FIVE not in {one.key for one in lm.solve(menu(), latency, scores).at("100%").candidates}
        with pytest.warns(UserWarning, match="^1 merges are left out"):
            lm.solve(menu(), latency, scores, objective="delta")
