"""Where no change can be positive, merges that are slower than their layers as they are are ruled out, and nothing is lost."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

import layermerge as lm
import zoo
from context_runtime import ContextRuntime
from layermerge.tables.bounds import Objective
from layermerge.tables.latency import LatencyTable
from layermerge.tables.ruling_out import slower_than_untouched
from layermerge.tables.table import Row, Table

NETWORKS = ["basic", "inverted", "depthwise_chain", "plain"]
RULES = lm.Rules(rule_out_slow=False)
"""Every latency is measured to the end, so that what is ruled out can be put back on the menu."""


def measured(name: str, place: Path) -> LatencyTable:
    trace = zoo.traced(name)
    plan = lm.plan(trace, RULES)
    return lm.measure_latency(plan, trace=trace, runtime=ContextRuntime(), path=place / "latency.jsonl")


@pytest.mark.parametrize("objective", ["delta", "exp"])
@pytest.mark.parametrize("name", NETWORKS)
def test_the_frontier_is_the_same_without_them(name: str, objective: Objective, tmp_path: Path) -> None:
    latency = measured(name, tmp_path)
    plan, reasons = latency.plan, slower_than_untouched(latency.plan, latency)
    for seed in range(5):
        rng = random.Random(seed)
        rows = [Row(key=entry.key, value=-rng.uniform(0, 0.3)) for entry in plan.entries if entry.changes]
        left = [
            Row(key=row.key, status="ruled_out", reason=reasons[row.key]) if row.key in reasons else row for row in rows
        ]
        whole, less = (
            lm.solve(plan, latency, Table({"estimator": "calibrated"}, each), objective=objective).points
            for each in (rows, left)
        )
        assert whole == less


def test_what_is_slower_is_ruled_out_and_what_is_faster_or_dropped_is_not(tmp_path: Path) -> None:
    latency = measured("plain", tmp_path)
    plan, reasons = latency.plan, slower_than_untouched(latency.plan, latency)
    seen = set()
    for entry in plan.entries:
        if not entry.changes:
            continue
        parts = [plan.single(index, kept=True) for index in range(entry.start, entry.end)]
        as_they_are = sum(latency.of(part) or 0.0 for part in parts if part is not None)
        own = latency.of(entry)
        assert own is not None
        slower = entry.spec is not None and own - as_they_are > latency.spread_of(entry)
        faster = entry.spec is None or own < as_they_are
        seen |= {"slower"} if slower else {"faster"} if faster else set()
        assert not (faster and entry.key in reasons), entry.key
        assert not slower or entry.key in reasons, entry.key
    assert seen == {"slower", "faster"}
