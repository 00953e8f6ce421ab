"""Candidates that replace are chosen like any other: how they score, and that no choice beats the frontier."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from dataclasses import replace

import pytest

import layermerge as lm
import replaceable
from layermerge.tables.latency import LatencyTable
from layermerge.tables.table import Row, Table
from layermerge.tables.workload_clock import WHOLE
from layermerge.tables.workloads import workloads_of
from replaceable import BOTH, Activated, Gates


def chains(plan: lm.Plan, place: int = 0) -> Iterator[tuple[lm.Candidate, ...]]:
    if place == len(plan.layers):
        yield ()
    for candidate in plan.candidates:
        if candidate.start == place:
            for rest in chains(plan, candidate.end):
                yield (candidate, *rest)


def tables(kind: type, seed: int) -> tuple[lm.Plan, LatencyTable, dict[str, float]]:
    """Random milliseconds and changes; activations that cost less than what they stand in for."""
    _, trace = replaceable.traced(kind)
    plan, rng = lm.plan(trace, BOTH), random.Random(seed)
    workloads = workloads_of(trace, plan)
    keys = sorted({workload.key for workload in workloads.values() if workload is not None})
    rows = [Row(key=key, value=rng.uniform(0.5, 4.0) * (0.6 if "ReLU" in key else 1.0)) for key in keys]
    latency = LatencyTable(plan, workloads, Table({}, [Row(key=WHOLE, value=60.0), *rows]))
    return plan, latency, {one.key: -rng.uniform(0.01, 0.8) for one in plan.candidates if one.changes}


@pytest.mark.parametrize("kind", [Activated, Gates])
@pytest.mark.parametrize("objective", ["exp", "delta"])
def test_no_choice_beats_the_frontier(kind: type, objective: str) -> None:
    for seed in range(3):
        plan, latency, changes = tables(kind, seed)

        def score(one: lm.Candidate, changes: dict[str, float] = changes) -> float:
            change = changes.get(one.key, 0.0)
            if objective == "delta":
                return change
            layers = len(one.layers) if one.replaced == "gate" else 1
            return math.exp(change) + layers - 1 - (not one.kept and one.replaced is None)

        frontier = lm.solve(plan, latency, changes, objective=objective)  # type: ignore[arg-type]
        known = [
            (latency.fixed_ms + sum(latency.of(one) or 0.0 for one in chain), sum(map(score, chain)))
            for chain in chains(plan)
        ]
        for share in (0.0, 0.2, 0.5, 0.8, 1.0):
            budget = (1 - share) * frontier.smallest_ms + share * latency.original_ms
            best = max(value for taken, value in known if taken <= budget + 1e-9)
            assert frontier.within(budget + 1e-9).importance == pytest.approx(best, abs=1e-9)
        chosen = {one.replaced for point in range(len(frontier.points)) for one in frontier.solution(point).candidates}
        assert chosen >= {"activation"}


def test_a_merge_that_loses_nothing_keeps_its_layers_credit_with_another_activation() -> None:
    _, trace = replaceable.traced(Activated)
    plan, latency, _ = tables(Activated, 0)
    keys = ("0-3:5x5g1:activation", "3-4:3x3g1")
    entries = (replace(plan[keys[0]], free=True), plan[keys[1]])
    plan = replace(plan, candidates=entries, rejections=())
    (point,) = lm.solve(plan, replace(latency, plan=plan), {keys[0]: -0.3}).points
    assert point.importance == pytest.approx(2 + math.exp(-0.3) + 1)
    assert trace.layers == plan.layers
