"""Ruling out loses nothing: what the solver reaches without the ruled-out entries is all that it reaches with them."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import replace
from functools import cache

import pytest

import layermerge as lm
import zoo
from layermerge.planning.candidate import Candidate
from layermerge.planning.plan import Plan
from layermerge.tables.latency import LatencyTable
from layermerge.tables.ruling_out import ruled_out
from layermerge.tables.table import Row, Table
from layermerge.tables.workload_clock import WHOLE
from layermerge.tables.workloads import Workload, workloads_of

NETWORKS = ["plain", "basic", "inverted", "depthwise_chain", "one_relu_five_times"]
INSTANCES = 50
"""Of each network."""


@cache
def menu(name: str) -> Plan:
    return lm.plan(zoo.traced(name))


@cache
def workloads(name: str) -> Mapping[str, Workload | None]:
    return workloads_of(zoo.traced(name), menu(name))


def random_latency(name: str, rng: random.Random) -> LatencyTable:
    """Few values, so that there are ties, and any; merges that pay and merges that do not; no spread.

    What a dropped conv leaves behind takes nothing.
    """
    distinct = {workload.key: workload for workload in workloads(name).values() if workload is not None}
    rows = [Row(key=WHOLE, value=rng.uniform(1.0, 30.0))]
    for key in sorted(distinct):
        value = rng.choice([1.0, 2.0, 3.0, rng.uniform(0.2, 6.0)])
        rows.append(Row(key=key, value=value if distinct[key].spec else 0.0))
    return LatencyTable(menu(name), workloads(name), Table({}, rows))


def random_changes(plan: Plan, base: float, rng: random.Random) -> dict[str, float]:
    """D of every entry, anywhere from a score of 0 to the ceiling of 1, its ends included; mostly a small loss."""
    ends = (-base, 1.0 - base)
    return {
        entry.key: rng.choice([rng.uniform(*ends), rng.choice(ends), -min(base, abs(rng.gauss(0, 0.05)))])
        for entry in plan.entries
        if not entry.untouched
    }


def singles_of(plan: Plan, changes: Mapping[str, float]) -> Table:
    dropped = [c.key for c in plan.entries if c.spec is None and len(c.layers) == 1]
    return Table({}, (Row(key=key, value=changes[key]) for key in dropped))


def scores(changes: Mapping[str, float], reasons: Mapping[str, str]) -> Table:
    return Table(
        {},
        (
            Row(key=key, status="ruled_out", reason=reasons[key]) if key in reasons else Row(key=key, value=value)
            for key, value in changes.items()
        ),
    )


@pytest.mark.parametrize("name", NETWORKS)
def test_without_the_ruled_out_every_budget_reaches_as_much(name: str) -> None:
    rng, plan, total = random.Random(name), menu(name), 0
    for _ in range(INSTANCES):
        latency, base = random_latency(name, rng), rng.uniform(0.05, 1.0)
        changes = random_changes(plan, base, rng)
        reasons = ruled_out(plan, latency, singles_of(plan, changes), largest_gain=1.0 - base)
        total += len(reasons)
        everything, rest = (lm.solve(plan, latency, scores(changes, without)) for without in ({}, reasons))
        for point in everything.points:
            # Sums of the same numbers in another order differ in their last bits.
            reached = rest.within(point.latency_ms * (1 + 1e-12) + 1e-12).importance
            assert reached >= point.importance - 1e-12
    assert total > INSTANCES // 3, "the instances have something to rule out"


def parts_of(plan: Plan, candidate: Candidate) -> list[Candidate | None]:
    """The oracle's split: found by its key's start and what it keeps, not by the plan's own index."""
    singles = {(c.start, c.kept): c for c in plan.candidates if len(c.layers) == 1}
    return [
        singles.get((index, (name,) if name in candidate.kept else ()))
        for index, name in enumerate(candidate.layers, candidate.start)
    ]


@pytest.mark.parametrize("name", [*NETWORKS, "basic_strided", "bottleneck", "unet", "concat_branches"])
def test_what_is_never_ruled_out(name: str) -> None:
    rng, plan = random.Random(name), menu(name)
    for _ in range(5):
        latency = random_latency(name, rng)
        changes = dict.fromkeys(random_changes(plan, 1.0, rng), 0.0)
        reasons = ruled_out(plan, latency, singles_of(plan, changes), largest_gain=0.0)
        for entry in plan.entries:
            parts = parts_of(plan, entry)
            times = [latency.of(part) for part in parts if part is not None]
            split_ms, own_ms = sum(time or 0.0 for time in times), latency.of(entry)
            assert own_ms is not None
            if entry.spec is None or entry.untouched or None in parts or own_ms < split_ms * (1 - 1e-12):
                assert entry.key not in reasons
            elif own_ms > split_ms * (1 + 1e-12) and len(entry.kept) > 1:
                assert entry.key in reasons  # two layers' credit, and nothing is better than the original


# -- by hand


def table(milliseconds: Mapping[str, float], *, spread: float = 0.0, failed: str | None = None) -> LatencyTable:
    """The plain network's latencies by candidate; 1 ms for convs that are not named."""
    rows = {WHOLE: Row(key=WHOLE, value=1000.0)}
    for workload in workloads("plain").values():
        if workload is not None:
            rows[workload.key] = Row(key=workload.key, value=1.0 if workload.spec else 0.0, spread=spread)
    for key, value in milliseconds.items():
        workload = workloads("plain")[key]
        assert workload is not None
        rows[workload.key] = Row(key=workload.key, value=value, spread=spread)
    if failed is not None:
        workload = workloads("plain")[failed]
        assert workload is not None
        rows[workload.key] = Row(key=workload.key, status="failed", reason="out of memory")
    return LatencyTable(menu("plain"), workloads("plain"), Table({}, rows.values()))


def reasons(latency: LatencyTable, drop: float = 0.0, gain: float = 0.0, plan: Plan | None = None) -> dict[str, str]:
    plan = plan or latency.plan
    dropped = {c.key: drop for c in plan.entries if c.spec is None}
    return ruled_out(plan, latency, singles_of(plan, dropped), largest_gain=gain)


def test_the_reason_has_both_times() -> None:
    latency = table({"0-1:3x3g1": 1.25, "1-2:3x3g1": 2.5, "0-2:5x5g1": 4.0})
    found = reasons(latency)
    assert found["0-2:5x5g1"] == "unmerged it takes 3.7500 ms, merged 4.0000 ms"
    assert found["0-2:3x3g1"] == "unmerged it takes 1.2500 ms, merged 1.2500 ms", "the conv that is left is the same"


def test_as_fast_is_no_faster() -> None:
    assert "0-2:5x5g1" in reasons(table({"0-1:3x3g1": 1.5, "1-2:3x3g1": 2.5, "0-2:5x5g1": 4.0}))
    assert "0-2:5x5g1" not in reasons(table({"0-1:3x3g1": 1.5, "1-2:3x3g1": 2.5, "0-2:5x5g1": 3.999}))


def test_a_lead_within_the_spread_is_none() -> None:
    times = {"0-1:3x3g1": 1.5, "1-2:3x3g1": 2.5, "0-2:5x5g1": 3.8}
    assert "0-2:5x5g1" not in reasons(table(times, spread=0.115))  # sqrt(3) * 0.115 = 0.199 < 0.2
    assert "0-2:5x5g1" in reasons(table(times, spread=0.116))  # sqrt(3) * 0.116 = 0.201 > 0.2


def test_a_merge_that_may_score_more_than_its_split_stays() -> None:
    latency = table({"0-2:5x5g1": 9.0})
    assert "0-2:5x5g1" in reasons(latency, gain=0.69)  # e^0.69 < 2, the credit of two layers
    assert "0-2:5x5g1" not in reasons(latency, gain=0.70)
    assert "0-2:3x3g1" in reasons(latency, drop=0.1, gain=0.1)
    assert "0-2:3x3g1" not in reasons(latency, drop=0.1, gain=0.11)


def test_a_merge_without_its_split_on_the_menu_stays() -> None:
    whole, latency = menu("plain"), table({"0-2:5x5g1": 9.0})
    assert {"0-2:3x3g1", "0-2:5x5g1"} <= reasons(latency).keys()
    kept = tuple(candidate for candidate in whole.candidates if candidate.key != "1-2:identity")
    plan = replace(whole, candidates=kept, rejections=())
    found = reasons(LatencyTable(plan, workloads("plain"), latency.table), plan=plan)
    assert "0-2:3x3g1" not in found
    assert "0-2:5x5g1" in found


def test_a_merge_whose_split_could_not_be_scored_stays() -> None:
    latency = table({"0-2:5x5g1": 9.0})
    failed = Table({}, [Row(key="1-2:identity", status="failed", reason="nan"), Row(key="2-3:identity", value=0.0)])
    assert "0-2:3x3g1" not in ruled_out(menu("plain"), latency, failed, largest_gain=0.0)
    assert "0-2:3x3g1" not in ruled_out(menu("plain"), latency, Table({}, []), largest_gain=0.0)


def test_what_could_not_be_timed_is_ruled_out_with_that_reason() -> None:
    found = reasons(table({}, failed="0-2:5x5g1"), gain=9.0)
    untimed = dict.fromkeys(("0-2:5x5g1", "0-3:5x5g1"), "its latency could not be measured")
    assert found == untimed, "the two make the machine do the same workload"
