"""Importance by calibration: without training, the same rows wherever, in parts and after any interruption."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import torch

import layermerge as lm
from layermerge.errors import TableError
from layermerge.tables.estimators.base import BASELINE
from layermerge.tables.executors import LocalProcesses
from layermerge.tables.table import Table
from layermerge.tasks import Classification
from layermerge.tuning.recipe import Recipe
from tiny_runs import arrays, network, task


@pytest.fixture(scope="module")
def traced() -> lm.Trace:
    return lm.trace(network(), task().example_inputs())


@pytest.fixture(scope="module")
def table(traced: lm.Trace, tmp_path_factory: pytest.TempPathFactory) -> Table:
    return measure(traced, tmp_path_factory.mktemp("calibrated") / "t.jsonl")


def measure(traced: lm.Trace, path: Path, **more: Any) -> Table:
    return lm.measure_importance(traced, lm.plan(traced), task(), path=path, **more)


def values(table: Table) -> dict[str, tuple[float | None, float]]:
    return {key: (row.value, row.spread) for key, row in table.rows.items()}


def test_every_candidate_loses_something_and_says_how_sure_that_is(traced: lm.Trace, table: Table) -> None:
    changing = [entry.key for entry in lm.plan(traced).entries if entry.changes]
    assert set(table.rows) == {BASELINE, *changing}
    assert table[BASELINE].value == task().evaluate(traced.module)
    for key in changing:
        row = table[key]
        assert row.value is not None, row.reason
        assert row.value < 0
        assert 0 < row.spread < 2 * abs(row.value)
        assert row.samples == 40, "as many as are held out"
    dropped, merged = table["1-3:identity"], table["1-3:5x5g1"]
    assert (dropped.value or 0) < (merged.value or 0), "a block that is dropped loses more than one that is merged"


def test_nothing_given_changes_and_no_label_is_looked_at(traced: lm.Trace, table: Table, tmp_path: Path) -> None:
    module = traced.module.train()
    before, random_state = copy.deepcopy(module.state_dict()), torch.get_rng_state()
    other = measure(traced, tmp_path / "t.jsonl")
    assert values(other) == values(table)
    assert module.training
    assert torch.equal(random_state, torch.get_rng_state())
    assert all(torch.equal(tensor, before[name]) for name, tensor in module.state_dict().items())


def test_the_same_rows_from_two_workers_in_parts_and_after_an_interruption(
    traced: lm.Trace, table: Table, tmp_path: Path
) -> None:
    assert values(measure(traced, tmp_path / "two.jsonl", executor=LocalProcesses(2))) == values(table)
    for number in (0, 1):
        measure(traced, tmp_path / "parts.jsonl", shard=(number, 2))
    assert values(measure(traced, tmp_path / "parts.jsonl")) == values(table)
    measure(traced, tmp_path / "cut.jsonl")
    lines = (tmp_path / "cut.jsonl").read_bytes().splitlines(keepends=True)
    (tmp_path / "cut.jsonl").write_bytes(b"".join(lines[: len(lines) // 2]))
    assert values(measure(traced, tmp_path / "cut.jsonl")) == values(table)


def test_a_table_of_another_estimator_is_refused_with_the_difference(traced: lm.Trace, tmp_path: Path) -> None:
    lm.measure_importance(traced, lm.plan(traced), task(), path=tmp_path / "t.jsonl", steps=1)
    with pytest.raises(TableError, match=r"estimator: 'trained' there, 'calibrated' now"):
        measure(traced, tmp_path / "t.jsonl")


def test_a_table_from_before_there_were_estimators_is_refused(traced: lm.Trace, tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    lm.measure_importance(traced, lm.plan(traced), task(), path=path, steps=1)
    first, *rest = path.read_text().splitlines()
    document = json.loads(first)
    del document["provenance"]["estimator"]
    path.write_text("\n".join([json.dumps(document), *rest]) + "\n")
    with pytest.raises(TableError, match="estimator: None there, 'trained' now"):
        lm.measure_importance(traced, lm.plan(traced), task(), path=path, steps=1)


def test_steps_and_recipe_are_not_both_given(traced: lm.Trace, tmp_path: Path) -> None:
    with pytest.raises(TableError, match="give one of them"):
        measure(traced, tmp_path / "t.jsonl", steps=3, recipe=Recipe(steps=3))


def test_divergences_are_summed_in_the_unit_in_which_they_add_up(
    traced: lm.Trace, table: Table, tmp_path: Path
) -> None:
    menu = lm.plan(traced)
    latency = lm.measure_latency(menu, trace=traced, runtime="torch", path=tmp_path / "latency.jsonl")
    default = lm.solve(menu, latency, table)
    for index, point in enumerate(default.points):
        chosen = default.solution(index).candidates
        total = -sum((-(table[one.key].value or 0.0)) ** 0.75 for one in chosen if one.changes)
        assert point.importance == pytest.approx(total, abs=1e-12)
    assert default.points == lm.solve(menu, latency, table, objective="delta").points


def test_too_few_images_end_the_run_in_one_line(traced: lm.Trace, tmp_path: Path) -> None:
    data = arrays()
    few = Classification((data["x_train"][:15], data["y_train"][:15]), (data["x_test"], data["y_test"]), held_out=5)
    with pytest.raises(TableError, match=r"importance cannot be estimated: 10 images are too few to calibrate with"):
        lm.measure_importance(traced, lm.plan(traced), few, path=tmp_path / "t.jsonl")
