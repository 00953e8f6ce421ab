"""Bounds: workloads that are slower than the layers that they stand for cost one pass, and nothing is lost by it."""

from __future__ import annotations

import json
import math
import random
from functools import partial
from pathlib import Path

import pytest
from torch import nn

import layermerge as lm
import zoo
from fake_runtime import FakeRuntime
from layermerge.planning.plan import Plan
from layermerge.runtimes.base import Pass
from layermerge.tables.bounds import Stakes, bounded_by_sibling, in_order, largest_gain, limits
from layermerge.tables.latency import LatencyTable
from layermerge.tables.measuring import LatencyJob
from layermerge.tables.table import Row
from layermerge.tables.workloads import Sandwich, Workload, workloads_of
from layermerge.tracing.inputs import Inputs

NETWORKS = ["plain", "basic", "inverted", "depthwise_chain", "one_relu_five_times"]


class Counting(FakeRuntime):
    """Merged convs take four times as long for each side of their kernel beyond three; counts the passes of each."""

    def __init__(self) -> None:
        super().__init__()
        self.passes: dict[str, int] = {}

    def prepare(self, module: nn.Module, inputs: Inputs, *, small: bool = False) -> Pass:
        run = super().prepare(module, inputs, small=small)
        conv = module.conv if isinstance(module, Sandwich) else None
        if conv is None:
            return run
        name, slow = f"{conv.kernel_size[0]} {len(self.passes)}", 4.0 ** ((conv.kernel_size[0] - 3) / 2)
        self.passes[name] = 0

        def counted() -> float:
            self.passes[name] += 1
            taken = run()
            assert isinstance(taken, float)
            return float(taken * max(1.0, slow))

        return counted


def measured(
    name: str, path: Path, stakes: Stakes | None = None, plan: Plan | None = None
) -> tuple[LatencyTable, Counting]:
    runtime, plan = Counting(), plan or lm.plan(zoo.traced(name))
    whole = partial(runtime.lasting, 100.0)
    job = LatencyJob(plan, workloads_of(zoo.traced(name), plan), name, whole, stakes=stakes or Stakes())
    return job.run(runtime, 1, path / "latency.jsonl"), runtime


@pytest.mark.parametrize("name", NETWORKS)
def test_every_budget_reaches_as_much_without_what_was_bounded(name: str, tmp_path: Path) -> None:
    """No single change scores more than the ceiling; random scores, both menus, the same frontier."""
    bounded, _ = measured(name, tmp_path / "bounded")
    everything, _ = measured(name, tmp_path / "all", plan=lm.plan(zoo.traced(name), lm.Rules(rule_out_slow=False)))
    rng = random.Random(name)
    for _ in range(30):
        scores = {one.key: rng.uniform(-1.0, 1.0) for one in bounded.plan.candidates if one.changes}
        less, more = lm.solve(bounded.plan, bounded, scores), lm.solve(everything.plan, everything, scores)
        for point in more.points:
            assert less.within(point.latency_ms * (1 + 1e-9)).importance >= point.importance - 1e-9
    assert bounded.bounded or name not in ("plain", "one_relu_five_times"), "there is something to bound"


def test_a_hopeless_workload_costs_one_pass_and_its_larger_siblings_none(tmp_path: Path) -> None:
    table, runtime = measured("one_relu_five_times", tmp_path)
    slow = {row.key: row for row in table.table.rows.values() if row.status == "slower"}
    assert slow
    assert {count for name, count in runtime.passes.items() if int(name.split()[0]) >= 7} <= {1, 3}
    by_sibling = [row for row in slow.values() if row.samples == 0]
    assert by_sibling
    assert all((row.reason or "").startswith("a smaller kernel takes ") for row in by_sibling)
    assert all("the layers that it stands for" in (row.reason or "") for row in slow.values())


def test_bounded_rows_are_off_the_menu_with_their_reason(tmp_path: Path) -> None:
    table, _ = measured("one_relu_five_times", tmp_path)
    off = [one for one in table.plan.candidates if table.of(one) is None]
    assert off
    assert all("ms, the layers that it stands for" in (table.why_off(one) or "") for one in off)
    assert f"({table.bounded} of them only bounded)" in str(table)


@pytest.mark.parametrize(
    ("stakes", "layers", "wins"),
    [
        (Stakes("exp", 1.0), 2, False),  # exp(1) is more than two layers' credit
        (Stakes("exp", 1.0), 3, True),
        (Stakes("exp", 0.69), 2, True),
        (Stakes("exp", math.inf), 9, False),
        (Stakes("delta", 0.0), 2, True),
        (Stakes("delta", 0.1), 9, False),
    ],
)
def test_when_the_untouched_range_wins(stakes: Stakes, layers: int, wins: bool) -> None:
    plan = lm.plan(zoo.traced("one_relu_five_times"), lm.Rules(max_kernel=None))
    found = [one for one in plan.candidates if len(one.layers) == layers and one.spec and not one.free]
    for candidate in found:
        assert stakes.untouched_wins(candidate) == wins
    assert found or layers == 9


def test_under_delta_all_is_measured_where_a_change_may_be_positive(tmp_path: Path) -> None:
    table, _ = measured("plain", tmp_path, Stakes("delta", 0.5))
    assert table.bounded == 0


def test_the_papers_rules_bound_nothing(tmp_path: Path) -> None:
    plan = lm.plan(zoo.traced("one_relu_five_times"), lm.Rules.paper())
    table, _ = measured("one_relu_five_times", tmp_path, plan=plan)
    assert table.bounded == 0


def test_other_stakes_measure_what_was_only_bounded(tmp_path: Path) -> None:
    first, _ = measured("one_relu_five_times", tmp_path)
    again, _ = measured("one_relu_five_times", tmp_path, Stakes("delta", 1.0))
    assert any(first.of(one) is None for one in first.plan.candidates)
    assert all(again.of(one) is not None for one in again.plan.candidates)
    path = tmp_path / "latency.jsonl"
    before = path.read_bytes()
    measured("one_relu_five_times", tmp_path, Stakes("delta", 1.0))
    assert path.read_bytes() == before


def test_a_bound_is_checked_again_when_single_layers_turn_out_slower(tmp_path: Path) -> None:
    measured("one_relu_five_times", tmp_path)
    path = tmp_path / "latency.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    plan = lm.plan(zoo.traced("one_relu_five_times"))
    keys = {
        one.key
        for each, one in workloads_of(zoo.traced("one_relu_five_times"), plan).items()
        if one and plan[each].untouched
    }
    for line in lines[1:]:
        if line["key"] in keys:
            line["value"] *= 1000
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    table, _ = measured("one_relu_five_times", tmp_path)
    assert all(table.of(one) is not None for one in table.plan.candidates)


def test_single_layers_come_first_then_less_work_before_more() -> None:
    plan = lm.plan(zoo.traced("basic"))
    workloads = workloads_of(zoo.traced("basic"), plan)
    ordered = in_order(plan, workloads)
    single = {one.key for each, one in workloads.items() if one and plan[each].untouched}
    count = len(single)
    assert {one.key for one in ordered[:count]} == single
    assert [one.work for one in ordered[count:]] == sorted(one.work for one in ordered[count:])


def test_a_workload_that_several_ranges_share_has_the_largest_limit() -> None:
    plan = lm.plan(zoo.traced("plain"))
    workloads = workloads_of(zoo.traced("plain"), plan)
    found = limits(plan, workloads, Stakes("exp", 0.0), lambda part: 1.0 + part.start)
    five = workloads["0-2:5x5g1"]
    assert five is not None
    assert five == workloads["0-3:5x5g1"]
    assert found[five.key] == 1.0 + 2.0 + 3.0
    three = workloads["0-2:3x3g1"]
    assert three is not None
    assert found[three.key] == math.inf, "a single layer needs it"


def test_siblings_differ_in_the_kernel_alone() -> None:
    found = workloads_of(zoo.traced("plain"), lm.plan(zoo.traced("plain")))
    three, five = found["0-1:3x3g1"], found["0-2:5x5g1"]
    other = found["1-3:5x5g1"]
    assert three is not None
    assert five is not None
    assert other is not None
    rows: list[tuple[Workload, Row]] = [(three, Row(key=three.key, value=9.0))]
    bound = bounded_by_sibling(five, 5.0, rows)
    assert bound is not None
    assert (bound.status, bound.value) == ("slower", 9.0)
    assert bounded_by_sibling(five, 7.0, rows) is None
    assert bounded_by_sibling(other, 5.0, rows) is None


@pytest.mark.parametrize(("ceiling", "gain"), [(1.0, 1.0), (0.0, 1.0), (math.inf, math.inf), (100.0, math.inf)])
def test_how_much_a_score_can_rise(ceiling: float, gain: float) -> None:
    assert largest_gain(ceiling) == gain
