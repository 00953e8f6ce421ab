"""Methods side by side in one run directory: what each may do, what they share, and that all are measured alike."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from safetensors import safe_open

import layermerge as lm
import tiny_runs
from layermerge.errors import InfeasibleBudget, PlanError
from layermerge.files import read_document
from layermerge.runs.choosing import choose
from layermerge.runs.context import Context, open_context
from layermerge.runs.methods import METHODS, half_of, run_control, run_method
from layermerge.runs.records import Report, Result
from layermerge.tuning.recipe import Recipe
from tiny_runs import accuracy_of, arrays, contents, network, normalised, only_learned, served_logits, settings, task

BUDGET = "75%"
TABLES = ("latency.jsonl", "importance.jsonl", "plan.json", "original.onnx")


@pytest.fixture(scope="module", autouse=True)
def _runtimes() -> Iterator[None]:
    with tiny_runs.priced_runtimes():
        yield


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory, _runtimes: None) -> Result:
    """LayerMerge's own run, whose directory all tests here go on with: each method has its place there."""
    directory = tmp_path_factory.mktemp("methods") / "run"
    return lm.compress(network(), task(), budget=BUDGET, run_dir=directory, settings=settings())


def home(first: Result) -> Path:
    return first.directory.parents[2]


def run(first: Result, **changes: Any) -> Context:
    return open_context(network(), task(), home(first), settings(**changes))


def tables(first: Result) -> dict[str, bytes]:
    return {name: (home(first) / name).read_bytes() for name in TABLES}


def document(path: Path) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return loaded


def check(result: Result, first: Result, method: str, *, convs: int | None = None) -> Report:
    """Whatever the method: figures are of the exported file, and beside the same original."""
    report = result.report
    assert report == read_document(result.directory / "result.json", Report)
    assert report.method == method
    assert report.original_ms == first.report.original_ms
    assert report.original_score == first.report.original_score
    data, file = arrays(), result.directory / "model.onnx"
    logits = served_logits(file, normalised(data["x_test"]))
    assert report.score.value == accuracy_of(logits, data["y_test"])
    with torch.no_grad():
        own = result.module.eval()(torch.from_numpy(normalised(data["x_test"]))).numpy()
    assert np.abs(own - logits).max() <= 1e-4 * np.abs(logits).max()
    nodes = [node for node in onnx.load(str(file)).graph.node if node.op_type == "Conv"]
    assert report.convs_after == len(nodes)
    assert report.convs_before == 5
    assert report.measured_ms <= report.budget_ms
    if convs is not None:
        assert report.convs_after == convs
    return report


# -- menus over shared tables


def test_depth_keeps_every_conv_and_measures_nothing_anew(first: Result) -> None:
    before = tables(first)
    result = run_method(run(first), "depth", BUDGET)
    assert only_learned(before, tables(first))
    assert result.solution is not None
    assert all(candidate.kept == candidate.layers for candidate in result.solution.candidates)
    check(result, first, "depth")


def test_layeronly_merges_nothing_and_measures_nothing_anew(first: Result) -> None:
    before = tables(first)
    result = run_method(run(first), "layeronly", BUDGET)
    assert only_learned(before, tables(first))
    assert result.solution is not None
    assert all(candidate.end - candidate.start == 1 for candidate in result.solution.candidates)
    check(result, first, "layeronly", convs=sum(len(entry.kept) for entry in result.solution.candidates))


def test_a_smaller_menu_first_is_added_to(first: Result, tmp_path: Path) -> None:
    """The other way round: rows that LayerOnly measured are used by LayerMerge, which chooses as it does alone."""
    directory = tmp_path / "run"
    chosen = settings(finetune=Recipe(steps=1, batch_size=16))
    lone = open_context(network(), task(), directory, chosen)
    choose(lone, "layeronly", BUDGET)
    before = {name: (directory / name).read_bytes() for name in ("latency.jsonl", "importance.jsonl")}
    met = choose(lone, "layermerge", BUDGET).solution
    after = {name: (directory / name).read_bytes() for name in before}
    assert all(after[name].startswith(before[name]) and after[name] != before[name] for name in before)
    assert first.solution is not None
    assert met.candidates == first.solution.candidates
    keys = [json.loads(line)["key"] for line in after["importance.jsonl"].splitlines()[1:]]
    assert len(keys) == len(set(keys))


def test_another_objective_has_a_place_of_its_own(first: Result) -> None:
    before = contents(home(first))
    result = run_method(run(first, objective="delta"), "layermerge", BUDGET)
    assert result.directory == home(first) / "layermerge-delta" / "75pct" / "plain"
    assert only_learned(before, contents(home(first)))
    check(result, first, "layermerge-delta")


# -- the control


def test_the_control_keeps_every_conv_and_is_trained_as_long(first: Result) -> None:
    result = run_control(run(first))
    assert result.directory == home(first) / "original" / "100pct" / "plain"
    report = check(result, first, "original", convs=5)
    assert (report.budget, report.budget_ms, report.epochs) == ("100%", report.original_ms, first.report.epochs)
    assert report.measured_ms == pytest.approx(report.original_ms)
    assert recipe_of(result.directory) == recipe_of(first.directory)


def recipe_of(directory: Path) -> dict[str, Any]:
    """How a network was trained, as its checkpoint says."""
    with safe_open(directory / "checkpoint.safetensors", framework="pt") as file:
        recipe: dict[str, Any] = json.loads(file.metadata()["layermerge"])["identity"]["recipe"]
    return recipe


def steps_of(directory: Path) -> int:
    lines = (directory / "recovery.jsonl").read_text(encoding="utf-8").splitlines()
    return int(json.loads(lines[-1])["step"])


# -- two stages


def test_half_as_long() -> None:
    assert half_of(Recipe(epochs=5, warmup_epochs=1, lr=0.3)) == Recipe(epochs=2.5, warmup_epochs=0.5, lr=0.3)
    assert [half_of(Recipe(steps=steps)) for steps in (9, 2, 1)] == [Recipe(steps=steps) for steps in (4, 1, 1)]
    assert half_of(None) is None


def test_sequential_is_depth_then_layeronly_on_what_was_merged(first: Result) -> None:
    before = tables(first)
    result = run_method(run(first, first_budget="80%"), "sequential", "65%")
    assert only_learned(before, tables(first))
    stage = home(first) / "depth" / "80pct" / "plain-half"
    chosen = document(stage / "solution.json")["candidates"]
    assert all(candidate["kept"] == candidate["layers"] for candidate in chosen)
    assert sum(len(candidate["kept"]) for candidate in chosen) == 5
    merged = read_document(stage / "result.json", Report)
    report = check(result, first, "sequential")
    assert (merged.epochs, report.epochs) == (1, 1)
    assert (steps_of(stage), steps_of(result.directory), steps_of(first.directory)) == (7, 7, 14)
    again = document(result.directory / "solution.json")["candidates"]
    assert all(len(candidate["layers"]) == 1 for candidate in again)
    assert len(again) == merged.convs_after  # one for each conv of the merged network
    assert report.convs_after <= merged.convs_after < 5
    assert report.budget_ms == pytest.approx(0.65 * report.original_ms)
    menu = stage / "then-layeronly" / "plan.json"
    assert document(menu)["method"] == "layeronly"
    assert report.cost.entries == merged.cost.entries + len(document(menu)["candidates"])


def test_a_second_call_of_two_stages_does_nothing(first: Result) -> None:
    result = run_method(run(first, first_budget="80%"), "sequential", "65%")
    before, again = contents(home(first)), run(first, first_budget="80%")
    assert run_method(again, "sequential", "65%").report == result.report
    assert contents(home(first)) == before
    assert isinstance(again.task, tiny_runs.CountingTask)
    assert again.task.scored == 0


# -- channels, and a student


def test_channels_are_narrower_convs(first: Result) -> None:
    result = run_method(run(first), "channels", BUDGET)
    report = check(result, first, "channels", convs=5)
    assert (result.solution, report.predicted_ms, report.epochs) == (None, None, 2)
    assert report.chosen_ms == pytest.approx(report.measured_ms)
    before, again = contents(home(first)), run(first)
    assert run_method(again, "channels", BUDGET).report == report
    assert contents(home(first)) == before


def test_channels_then_depth(first: Result) -> None:
    result = run_method(run(first), "channels+depth", "65%")
    report = check(result, first, "channels+depth")
    assert report.epochs == 1
    # Where the recipe does not say, both stages take the same share.
    stage = home(first) / "channels" / f"{100 * math.sqrt(0.65):.2f}pct" / "plain-half"
    assert document(stage / "result.json")["convs_after"] == 5
    assert document(stage / "result.json")["epochs"] == 1


def test_a_student_is_as_narrow_and_learns_from_the_original_alone(first: Result) -> None:
    result = run_method(run(first), "student", BUDGET)
    check(result, first, "student", convs=5)
    narrow = run_method(run(first), "channels", BUDGET)
    shapes = [{name: tuple(value.shape) for name, value in r.module.state_dict().items()} for r in (result, narrow)]
    assert list(shapes[0].values()) == list(shapes[1].values())
    assert recipe_of(result.directory)["distill"] == {"temperature": 1.0, "weight": 0.5}
    assert recipe_of(narrow.directory)["distill"] is None
    with safe_open(result.directory / "checkpoint.safetensors", framework="pt") as file:
        assert json.loads(file.metadata()["layermerge"])["identity"]["teacher"]


# -- refusals, and comparing


def test_an_unknown_method_is_one_line_with_all_that_are_known(tmp_path: Path) -> None:
    with pytest.raises(PlanError) as caught:
        lm.compress(network(), task(), run_dir=tmp_path, settings=settings(method="magic"))
    assert str(caught.value) == f"unknown method 'magic'; choose one of {', '.join(METHODS)}"
    assert {"layermerge", "depth", "layeronly", "sequential", "channels", "channels+depth", "student"} <= set(METHODS)
    assert contents(tmp_path) == {}


@pytest.mark.parametrize("method", ["layermerge", "depth", "sequential", "channels", "student"])
def test_a_budget_out_of_reach_is_said_by_every_method(first: Result, method: str) -> None:
    before = contents(home(first))
    with pytest.raises(InfeasibleBudget, match="the smallest reachable latency is"):
        run_method(run(first, first_budget="80%"), method, "5%")
    fresh = {name for name in contents(home(first)) if name not in before}
    assert not any("/5pct/" in name for name in fresh)


def test_comparing_notes_what_cannot_be_reached_and_goes_on(first: Result) -> None:
    found = lm.compare(
        network(), task(), methods=["depth", "layeronly"], budgets=["60%"], run_dir=home(first), settings=settings()
    )
    assert [(report.method, report.budget) for report in found.reports] == [("original", "100%"), ("layeronly", "60%")]
    assert [(miss.method, miss.budget) for miss in found.missing] == [("depth", "60%")]
    assert "the smallest reachable latency is" in found.missing[0].reason
    assert [path.relative_to(home(first)).parts for path in found.directories] == [
        ("original", "100pct", "plain"),
        ("layeronly", "60pct", "plain"),
    ]


def test_comparing_refuses_an_unknown_method_before_anything_is_trained(tmp_path: Path) -> None:
    watched = task()
    with pytest.raises(PlanError, match="unknown method 'magic'"):
        lm.compare(network(), watched, methods=["magic"], budgets=["60%"], run_dir=tmp_path, settings=settings())
    assert watched.drawn <= 1
    assert contents(tmp_path) == {}


@pytest.mark.parametrize(("methods", "budgets"), [([], ["60%"]), (["depth"], [])])
def test_comparing_nothing_is_refused(methods: list[str], budgets: list[str], tmp_path: Path) -> None:
    with pytest.raises(PlanError, match="a comparison needs at least one method and one budget"):
        lm.compare(network(), task(), methods=methods, budgets=budgets, run_dir=tmp_path, settings=settings())
    assert contents(tmp_path) == {}
