"""The latency table, on a runtime whose passes take a known time: every row is exact, and nothing is measured twice."""

from __future__ import annotations

import json
import re
from functools import partial
from pathlib import Path

import pytest
from torch.nn import Conv2d, Module

import layermerge as lm
import zoo
from fake_runtime import QUICK, FakeRuntime
from layermerge.errors import TableError
from layermerge.planning.plan import Plan
from layermerge.runtimes.base import Pass
from layermerge.runtimes.registry import make_runtime
from layermerge.tables.latency import LatencyTable
from layermerge.tables.measuring import LatencyJob, in_network_key
from layermerge.tables.table import Table
from layermerge.tables.workload_clock import WHOLE
from layermerge.tables.workloads import ADD, Sandwich, Workload, workloads_of


def own_ms(workload: Workload) -> float:
    """The oracle: the same prices, read off the workload."""
    prices = {"add": 0.0, "GroupNorm4": 5.0}
    weights = workload.spec.weights if workload.spec else 0
    return (weights + sum(prices.get(str(one), 3.0) for one in workload.follow)) / 1000


def measure(
    name: str, path: Path, runtime: FakeRuntime, whole_ms: float = 100.0, batch: int = 1, plan: Plan | None = None
) -> LatencyTable:
    traced = zoo.traced(name)
    plan = plan or lm.plan(traced)
    job = LatencyJob(plan, workloads_of(traced, plan), f"network {name}", partial(runtime.lasting, whole_ms))
    return job.run(runtime, batch, path / "latency.jsonl")


def measured_to_the_end(name: str) -> Plan:
    """A plan whose slow merges are not only bounded."""
    return lm.plan(zoo.traced(name), lm.Rules(rule_out_slow=False))


@pytest.mark.parametrize("name", ["plain", "basic", "basic_strided", "inverted", "time_shifted_block"])
def test_every_candidate_costs_what_its_work_alone_takes(name: str, tmp_path: Path) -> None:
    table = measure(name, tmp_path, FakeRuntime(), plan=measured_to_the_end(name))
    for candidate in table.plan.candidates:
        workload = table.workloads[candidate.key]
        assert table.of(candidate) == pytest.approx(0.0 if workload is None else own_ms(workload), abs=1e-9)


def test_the_cost_of_a_call_is_taken_off(tmp_path: Path) -> None:
    table = measure("plain", tmp_path, FakeRuntime(call_ms=7.0))
    workload = table.workloads["0-2:5x5g1"]
    assert workload is not None
    assert table.table[workload.key].value == pytest.approx(own_ms(workload), abs=1e-9)


def test_the_cost_of_a_call_is_taken_off_where_there_are_two_inputs(tmp_path: Path) -> None:
    """A pass is called once, however many inputs it takes."""
    table = measure("basic_strided", tmp_path, FakeRuntime(call_ms=0.01))
    workload = table.workloads["1-3:3x3g1"]
    assert workload is not None
    assert ADD in workload.follow
    assert table.table[workload.key].value == pytest.approx(own_ms(workload), abs=1e-9)


@pytest.mark.parametrize("name", ["plain", "basic", "inverted"])
def test_each_distinct_work_is_measured_once(name: str, tmp_path: Path) -> None:
    runtime = FakeRuntime()
    table = measure(name, tmp_path, runtime, plan=measured_to_the_end(name))
    distinct = {workload for workload in table.workloads.values() if workload is not None}
    assert runtime.sandwiches == len(distinct) == table.distinct_workloads
    assert len(table.table) == len(distinct) + 1
    assert len(distinct) < sum(workload is not None for workload in table.workloads.values())
    assert str(table).startswith(
        f"{sum(bool(workload) for workload in table.workloads.values())} entries, {len(distinct)} distinct workloads measured; "
    )
    # Empty graphs, one for each shape that a workload begins or ends with, and one for the call.
    shapes = {shape for workload in distinct for shape in (workload.input_shape, workload.output_shape)}
    assert len(runtime.built) - runtime.sandwiches == len(shapes) + 1


@pytest.mark.parametrize("slowed", [0.5, 1.7, 3.0])
def test_rows_are_in_proportion_to_the_whole_whatever_the_machine_is_up_to(slowed: float, tmp_path: Path) -> None:
    """The machine changes its speed once the whole network is measured."""
    calm = measure("basic_strided", tmp_path, FakeRuntime())
    lines = (tmp_path / "latency.jsonl").read_bytes().splitlines(keepends=True)
    (tmp_path / "latency.jsonl").write_bytes(b"".join(lines[:2]))
    again = measure("basic_strided", tmp_path, FakeRuntime(slowness=lambda _seconds: slowed))
    assert values(again) == pytest.approx(values(calm))


def test_a_speed_that_changes_while_a_work_is_timed_is_noticed(tmp_path: Path) -> None:
    runtime = FakeRuntime(slowness=lambda seconds: 2.0 if int(seconds / 1.7) % 2 else 1.0)
    table = measure("inverted", tmp_path, runtime)
    for candidate in table.plan.candidates:
        workload = table.workloads[candidate.key]
        assert table.of(candidate) == pytest.approx(0.0 if workload is None else own_ms(workload), abs=1e-9)


def test_the_fixed_cost_is_the_whole_network_less_its_single_layers(tmp_path: Path) -> None:
    table = measure("plain", tmp_path, FakeRuntime(), whole_ms=5.0)
    # 3 -> 6, 6 -> 6, 6 -> 6, all 3x3 with a ReLU.
    singles = (162 + 324 + 324 + 9) / 1000
    assert table.original_ms == pytest.approx(5.0)
    assert table.fixed_ms == pytest.approx(5.0 - singles)
    assert table.scale == 1.0


def test_single_layers_that_sum_to_more_than_the_whole_are_scaled(tmp_path: Path) -> None:
    table = measure("plain", tmp_path, FakeRuntime(), whole_ms=0.5)
    assert table.fixed_ms == 0.0
    assert table.scale == pytest.approx(0.5 / 0.819)
    singles = [candidate for candidate in table.plan.candidates if candidate.untouched]
    assert sum(table.of(candidate) or 0.0 for candidate in singles) == pytest.approx(0.5)
    assert table.of(table.plan["0-2:5x5g1"]) == pytest.approx((450 + 3) / 1000 * 0.5 / 0.819)


def test_fixed_layers_cost_nothing_of_their_own_and_are_part_of_the_fixed_cost(tmp_path: Path) -> None:
    plan = lm.plan(zoo.traced("plain"), lm.Rules(exclude=("0",)))
    table = measure("plain", tmp_path, FakeRuntime(), whole_ms=5.0, plan=plan)
    (fixed,) = [candidate for candidate in plan.candidates if candidate.fixed]
    assert table.of(fixed) == 0.0
    assert table.fixed_ms == pytest.approx(5.0 - (324 + 324 + 6) / 1000)


def test_identities_cost_what_they_leave_behind(tmp_path: Path) -> None:
    """Behind each of the convs stands an activation, which stays when the conv goes."""
    table = measure("plain", tmp_path, FakeRuntime())
    found = [candidate for candidate in table.plan.candidates if candidate.spec is None]
    assert len(found) == 3
    assert [table.of(candidate) for candidate in found] == pytest.approx([0.003] * 3)


def test_inputs_have_the_batch_that_was_asked_for(tmp_path: Path) -> None:
    runtime = FakeRuntime()
    measure("plain", tmp_path, runtime, batch=7)
    assert {shape[0] for shape in runtime.shapes} == {7}


def conv_of(module: Module) -> Conv2d:
    """Of a sandwich; of others, one that is like none."""
    conv = module.conv if isinstance(module, Sandwich) else None
    return conv if isinstance(conv, Conv2d) else Conv2d(1, 1, 1)


def test_a_work_that_fails_takes_its_candidates_off_the_menu(tmp_path: Path) -> None:
    runtime = FakeRuntime()
    runtime.broken = lambda module: (
        isinstance(module, Sandwich) and isinstance(module.conv, Conv2d) and module.conv.kernel_size == (5, 5)
    )
    table = measure("plain", tmp_path, runtime)
    gone = {candidate.key for candidate in table.plan.candidates if table.of(candidate) is None}
    assert gone == {"0-2:5x5g1", "0-3:5x5g1", "1-3:5x5g1"}
    reasons = {row.reason for row in table.table.rows.values() if row.status == "failed"}
    assert reasons == {"RuntimeError: operator not known here"}
    frontier = lm.solve(table.plan, table, {candidate.key: -0.1 for candidate in table.plan.candidates})
    assert not gone & {
        entry.key for point in range(len(frontier.points)) for entry in frontier.solution(point).candidates
    }


def test_a_layer_that_cannot_be_measured_at_all_is_one_clear_line(tmp_path: Path) -> None:
    runtime = FakeRuntime()
    runtime.broken = lambda module: (
        isinstance(module, Sandwich) and isinstance(module.conv, Conv2d) and module.conv.in_channels == 3
    )
    table = measure("plain", tmp_path, runtime)
    with pytest.raises(TableError, match=r"has no latency .RuntimeError: operator not known here.; remove its line"):
        _ = table.fixed_ms


def test_a_whole_network_that_fails_is_one_clear_line_and_tried_again(tmp_path: Path) -> None:
    repaired: list[Pass] = []

    def whole() -> Pass:
        if not repaired:
            raise RuntimeError("no memory")
        return repaired[0]

    runtime = FakeRuntime()
    traced = zoo.traced("plain")
    plan = lm.plan(traced)
    job = LatencyJob(plan, workloads_of(traced, plan), "n", whole)
    with pytest.raises(TableError, match="'whole network' could not be measured: RuntimeError: no memory"):
        job.run(runtime, 1, tmp_path / "t.jsonl")
    assert runtime.built == []  # nothing else was tried in vain
    repaired.append(lambda: 7.0)
    assert job.run(runtime, 1, tmp_path / "t.jsonl").original_ms == 7.0


def test_a_whole_network_that_is_gone_when_a_table_goes_on_ends_the_run_and_fails_no_row(tmp_path: Path) -> None:
    measure("plain", tmp_path, FakeRuntime())
    path = tmp_path / "latency.jsonl"
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:3]))
    before = path.read_bytes()

    def torn() -> Pass:
        raise RuntimeError("no model in this file")

    traced = zoo.traced("plain")
    plan = lm.plan(traced)
    job = LatencyJob(plan, workloads_of(traced, plan), "network plain", torn)
    with pytest.raises(TableError, match="'whole network' could not be measured: RuntimeError: no model in this file"):
        job.run(FakeRuntime(), 1, path)
    assert path.read_bytes() == before


def test_opening_again_measures_nothing_twice(tmp_path: Path) -> None:
    first = measure("plain", tmp_path, FakeRuntime())
    before = (tmp_path / "latency.jsonl").read_bytes()
    again = FakeRuntime()
    second = measure("plain", tmp_path, again)
    assert again.built == []
    assert (tmp_path / "latency.jsonl").read_bytes() == before
    assert second.table.rows == first.table.rows


def values(table: LatencyTable) -> dict[str, float | None]:
    return {key: row.value for key, row in table.table.rows.items()}


def test_an_interrupted_table_goes_on_where_it_stopped(tmp_path: Path) -> None:
    whole = values(measure("plain", tmp_path, FakeRuntime()))
    path = tmp_path / "latency.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:-2]))
    again = FakeRuntime()
    assert values(measure("plain", tmp_path, again)) == pytest.approx(whole)
    assert again.sandwiches == 2


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"batch": 4}, r"\(batch: 1 there, 4 now\)"),
        ({"runtime": FakeRuntime(threads=2)}, r"\(threads: 1 there, 2 now\)"),
        ({"runtime": FakeRuntime(version="2")}, r"\(version: '1' there, '2' now\)"),
        ({"name": "functional_relu"}, r"\(network: 'network plain' there, 'network functional_relu' now\)"),
    ],
)
def test_a_table_measured_otherwise_is_refused_and_the_difference_shown(
    changes: dict[str, object], message: str, tmp_path: Path
) -> None:
    measure("plain", tmp_path, FakeRuntime())
    before = (tmp_path / "latency.jsonl").read_bytes()
    given = {"name": "plain", "runtime": FakeRuntime(), **changes}
    with pytest.raises(TableError, match=message):
        measure(path=tmp_path, **given)  # type: ignore[arg-type]
    assert (tmp_path / "latency.jsonl").read_bytes() == before


@pytest.mark.parametrize(("value", "shown"), [(-0.5, "-0.5"), (1e12, "1e\\+12")])
@pytest.mark.parametrize("place", [1, 2])
def test_rows_that_are_no_latency_name_the_file_and_the_row(
    value: float, shown: str, place: int, tmp_path: Path
) -> None:
    measure("plain", tmp_path, FakeRuntime())
    path = tmp_path / "latency.jsonl"
    lines = path.read_text().splitlines()
    row = json.loads(lines[place])
    lines[place] = json.dumps(row | {"value": value})
    path.write_text("\n".join(lines) + "\n")
    table = measure("plain", tmp_path, FakeRuntime())
    with pytest.raises(
        TableError, match=rf"latency.jsonl': value of '{re.escape(row['key'])}' is {shown}, which is no"
    ):
        _ = table.original_ms, [table.of(candidate) for candidate in table.plan.candidates]


def test_a_whole_network_that_takes_no_time_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TableError, match=r"latency.jsonl': value of 'whole network' is 0; remove its line"):
        measure("plain", tmp_path, FakeRuntime(), whole_ms=0.0)


def test_works_that_take_less_than_an_empty_graph_take_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fake_runtime.milliseconds", lambda module: 1.0 if isinstance(module, Sandwich) else 3.0)
    table = measure("plain", tmp_path, FakeRuntime())
    assert {table.of(candidate) for candidate in table.plan.candidates} == {0.0}
    assert table.scale == 1.0
    assert table.fixed_ms == pytest.approx(100.0)


@pytest.mark.parametrize("runtime", ["torch", "onnxruntime", "openvino"])
def test_a_table_of_a_real_runtime(runtime: str, tmp_path: Path) -> None:
    traced = zoo.traced("basic_strided")
    plan = lm.plan(traced)
    path = tmp_path / "latency.jsonl"
    table = lm.measure_latency(plan, trace=traced, runtime=runtime, batch_size=2, path=path, clock=QUICK)
    workloads = {workload.key for workload in table.workloads.values() if workload is not None}
    read = Table.read(path)
    singles = {
        workload.key for entry in plan.candidates if entry.untouched and (workload := table.workloads[entry.key])
    }
    assert read.rows.keys() == {WHOLE, *workloads, *map(in_network_key, singles)}
    assert {row.status for row in read.rows.values()} == {"ok"}
    assert all((row.value or 0.0) >= 0 for row in read.rows.values())
    copies = make_runtime(runtime).copies
    assert all(row.samples == (copies if row.in_network else 2) for row in read.rows.values()), "a pass of each copy"
    wanted = {"kind": "latency", "runtime": runtime, "batch": 2, "threads": 1, "dtype": "float32", "device": "cpu"}
    assert wanted.items() <= read.provenance.items()
    assert table.original_ms > 0
    with pytest.raises(TableError, match=r"batch: 2 there, 1 now"):
        lm.measure_latency(plan, trace=traced, runtime=runtime, path=path, clock=QUICK)
