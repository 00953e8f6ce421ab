"""Tables of candidates that replace: what is timed with them, what they save, and which are not worth a score."""

from __future__ import annotations

import pytest

import layermerge as lm
import replaceable
from layermerge.tables.latency import LatencyTable
from layermerge.tables.ruling_out import ruled_out
from layermerge.tables.table import Row, Table
from layermerge.tables.workload_clock import WHOLE
from layermerge.tables.workloads import ADD, workloads_of
from replaceable import BOTH, GATES, Activated, Gates


def test_the_workload_has_the_cheaper_activation_and_is_the_same_otherwise() -> None:
    _, trace = replaceable.traced(Activated)
    plan = lm.plan(trace, BOTH)
    workloads = workloads_of(trace, plan)
    for candidate in plan.candidates:
        if candidate.replaced:
            own, plain = workloads[candidate.key], workloads[candidate.unreplaced.key]
            assert own is not None
            assert plain is not None
            assert (own.spec, own.input_shape) == (plain.spec, plain.input_shape)
            assert [one.kind for one in own.follow if one != ADD] == ["ReLU"]
            assert [one.kind for one in plain.follow if one != ADD] != ["ReLU"]
            assert (ADD in own.follow) == (ADD in plain.follow)
    without = lm.plan(trace)
    assert workloads_of(trace, without) == {one.key: workloads[one.key] for one in without.candidates}


def test_a_gate_leaves_nothing_but_a_product_that_folds_nowhere() -> None:
    _, trace = replaceable.traced(Gates)
    workloads = workloads_of(trace, lm.plan(trace, BOTH))
    left = {name: workloads[key] for key, name in GATES.items()}
    assert left["before"] is left["behind"] is None
    alone = left["alone"]
    assert alone is not None
    assert (alone.spec, alone.input_shape, alone.follow) == (None, (8, 9, 8), (ADD,))


@pytest.mark.parametrize(("relu_ms", "spread", "pays"), [(1.0, 0.0, True), (3.0, 0.0, False), (2.9, 0.3, False)])
def test_a_cheaper_activation_that_saves_no_time_is_not_scored(relu_ms: float, spread: float, pays: bool) -> None:
    _, trace = replaceable.traced(Activated)
    plan = lm.plan(trace, BOTH)
    workloads = workloads_of(trace, plan)
    keys = {workload.key for workload in workloads.values() if workload is not None}
    rows = [Row(key=key, value=relu_ms if "ReLU" in key else 3.0, spread=spread) for key in sorted(keys)]
    latency = LatencyTable(plan, workloads, Table({}, [Row(key=WHOLE, value=60.0), *rows]))
    reasons = ruled_out(plan, latency, Table({}, ()), largest_gain=5.0)
    replacing = {candidate.key for candidate in plan.candidates if candidate.replaced}
    assert reasons.keys() == (set() if pays else replacing)
    assert all("with its own activation it takes 3.0000 ms" in reason for reason in reasons.values())
