"""Facts: the same as the files say when JSON reads them, frontiers as brute force finds them, and partial runs."""

from __future__ import annotations

import itertools
import json
import math
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pydantic import TypeAdapter

from layermerge.errors import ArtifactError
from layermerge.files import plain, write_document
from layermerge.planning.plan import Rejection
from layermerge.reporting.fact_records import MethodFacts, RunFacts
from layermerge.reporting.facts import MOST_POINTS, gather, thinned
from layermerge.reporting.html.snippets import snippets
from layermerge.reporting.reasons import group_reasons, grouped
from layermerge.reporting.result_facts import headline, headline_note
from layermerge.runs.directory import RunDirectory
from layermerge.runs.records import Int8Result
from layermerge.solving.frontier import Frontier
from layermerge.tasks.base import Score
from reporting.report_runs import finished_run, made_up, report


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    """A finished run, to be changed at will."""
    return Path(shutil.copytree(finished_run(), tmp_path / "tiny"))


@pytest.fixture(scope="module")
def facts() -> RunFacts:
    return gather(finished_run())


def read(path: str) -> Any:
    return json.loads((finished_run() / path).read_text(encoding="utf-8"))


def lines(path: str) -> list[Any]:
    return [json.loads(line) for line in (finished_run() / path).read_text(encoding="utf-8").splitlines()]


def rows(path: str) -> dict[str, Any]:
    return {row["key"]: row for row in lines(path)[1:]}


def method_of(facts: RunFacts, name: str) -> MethodFacts:
    return next(method for method in facts.methods if method.method == name)


# -- against the files


def test_layers_and_candidates_are_those_of_the_plan(facts: RunFacts) -> None:
    plan = read("plan.json")
    assert [layer.layer.name for layer in facts.layers] == [layer["name"] for layer in plan["layers"]]
    assert [list(layer.layer.spec.kernel) for layer in facts.layers] == [
        layer["spec"]["kernel"] for layer in plan["layers"]
    ]
    names = [layer["name"] for layer in plan["layers"]]
    assert len(facts.candidates) == len(plan["candidates"])
    for own, candidate in zip(facts.candidates, plan["candidates"], strict=True):
        assert (own.candidate.start, own.candidate.end) == (candidate["start"], candidate["end"])
        assert [names[place] for place in own.places] == candidate["kept"]
        assert (own.candidate.spec is None) == (candidate["spec"] is None)
    assert facts.inputs == ((3, 12, 12),)
    assert facts.method == plan["method"] == "layermerge"


def price(spec: dict[str, Any] | None) -> float:
    """What `tiny_runs.Priced` asks for a conv: a millisecond, and one for every 500 weights."""
    if spec is None:
        return 0.0
    weights: int = spec["in_channels"] * spec["out_channels"] * math.prod(spec["kernel"]) // spec["groups"]
    return 1 + weights / 500


def test_latencies_are_the_prices_of_the_runtime(facts: RunFacts) -> None:
    plan = read("plan.json")
    for own, candidate in zip(facts.candidates, plan["candidates"], strict=True):
        assert own.latency_ms == pytest.approx(price(candidate["spec"]))
    assert [layer.latency_ms for layer in facts.layers] == pytest.approx([price(e["spec"]) for e in plan["layers"]])
    assert facts.original_ms == rows("latency.jsonl")["whole network"]["value"]
    assert facts.fixed_ms == pytest.approx(0.25)
    assert facts.scale == 1.0
    assert facts.latency_setting == lines("latency.jsonl")[0]["provenance"]


def test_results_choices_and_curves_are_those_of_the_files(facts: RunFacts) -> None:
    reports = [result.report for result in facts.results]
    found = {(entry.method, entry.budget, entry.label): entry for entry in reports}
    assert set(found) == {("original", "100%", "plain")} | {
        (method, "85%", "plain") for method in ("layermerge", "depth", "layeronly")
    }
    assert reports[0].method == "original"
    for (method, budget, label), entry in found.items():
        place = f"{method}/{budget.replace('%', 'pct')}/{label}"
        stored = read(f"{place}/result.json")
        assert all(len(stored[name].pop("right")) == 16 for name in ("score", "original_score"))  # 90 bits, in base64
        assert plain(entry) == stored | {name: {**stored[name], "right": None} for name in ("score", "original_score")}
        curve = next(
            curve for curve in facts.curves if (curve.variant.method, curve.variant.budget) == (method, budget)
        )
        logged = lines(f"{place}/recovery.jsonl")
        assert list(curve.scores) == [row["score"] for row in logged]
        assert list(curve.epochs) == [row["epoch"] for row in logged]
    for name in ("layermerge", "depth", "layeronly"):
        (choice,) = method_of(facts, name).choices
        stored = read(f"{name}/85pct/choice.json")
        chosen = [facts.candidates[place].candidate for place in choice.candidates]
        assert [plain(candidate) for candidate in chosen] == stored["solution"]["candidates"]
        assert plain(choice.choice) == stored
    assert facts.original_score is not None
    assert facts.original_score.value == read("original.json")["score"]["value"]
    assert facts.missing == ()
    assert facts.results[facts.headline or 0].report.method == "layermerge"


def test_costs_and_reasons_count_the_rows(facts: RunFacts) -> None:
    scored = rows("importance.jsonl")
    cost = facts.costs[0].cost
    assert facts.costs[0].method == "layermerge"
    assert cost.entries == len(read("plan.json")["candidates"])
    spared = [row for row in scored.values() if row["status"] == "ruled_out"]
    assert cost.ruled_out == len(spared)
    timed = rows("latency.jsonl").values()
    bounded = [row for row in timed if row["status"] == "slower"]
    assert sum(group.count for group in facts.reasons if group.kind == "slow") == len(spared) + len(bounded)
    assert cost.workloads == sum("loop" not in row for row in timed) - 1
    changes = {entry.key: entry.change for entry in facts.candidates if entry.key in scored}
    assert changes == {key: scored[key]["value"] for key in changes}


# -- frontiers


def chains(entries: list[dict[str, Any]], start: int, end: int) -> Iterator[list[dict[str, Any]]]:
    if start == end:
        yield []
    for entry in entries:
        if entry["start"] == start:
            yield from ([entry, *rest] for rest in chains(entries, entry["end"], end))


OFFERS: dict[str, Callable[[dict[str, Any]], bool]] = {
    "layermerge": lambda entry: entry["start"] >= 0,
    "depth": lambda entry: bool(entry["kept"] == entry["layers"]),
    "layeronly": lambda entry: bool(entry["end"] - entry["start"] == 1),
}


@pytest.mark.parametrize("name", OFFERS)
def test_frontiers_are_those_of_brute_force(facts: RunFacts, name: str) -> None:
    plan, scored = read("plan.json"), rows("importance.jsonl")
    keys = [entry.key for entry in facts.candidates]
    menu = []
    for place, (key, entry) in enumerate(zip(keys, plan["candidates"], strict=True)):
        untouched = len(entry["layers"]) == 1 and entry["kept"] == entry["layers"]
        change = 0.0 if untouched else scored[key]["value"]
        if OFFERS[name](entry) and change is not None:
            credit = 1.0 if entry["kept"] or name == "layeronly" else 0.0
            score = math.exp(change) - 1 + credit
            menu.append({**entry, "place": place, "ms": price(entry["spec"]), "score": score})
    best: dict[float, float] = {}
    for chain in chains(menu, 0, len(plan["layers"])):
        at = round(0.25 + sum(entry["ms"] for entry in chain), 9)
        best[at] = max(best.get(at, -1.0), sum(entry["score"] for entry in chain))
    expected: list[tuple[float, float]] = []
    for at, score in sorted(best.items()):
        if not expected or score > expected[-1][1] + 1e-12:
            expected.append((at, score))
    own = method_of(facts, name)
    assert own.points == len(own.frontier) == len(expected)
    assert [each.point.latency_ms for each in own.frontier] == pytest.approx([at for at, _ in expected])
    assert [each.point.importance for each in own.frontier] == pytest.approx([score for _, score in expected])
    for point in own.frontier:
        parts = [facts.candidates[place] for place in point.candidates]
        own_parts = [part.candidate for part in parts]
        assert [part.start for part in own_parts] == [0, *(part.end for part in own_parts)][:-1]
        assert sum(part.latency_ms or 0.0 for part in parts) + 0.25 == pytest.approx(point.point.latency_ms)


def test_thinning_keeps_what_the_slider_can_ask_for() -> None:
    generator = np.random.default_rng(1)
    latency, importance = np.sort(generator.uniform(3, 20, 4000)), np.arange(4000.0)
    frontier = Frontier(20.0, 0.0, 1, None, latency, importance, lambda _: [], {})
    wanted = [7.123, 11.9, 2.0]
    places = thinned(frontier, wanted)
    assert places == sorted(set(places))
    assert {0, 3999} <= set(places)
    assert len(places) <= MOST_POINTS
    for at in [*wanted[:2], *(0.2 * share for share in range(20, 101))]:
        assert max(place for place in range(4000) if latency[place] <= at + 1e-12) in places
    few = Frontier(20.0, 0.0, 1, None, latency[:50], importance[:50], lambda _: [], {})
    assert thinned(few, []) == list(range(50))


def test_another_objective_has_a_frontier_of_its_own(run_dir: Path) -> None:
    shutil.copytree(run_dir / "layermerge", run_dir / "layermerge-delta")
    path = run_dir / "layermerge-delta" / "85pct" / "choice.json"
    choice = json.loads(path.read_text()) | {"method": "layermerge-delta", "objective": "delta"}
    path.write_text(json.dumps(choice), encoding="utf-8")
    own = method_of(gather(run_dir), "layermerge-delta")
    assert own.objective == "delta"
    assert own.frontier[-1].point.importance >= 0.0
    assert max(each.point.importance for each in own.frontier) < 1.0


# -- runs that are not finished


def keep_only(run_dir: Path, *names: str) -> None:
    for path in run_dir.iterdir():
        if path.name not in names:
            shutil.rmtree(path) if path.is_dir() else path.unlink()


def test_a_plan_alone(run_dir: Path) -> None:
    keep_only(run_dir, "plan.json")
    facts = gather(run_dir)
    assert (facts.original_ms, facts.headline, facts.results, facts.costs) == (None, None, (), ())
    assert [method.frontier for method in facts.methods] == [()]
    for word in ("latency table", "importance table", "no result"):
        assert any(word in line for line in facts.missing)


def test_a_latency_table_that_is_being_written(run_dir: Path) -> None:
    keep_only(run_dir, "plan.json", "latency.jsonl")
    table = run_dir / "latency.jsonl"
    table.write_text("".join(table.read_text().splitlines(keepends=True)[:4]) + '{"key": "to', encoding="utf-8")
    facts = gather(run_dir)
    assert facts.original_ms == pytest.approx(10.29)
    assert facts.fixed_ms is None
    assert any(layer.latency_ms for layer in facts.layers)
    assert gather(finished_run()).original_ms == facts.original_ms


def test_an_importance_table_that_is_being_written(run_dir: Path) -> None:
    keep_only(run_dir, "plan.json", "latency.jsonl", "importance.jsonl")
    table = run_dir / "importance.jsonl"
    kept = table.read_text().splitlines(keepends=True)[:-2]
    table.write_text("".join(kept), encoding="utf-8")
    facts = gather(run_dir)
    assert method_of(facts, "layermerge").frontier[-1].point.importance == pytest.approx(5.0)
    assert any("2 of" in line and "left out" in line for line in facts.missing)


def test_fine_tuning_without_a_result_is_said(run_dir: Path) -> None:
    (run_dir / "depth" / "85pct" / "plain" / "result.json").unlink()
    facts = gather(run_dir)
    assert any(line.startswith("depth at 85% (plain): fine-tuning") for line in facts.missing)
    assert any(curve.variant.method == "depth" for curve in facts.curves)


def test_scores_that_are_not_finite_are_none(run_dir: Path) -> None:
    path = run_dir / "depth" / "85pct" / "plain" / "recovery.jsonl"
    logged = [json.loads(line) | {"score": math.nan} for line in path.read_text().splitlines()]
    path.write_text("".join(json.dumps(row) + "\n" for row in logged), encoding="utf-8")
    curve = next(curve for curve in gather(run_dir).curves if curve.variant.method == "depth")
    assert set(curve.scores) == {None}


def test_choices_of_another_plan_are_said(run_dir: Path) -> None:
    plan = json.loads((run_dir / "plan.json").read_text())
    plan["method"] = "depth"
    plan["candidates"] = [entry for entry in plan["candidates"] if entry["kept"] == entry["layers"]]
    (run_dir / "plan.json").write_text(json.dumps(plan), encoding="utf-8")
    facts = gather(run_dir)
    assert method_of(facts, "layeronly").note is not None
    assert method_of(facts, "depth").frontier
    assert any("does not hold any more" in line for line in facts.missing)


@pytest.mark.parametrize(
    "name",
    [
        "plan.json",
        "latency.jsonl",
        "importance.jsonl",
        "original.json",
        "layermerge/85pct/choice.json",
        "layermerge/85pct/plain/variant.json",
        "layermerge/85pct/plain/result.json",
        "layermerge/85pct/plain/recovery.jsonl",
    ],
)
def test_torn_files_are_one_line(run_dir: Path, name: str) -> None:
    (run_dir / name).write_text('{"schema_version": 2, "torn\n', encoding="utf-8")
    with pytest.raises(ArtifactError, match=name.rpartition("/")[2]) as raised:
        gather(run_dir)
    assert "\n" not in str(raised.value)


def test_a_directory_that_is_no_run(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match=r"is '.*' a run directory"):
        gather(tmp_path)


def test_tables_of_another_network_are_refused(run_dir: Path) -> None:
    path = run_dir / "importance.jsonl"
    first, *rest = path.read_text().splitlines(keepends=True)
    document = json.loads(first)
    document["provenance"]["network"] = "another"
    path.write_text(json.dumps(document) + "\n" + "".join(rest), encoding="utf-8")
    with pytest.raises(ArtifactError, match="another network"):
        gather(run_dir)


# -- the headline and the reasons


def test_the_headline_is_the_tightest_budget_that_cost_little() -> None:
    reports = [
        report("original", "100%", 20.0, 0.91),
        report(budget="80%", budget_ms=16.0, value=0.9),
        report(budget="60%", budget_ms=12.0, value=0.89, held_out=0.5),
        report(budget="60%", budget_ms=12.0, value=0.88, held_out=0.6, label="distilled"),
        report(budget="40%", budget_ms=8.0, value=0.6),
        report("depth", "40%", budget_ms=8.0, value=0.9),
    ]
    assert headline(reports, "layermerge") == 3
    assert headline(reports[4:5], "layermerge") == 0
    assert headline(reports[5:], "layermerge") == 0
    assert headline(reports[:1], "layermerge") is None


def test_the_note_on_the_headline_is_true() -> None:
    """It once said of a loss of 40 points that the score was mostly kept."""
    good, bad, worse = report(value=0.89), report(value=0.5), report(budget="40%", budget_ms=8.0, value=0.4)
    assert headline_note([good], 0) == headline_note([], None) == ""
    assert "not a large one" in headline_note([good, worse], 0)
    assert headline_note([bad, worse], 0) == "One of 2 results. All of them lost much; this one lost least."
    far = Score("distance", 0.5, 9, kind="loss")
    distant = [report(score=far, original_score=replace(far, value=0.0)) for _ in range(2)]
    assert "lost much" in headline_note(distant, 0)


def test_of_a_loss_less_is_better() -> None:
    def losing(value: float, budget_ms: float) -> Any:
        score = Score("loss", value, 9, kind="loss")
        return report(budget_ms=budget_ms, score=score, original_score=replace(score, value=0.1))

    assert headline([losing(0.2, 8.0), losing(0.101, 12.0)], "layermerge") == 1


def test_reasons_that_differ_in_names_are_counted_together() -> None:
    found = grouped(
        [
            ("failed", "the score is nan", "a"),
            *[("rule", f"'{name}' is pinned", name) for name in "bcdef"],
            ("rule", "a pooling lies between", "g to h"),
            *[("slow", f"unmerged it takes {at:.4f} ms, merged 2.0 ms", "i") for at in (1.0, 1.5)],
        ]
    )
    assert [(group.kind, group.reason, group.count) for group in found] == [
        ("rule", "… is pinned", 5),
        ("rule", "a pooling lies between", 1),
        ("slow", "unmerged it takes … ms, merged … ms", 2),
        ("failed", "the score is nan", 1),
    ]
    assert found[0].examples == ("b", "c", "d")


def test_rejections_of_a_plan_that_lists_them_are_counted() -> None:
    plan = RunDirectory(finished_run()).read_plan().plan
    listed = tuple(Rejection(0, end, f"'{end}' is pinned") for end in (2, 3))
    (group,) = group_reasons(replace(plan, rejections=listed), None, None)
    names = [layer.name for layer in plan.layers]
    assert (group.kind, group.count) == ("rule", 2)
    assert group.examples == (f"{names[0]} to {names[1]}", f"{names[0]} to {names[2]}")


def test_facts_survive_json() -> None:
    for facts in (gather(finished_run()), made_up()):
        adapter = TypeAdapter(RunFacts)
        assert adapter.validate_json(adapter.dump_json(facts)) == facts
        points = [each.point for method in facts.methods for each in method.frontier]
        numbers = itertools.chain.from_iterable((point.latency_ms, point.importance) for point in points)
        assert all(math.isfinite(number) for number in numbers)


# -- results, files, budgets


def test_files_times_and_environment_of_a_result(facts: RunFacts) -> None:
    best = facts.results[facts.headline or 0]
    assert {Path(file.path).name: file.bytes for file in best.files} == {
        path.name: path.stat().st_size for path in (finished_run() / "layermerge/85pct/plain").glob("model.*")
    }
    served = next(file for file in best.files if file.latency_ms is not None)
    assert (served.kind, served.latency_ms, served.score) == (
        "ONNX, float32",
        best.report.measured_ms,
        best.report.score,
    )
    logged = lines("layermerge/85pct/plain/recovery.jsonl")
    assert best.seconds["fine-tuning"] == logged[-1]["seconds"]
    made = best.report.environment
    assert made is not None
    assert made.versions["torch"] == torch.__version__
    assert made.processor
    assert [(block.start, block.end) for block in facts.blocks] == [(1, 3)]


def test_stops_are_the_frontier_budget_by_budget(facts: RunFacts) -> None:
    own = method_of(facts, "layermerge")
    assert facts.original_ms is not None
    assert [stop.budget_ms for stop in own.stops] == sorted(stop.budget_ms for stop in own.stops)
    first = math.ceil(100 * own.frontier[0].point.latency_ms / facts.original_ms)
    assert {stop.budget for stop in own.stops} == {f"{share}%" for share in range(first, 101)}
    for stop in own.stops:
        if stop.budget == "85%":
            assert stop.measured
            assert stop.result is not None
            assert stop.latency_ms == facts.results[stop.result].report.measured_ms
            continue
        within = [each for each in own.frontier if each.point.latency_ms <= stop.budget_ms * (1 + 1e-12)]
        assert (stop.latency_ms, stop.candidates) == (within[-1].point.latency_ms, within[-1].candidates)
        parts = [facts.candidates[place].candidate for place in stop.candidates]
        kept = sum(len(part.kept) for part in parts)
        assert (stop.left, stop.removed) == (sum(part.spec is not None for part in parts), len(facts.layers) - kept)
        assert stop.merged == kept - stop.left
    untouched = own.stops[-1]
    assert (untouched.left, untouched.removed, untouched.merged) == (5, 0, 0)
    assert untouched.went == "Nothing was removed or merged."


def test_what_candidates_save(facts: RunFacts) -> None:
    plan = read("plan.json")
    for own, candidate in zip(facts.candidates, plan["candidates"], strict=True):
        alone = sum(price(plan["layers"][place]["spec"]) for place in range(candidate["start"], candidate["end"]))
        assert own.saved_ms == pytest.approx(alone - price(candidate["spec"]))


def test_the_snippet_for_onnxruntime_runs(facts: RunFacts) -> None:
    best = facts.results[facts.headline or 0]
    texts = dict(snippets(facts, best))
    names: dict[str, Any] = {}
    exec(texts["onnxruntime"], names)
    assert names["outputs"][0].shape == (1, 3)
    assert "mean (0.45, 0.5, 0.55)" in texts["onnxruntime"]
    assert f"lm.load({best.directory!r}, model)" in texts["PyTorch"]


def test_an_int8_file_stands_beside_float32_with_its_own_figures(run_dir: Path) -> None:
    place = next(place for place in RunDirectory(run_dir).variants() if place.read_result())
    own = place.read_result()
    assert own is not None
    accuracy = Score("accuracy", 0.5, 10)
    figures = Int8Result(
        stamp="",
        runtime="onnxruntime",
        scheme="U8S8",
        instructions="avx512_vnni",
        layers=5,
        left_in_float32=("stem",),
        equalised=0,
        biases_corrected=True,
        loss=0.001,
        plain_loss=0.002,
        float32_ms=own.measured_ms,
        int8_ms=own.measured_ms + 3.0,
        float32_score=own.score,
        score=accuracy,
    )
    write_document(place.int8, figures)
    place.exported.touch()
    place.quantised.write_bytes(b"1234")
    found = next(each for each in gather(run_dir).results if each.directory == str(place.path))
    files = {file.kind: file for file in found.files}
    int8, float32 = files["ONNX, INT8"], files["ONNX, float32"]
    assert (int8.bytes, int8.latency_ms, int8.score) == (4, own.measured_ms + 3.0, accuracy)
    assert found.files[0] == float32, "what was measured for the budget comes first"
    assert int8.note == "U8S8 with avx512_vnni, 1 of 5 layers left in float32; slower than float32 on this processor"
