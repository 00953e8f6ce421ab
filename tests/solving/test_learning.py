"""The loop that learns: rows of a choice are timed again, corrected by what networks tell, and never measured twice."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

import layermerge as lm
import zoo
from context_runtime import ContextRuntime, operators_of
from fake_runtime import QUICK
from layermerge.errors import InfeasibleBudget
from layermerge.tables.latency import LatencyTable
from layermerge.tables.table import Table

NETWORKS = ["plain", "basic", "inverted", "depthwise_chain", "one_relu_five_times"]


def scores(plan: lm.Plan) -> dict[str, float]:
    rng = random.Random(1)
    return {one.key: -rng.uniform(0.02, 0.3) * len(one.layers) for one in plan.candidates if one.changes}


def measured(name: str, path: Path, **given: Any) -> tuple[LatencyTable, ContextRuntime]:
    runtime = ContextRuntime(**given)
    trace = zoo.traced(name)
    return lm.measure_latency(lm.plan(trace), trace=trace, runtime=runtime, path=path / "latency.jsonl"), runtime


def met(name: str, table: LatencyTable, runtime: ContextRuntime, budget: str) -> lm.Solution | None:
    given = {"budget": budget, "runtime": runtime, "clock": QUICK}
    try:
        return lm.meet_budget(zoo.traced(name), table.plan, table, scores(table.plan), **given)  # type: ignore[arg-type]
    except InfeasibleBudget:
        return None


def truth(name: str, solution: lm.Solution | None) -> float:
    candidates = solution.candidates if solution else ()
    return sum(one.ms for one in operators_of(lm.merge(lm.rewrite(zoo.traced(name), candidates))))


@pytest.mark.parametrize("budget", ["85%", "65%"])
@pytest.mark.parametrize("silent", [False, True])
@pytest.mark.parametrize("name", NETWORKS)
def test_the_budget_is_kept_in_few_rounds(name: str, silent: bool, budget: str, tmp_path: Path) -> None:
    table, runtime = measured(name, tmp_path, silent=silent)
    found = met(name, table, runtime, budget)
    if found is None:
        return
    assert found.measured_ms is not None
    assert found.budget_ms is not None
    assert found.measured_ms == pytest.approx(truth(name, found))
    assert found.measured_ms <= found.budget_ms
    assert len(found.rounds) <= 4


@pytest.mark.parametrize("budget", ["85%", "65%"])
@pytest.mark.parametrize("name", NETWORKS)
def test_lucky_copies_do_not_pass_for_fast_networks(name: str, budget: str, tmp_path: Path) -> None:
    """Operators of a copy scatter by a tenth; what is chosen keeps the budget by what they take on average."""
    table, runtime = measured(name, tmp_path, luck=0.1)
    found = met(name, table, runtime, budget)
    if found is not None:
        assert truth(name, found) <= 1.02 * float(budget.removesuffix("%")) / 100 * truth(name, None)


@pytest.mark.parametrize("name", ["plain", "basic", "depthwise_chain"])
def test_networks_are_predicted_as_they_are_measured_beside_the_original(name: str, tmp_path: Path) -> None:
    """Convs take half as long again where another network ran before; by itself the original would tell otherwise."""
    table, runtime = measured(name, tmp_path, cold=0.5)
    found = met(name, table, runtime, "75%")
    assert found is not None
    assert abs(found.rounds[0].predicted_ms / found.rounds[0].measured_ms - 1) < 0.05


@pytest.mark.parametrize("silent", [False, True])
def test_what_a_network_taught_is_in_the_table_for_the_next(silent: bool, tmp_path: Path) -> None:
    """No single layer of this network is like its merges, so its fresh table is off; after a loop it is not."""
    table, runtime = measured("inverted", tmp_path, silent=silent)
    found = met("inverted", table, runtime, "60%")
    assert found is not None
    path = tmp_path / "latency.jsonl"
    learned = LatencyTable(table.plan, table.workloads, Table.read(path))
    rows = [row for row in learned.table.rows.values() if row.loop]
    assert {row.loop for row in rows} == {"layermerge exp 60%"}
    assert any(row.parts for row in rows)
    assert any(row.in_network for row in rows) != silent
    before, after = (one.predict(found.candidates) for one in (learned.fresh, learned))
    own = truth("inverted", found)
    assert abs(after.ms / own - 1) < 0.02
    assert after.error_ms < before.error_ms
    assert learned.measured_whole(found.candidates) == pytest.approx(own)


def test_a_fresh_table_stays_what_it_was(tmp_path: Path) -> None:
    table, runtime = measured("inverted", tmp_path)
    before = {one.key: table.of(one) for one in table.plan.candidates}
    met("inverted", table, runtime, "60%")
    learned = LatencyTable(table.plan, table.workloads, Table.read(tmp_path / "latency.jsonl"))
    assert {one.key: learned.fresh.of(one) for one in table.plan.candidates} == before


def test_the_same_loop_again_measures_nothing(tmp_path: Path) -> None:
    table, runtime = measured("basic", tmp_path)
    first = met("basic", table, runtime, "70%")
    before = (tmp_path / "latency.jsonl").read_bytes()
    again, silent = measured("basic", tmp_path)
    assert met("basic", again, silent, "70%") == first
    assert (tmp_path / "latency.jsonl").read_bytes() == before
    assert not any(hasattr(module, "surgery") for module in silent.built)


def test_other_scores_for_the_same_budget_find_their_own_networks(tmp_path: Path) -> None:
    table, runtime = measured("basic", tmp_path)
    first = met("basic", table, runtime, "70%")
    other = {key: -0.5 - value for key, value in scores(table.plan).items()}
    second = lm.meet_budget(zoo.traced("basic"), table.plan, table, other, budget="70%", runtime=runtime, clock=QUICK)
    assert first is not None
    assert second.candidates != first.candidates
    assert second.measured_ms == pytest.approx(truth("basic", second))


class Lucky(ContextRuntime):
    """The first sample of one workload comes out at a tenth of what it is; all others are right."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: set[int] = set()

    def record(self, module: Any, inputs: Any, *, small: bool = False) -> Any:
        recorded: Any = super().record(module, inputs, small=small)
        conv = getattr(module, "conv", None)
        if conv is not None and conv.kernel_size == (7, 7) and conv.weight.numel() not in self.seen:
            self.seen.add(conv.weight.numel())
            recorded.operators = [
                type(one)(one.owner, one.is_conv, one.ms / (10 if one.owner == "conv" else 1))
                for one in recorded.operators
            ]
        return recorded


def test_a_row_that_came_out_too_small_does_not_win(tmp_path: Path) -> None:
    trace = zoo.traced("one_relu_five_times")
    plan, runtime = lm.plan(trace, lm.Rules(rule_out_slow=False)), Lucky()
    table = lm.measure_latency(plan, trace=trace, runtime=runtime, path=tmp_path / "latency.jsonl")
    given = dict.fromkeys((one.key for one in plan.candidates if one.changes), -0.2)
    lucky = [
        one.key for one in lm.solve(plan, table, given).at("50%").candidates if one.spec and max(one.spec.kernel) == 7
    ]
    assert lucky, "the table's own choice falls for it"
    found = lm.meet_budget(trace, plan, table, given, budget="50%", runtime=runtime, clock=QUICK)
    first = found.rounds[0]
    assert abs(first.predicted_ms / first.measured_ms - 1) < 0.1
    assert not any(one.key in lucky for one in found.candidates)


def test_a_table_without_a_file_learns_all_the_same(tmp_path: Path) -> None:
    table, runtime = measured("basic", tmp_path)
    apart = LatencyTable(table.plan, table.workloads, Table(table.table.provenance, table.table.rows.values()))
    before = (tmp_path / "latency.jsonl").read_bytes()
    assert met("basic", apart, runtime, "70%") == met("basic", table, ContextRuntime(), "70%")
    assert (tmp_path / "latency.jsonl").read_bytes() != before
