"""Importance: D against a training loop written by hand; the same rows wherever, in parts, and after any kill."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import layermerge as lm
from layermerge.errors import TableError
from layermerge.planning.plan import Plan
from layermerge.planning.rules import Rules
from layermerge.tables.cost import table_cost
from layermerge.tables.estimators.base import BASELINE
from layermerge.tables.estimators.trained import TrainedJob
from layermerge.tables.executors import LocalProcesses
from layermerge.tables.importance import measure_importance
from layermerge.tables.latency import LatencyTable
from layermerge.tables.runner import fill_table
from layermerge.tables.shards import part_of
from layermerge.tables.table import Row, Table
from layermerge.tables.workload_clock import WHOLE
from layermerge.tables.workloads import workloads_of
from layermerge.tasks import Classification, Draw, Preparation
from layermerge.tasks.base import Network, Task
from layermerge.tracing.trace import Trace
from layermerge.tuning.recipe import Recipe
from tables.importance_runs import EXAMPLE, RECIPE, QuietTask, menu, net, run, traced
from tuning.toy_task import CLASSES, ToyTask, recipe

TESTS = Path(__file__).resolve().parents[1]
TOUCHED = [candidate.key for candidate in menu().candidates if not candidate.untouched]


def values(table: Table) -> dict[str, float | None]:
    return {key: row.value for key, row in table.rows.items()}


def measure(path: Path, task: Task | None = None, **more: Any) -> Table:
    given: dict[str, Any] = {"trace": traced(), "plan": menu(), "recipe": RECIPE} | more
    return measure_importance(task=task or QuietTask(), path=path, **given)


def pictures() -> Classification:
    """Classes that differ in brightness; every score is a share of 30 examples."""
    generator, labels = np.random.default_rng(0), np.arange(150) % CLASSES
    images = generator.integers(0, 60, (150, 8, 8, 3)).astype(np.uint8) + (40 * labels[:, None, None, None]).astype(
        np.uint8
    )
    test = (images[:10], labels[:10])
    return Classification((images, labels), test, held_out=30, preparation=Preparation(augment="crop_flip", pad=1))


# -- against a loop written by hand


def trained_by_hand(trace: Trace, plan: Plan, key: str | None, task: Task, given: Recipe) -> float:
    """What the recipe says, in torch's own words: constant rate, Nesterov, weights decay but norms and biases do not."""
    module = lm.rewrite(trace, [] if key is None else [plan[key]])
    module.train()
    decaying = [parameter for parameter in module.parameters() if parameter.ndim > 1]
    rest = [parameter for parameter in module.parameters() if parameter.ndim <= 1]
    groups: list[dict[str, Any]] = [{"params": decaying, "weight_decay": given.weight_decay}, {"params": rest}]
    optimizer = torch.optim.SGD(groups, lr=given.lr, momentum=0.9, nesterov=True)
    assert given.steps is not None
    done, epoch = 0, 0
    while done < given.steps:
        for batch in task.train_batches(Draw(seed=given.seed, batch_size=given.batch_size, epoch=epoch)):
            if done < given.steps:
                optimizer.zero_grad()
                nn.functional.cross_entropy(module(batch[0]), batch[1]).backward()  # type: ignore[no-untyped-call]
                optimizer.step()
                done += 1
        epoch += 1
    module.eval()
    return task.evaluate(module)


@pytest.mark.parametrize("kind", ["loss", "accuracy"])
def test_each_entry_is_its_score_after_the_same_training_less_the_baseline(tmp_path: Path, kind: str) -> None:
    trace = lm.trace(net(dropout=0.0), EXAMPLE)  # by hand there is no telling which numbers dropout draws
    plan = lm.plan(trace)
    task: Task = QuietTask() if kind == "loss" else pictures()
    given = recipe(steps=9, schedule="constant", lr=0.05, seed=4)
    table = measure(tmp_path / "t.jsonl", task, trace=trace, plan=plan, recipe=given)
    base = trained_by_hand(trace, plan, None, task, given)
    assert table[BASELINE].value == pytest.approx(base, abs=1e-6)
    touched = [candidate.key for candidate in plan.candidates if not candidate.untouched]
    assert len(touched) > 5
    for key in touched:
        expected = trained_by_hand(trace, plan, key, task, given) - base
        assert table[key].value == pytest.approx(expected, abs=1e-6), key
    assert len(set(values(table).values())) > 2, "entries differ"


def test_nothing_given_changes(tmp_path: Path) -> None:
    before = {key: tensor.clone() for key, tensor in traced().module.state_dict().items()}
    random_state = torch.get_rng_state()
    threads = torch.get_num_threads()
    measure(tmp_path / "t.jsonl", pictures())
    assert torch.equal(random_state, torch.get_rng_state())
    assert torch.get_num_threads() == threads
    for key, tensor in traced().module.state_dict().items():
        assert torch.equal(tensor, before[key])


class Watching(QuietTask):
    """Notes how it finds the network and torch when it evaluates."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: set[tuple[bool, bool]] = set()

    def evaluate(self, network: Network) -> float:
        assert isinstance(network, nn.Module)
        self.seen.add((network.training, torch.is_grad_enabled()))
        return super().evaluate(network)


def test_a_task_evaluates_under_the_conditions_of_fine_tuning(tmp_path: Path) -> None:
    """A user writes one `evaluate`: where fine-tuning calls it in eval mode without gradients, importance has to as well."""
    trace, task = lm.trace(net().train(), EXAMPLE), Watching()
    measure(tmp_path / "t.jsonl", task, trace=trace)
    assert task.seen == {(False, False)}


# -- which rows there are


def test_untouched_and_fixed_candidates_have_no_row(tmp_path: Path) -> None:
    assert measure(tmp_path / "all.jsonl").rows.keys() == {BASELINE, *TOUCHED}
    plan = lm.plan(traced(), Rules(exclude=("6",)))
    assert any(candidate.fixed for candidate in plan.candidates)
    table = measure(tmp_path / "some.jsonl", plan=plan)
    assert table.rows.keys() == {BASELINE} | {c.key for c in plan.entries if not c.untouched}
    assert {c.key for c in plan.candidates if c.fixed or c.untouched}.isdisjoint(table.rows)


def test_the_same_table_twice_and_with_any_number_of_workers(tmp_path: Path) -> None:
    expected = values(run(tmp_path / "first.jsonl"))
    assert values(run(tmp_path / "again.jsonl")) == expected
    for workers in (1, 2):
        assert values(run(tmp_path / f"{workers}.jsonl", workers)) == expected
    assert values(Table.read(tmp_path / "2.jsonl")) == expected


def test_a_finished_table_is_not_measured_again(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    measure(path)
    before, task = path.read_bytes(), QuietTask()
    measure(path, task)
    assert (path.read_bytes(), task.given, task.evaluations) == (before, 0, 0)


@pytest.mark.parametrize("workers", ["02", pytest.param("0212", marks=pytest.mark.slow)])
def test_killed_at_random_moments_it_ends_with_the_same_values(tmp_path: Path, workers: str) -> None:
    paths = os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")])
    environment = os.environ | {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(TESTS / "tables" / "importance_runs.py"), str(tmp_path), workers]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["killed", str(len(workers)), "same", "True", "statuses", "ok"]


def test_shards_join_to_the_whole(tmp_path: Path) -> None:
    whole = run(tmp_path / "whole.jsonl")
    job = TrainedJob(traced(), menu(), QuietTask(), baseline=whole[BASELINE].value, recipe=RECIPE)
    parts = [
        fill_table(tmp_path / f"{number}.jsonl", whole.provenance, part_of(TOUCHED, (number, 2)), job)
        for number in (0, 1)
    ]
    assert {len(part) for part in parts} == {5}
    joined = values(parts[0]) | values(parts[1])
    assert joined == {key: value for key, value in values(whole).items() if key != BASELINE}


# -- refusals


def test_a_table_that_was_measured_otherwise_is_refused_with_the_difference(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    measure(path)
    other = lm.trace(net(seed=4), EXAMPLE)
    assert lm.plan(other).candidates  # the same network, other weights
    for more, shown in (
        ({"recipe": recipe(steps=6, schedule="constant", lr=0.2)}, r"\(recipe\.lr: 0\.1 there, 0\.2 now\)"),
        ({"recipe": recipe(steps=7, schedule="constant", lr=0.1)}, r"\(recipe\.steps: 6 there, 7 now\)"),
        ({"task": QuietTask(70)}, r"\(task\.examples: 64 there, 70 now\)"),
        ({"trace": other, "plan": lm.plan(other)}, r"\(weights: '\w+' there, '\w+' now\)"),
    ):
        with pytest.raises(TableError, match=shown):
            measure(path, **more)


@pytest.mark.parametrize("more", [{"distill": {}}, {"ema": 0.9}])
def test_distillation_and_averages_are_refused(tmp_path: Path, more: dict[str, Any]) -> None:
    with pytest.raises(TableError, match=r"without distillation and without a moving average; leave them out"):
        measure(tmp_path / "t.jsonl", recipe=recipe(steps=1, **more))
    assert list(tmp_path.iterdir()) == []


# -- entries that fail


class Spoilt(QuietTask):
    """Scores networks of so many convs with NaN."""

    def __init__(self, convs: int) -> None:
        super().__init__()
        self.convs = convs

    def evaluate(self, network: Network) -> float:
        assert isinstance(network, nn.Module)
        found = sum(isinstance(module, nn.Conv2d) for module in network.modules())
        return float("nan") if found == self.convs else super().evaluate(network)


def latencies(plan: Plan, **milliseconds: float) -> LatencyTable:
    """1 ms a conv and 9 ms a merged one, so that nothing but removing pays; `milliseconds` by kernel."""
    works = workloads_of(traced(), plan)
    rows = {WHOLE: Row(key=WHOLE, value=20.0)}
    for work in works.values():
        if work is not None:
            size = f"k{work.spec.kernel[0]}" if work.spec else "none"
            rows[work.key] = Row(key=work.key, value=milliseconds.get(size, {"none": 0.0, "k3": 1.0}.get(size, 9.0)))
    return LatencyTable(plan, works, Table({}, rows.values()))


@pytest.mark.parametrize("workers", [0, 2])
def test_an_entry_that_scores_nan_fails_alone_and_leaves_the_menu(tmp_path: Path, workers: int) -> None:
    executor = {"executor": LocalProcesses(workers)} if workers else {}
    table = measure(tmp_path / "t.jsonl", Spoilt(convs=1), **executor)
    spoilt = {"0-3:3x3g1", "1-3:identity"}
    assert {key for key, row in table.rows.items() if row.status == "failed"} == spoilt
    assert all("nan" in str(table[key].reason) for key in spoilt)
    assert table.rows.keys() == {BASELINE, *TOUCHED}
    frontier = lm.solve(menu(), latencies(menu(), k5=0.5, k7=0.4), table)
    for index in range(len(frontier.points)):
        assert spoilt.isdisjoint(candidate.key for candidate in frontier.solution(index).candidates)


def test_a_training_that_diverges_fails_alone(tmp_path: Path) -> None:
    class Diverging(QuietTask):
        def forward(self, network: Network, batch: Any) -> Any:
            assert isinstance(network, nn.Module)
            convs = sum(isinstance(module, nn.Conv2d) for module in network.modules())
            return super().forward(network, batch) * (float("inf") if convs == 1 else 1.0)

    table = measure(tmp_path / "t.jsonl", Diverging())
    failed = {key for key, row in table.rows.items() if row.status == "failed"}
    assert failed == {"0-3:3x3g1", "1-3:identity"}
    assert str(table["1-3:identity"].reason).startswith("TuningError: the loss is")


def test_a_baseline_that_cannot_be_scored_is_one_clear_error(tmp_path: Path) -> None:
    class Broken(QuietTask):
        def evaluate(self, network: Network) -> float:
            raise OSError(f"the disk is gone, so is {type(network).__name__}\nreally")

    for name, task in (("nan", Spoilt(convs=3)), ("the disk is gone", Broken())):
        with pytest.raises(TableError, match=f"untouched network.*{name}") as caught:
            measure(tmp_path / f"{name}.jsonl", task)
        assert "\n" not in str(caught.value)


# -- ruling out


class Nearly(QuietTask):
    """Nothing can score much more than the untouched network does, so that merges can be ruled out."""

    ceiling = -1.5


def test_slow_merges_are_ruled_out_and_the_rest_keep_their_values(tmp_path: Path) -> None:
    whole = measure(tmp_path / "whole.jsonl", Nearly())
    task = Nearly()
    table = measure(tmp_path / "part.jsonl", task, latency=latencies(menu()))
    skipped = {key for key, row in table.rows.items() if row.status == "ruled_out"}
    assert skipped == {"0-2:5x5g1", "0-3:5x5g1", "0-3:7x7g1", "1-3:5x5g1"}
    assert table["0-2:5x5g1"].reason == "unmerged it takes 2.0000 ms, merged 9.0000 ms"
    assert task.evaluations == 1 + len(TOUCHED) - len(skipped), "what is ruled out is not run"
    rest = {key: value for key, value in values(whole).items() if key not in skipped}
    assert {key: value for key, value in values(table).items() if key not in skipped} == rest
    cost = table_cost(menu(), table, None)
    assert (cost.entries, cost.scored, cost.ruled_out, cost.failed) == (13, 6, 4, 0)


def test_without_latency_and_under_the_papers_rules_nothing_is_ruled_out(tmp_path: Path) -> None:
    plan = lm.plan(traced(), Rules.paper())
    given: dict[str, dict[str, Any]] = {
        "paper": {"plan": plan, "latency": latencies(plan)},
        "off": {"plan": lm.plan(traced(), Rules(rule_out_slow=False)), "latency": latencies(menu())},
        "no_latency": {},
    }
    for name, more in given.items():
        rows = measure(tmp_path / f"{name}.jsonl", Nearly(), **more).rows
        assert len(rows) > 1
        assert {row.status for row in rows.values()} == {"ok"}, name


def test_what_another_latency_ruled_out_is_not_off_the_menu_for_good(tmp_path: Path) -> None:
    """Rows that rest on one latency table must not be taken for rows of another: refused, or measured after all."""
    path = tmp_path / "t.jsonl"
    measure(path, Nearly(), latency=latencies(menu()))
    fast = latencies(menu(), k5=0.1, k7=0.1)  # a machine on which every merge pays
    try:
        table = measure(path, Nearly(), latency=fast)
    except TableError:
        return
    assert "ruled_out" not in {row.status for row in table.rows.values()}


def test_what_was_only_bounded_stays_unscored_when_its_latency_is_measured_after_all(tmp_path: Path) -> None:
    """Another objective measures bounded workloads to the end; what is scored already is not refused for that."""
    path, known = tmp_path / "t.jsonl", latencies(menu())
    seven = known.workloads["0-3:7x7g1"]
    assert seven is not None
    bound = Row(key=seven.key, status="slower", value=99.0, reason="one pass takes 99.000 ms")
    first = replace(
        known, table=Table({}, [row if row.key != seven.key else bound for row in known.table.rows.values()])
    )
    before = measure(path, Nearly(), latency=first)
    assert (before["0-3:7x7g1"].status, before["0-3:7x7g1"].reason) == ("slower", "one pass takes 99.000 ms")
    assert table_cost(menu(), before, None).ruled_out == 4
    after = latencies(menu(), k7=0.1)
    again = replace(first, table=Table({}, [*first.table.rows.values(), Row(key="again", of=seven.key, value=0.1)]))
    assert not again.bounds(menu()["0-3:7x7g1"])
    assert again.of(menu()["0-3:7x7g1"]) == after.of(menu()["0-3:7x7g1"])
    assert measure(path, Nearly(), latency=again).rows == before.rows


# -- what it cost


def test_the_cost_counts_entries_of_the_plan() -> None:
    rows = [
        Row(key=BASELINE, value=0.5, seconds=100.0),
        Row(key="0-2:3x3g1", value=0.1, seconds=1.5),
        Row(key="0-2:5x5g1", value=0.1, seconds=2.25),
        Row(key="0-3:7x7g1", status="ruled_out", reason="slow"),
        Row(key="1-2:identity", status="failed", reason="nan", seconds=4.0),
        Row(key="7-8:identity", value=0.1, seconds=50.0),
    ]
    cost = table_cost(menu(), Table({}, rows), None)
    assert (cost.entries, cost.scored, cost.ruled_out, cost.failed) == (len(menu().entries), 2, 1, 1)
    assert cost.importance_seconds == 7.75
    assert str(cost).startswith("tables: 13 entries, 0 workloads timed in 0 s, 2 scored in 8 s, 1 ruled out by latency")
    assert (cost + cost).importance_seconds == 15.5


def test_the_toy_task_itself_can_be_measured(tmp_path: Path) -> None:
    """A task whose `evaluate` leaves mode and gradients to its caller, as fine-tuning allows."""
    table = measure(tmp_path / "t.jsonl", ToyTask())
    assert {row.status for row in table.rows.values()} == {"ok"}
