"""Runs to report on: a tiny one that really ran, and facts made by hand, as large and as nasty as wanted."""

from __future__ import annotations

import atexit
import shutil
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import tiny_runs
from layermerge.conv import ConvSpec
from layermerge.planning.candidate import Candidate
from layermerge.reporting.candidate_words import candidate_words
from layermerge.reporting.fact_records import (
    CandidateFacts,
    ChoiceFacts,
    CostFacts,
    CurveFacts,
    EstimateFacts,
    FileFacts,
    LayerFacts,
    MethodFacts,
    PointFacts,
    ReasonFacts,
    ResultFacts,
    RunFacts,
)
from layermerge.reporting.stop_words import describe
from layermerge.reporting.stops import stops_of
from layermerge.reporting.verdict import verdict_of
from layermerge.runs.compare import compare
from layermerge.runs.plan_file import BlockSpan
from layermerge.runs.records import Choice, Environment, Report, Variant
from layermerge.solving.frontier import Point, Round, Solution
from layermerge.tables.cost import TableCost
from layermerge.tasks.base import Score
from layermerge.tracing.structure import Layer

ORIGINAL = Score(name="accuracy", value=0.9, count=1000, low=0.88, high=0.917)
NASTY = "</script><img src=x onerror=alert(1)>"


@cache
def finished_run() -> Path:
    """The directory of a comparison of three methods, made once in a process; copy it before changing it."""
    made = tempfile.mkdtemp(prefix="report-run-")
    atexit.register(shutil.rmtree, made, ignore_errors=True)
    directory = Path(made) / "tiny"
    with tiny_runs.priced_runtimes():
        compare(
            tiny_runs.network(),
            tiny_runs.task(),
            methods=["layermerge", "depth", "layeronly"],
            budgets=["85%"],
            run_dir=directory,
            settings=tiny_runs.settings(),
        )
    return directory


def report(
    method: str = "layermerge", budget: str = "60%", measured_ms: float = 11.5, value: float = 0.89, **more: Any
) -> Report:
    facts: dict[str, Any] = {
        "stamp": "s",
        "method": method,
        "budget": budget,
        "label": "plain",
        "runtime": "onnxruntime",
        "threads": 2,
        "batch_size": 4,
        "original_ms": 20.0,
        "budget_ms": 12.0,
        "predicted_ms": 11.0,
        "measured_ms": measured_ms,
        "original_score": ORIGINAL,
        "score": Score(name="accuracy", value=value, count=1000, low=value - 0.02, high=value + 0.01),
        "held_out": 0.5,
        "budget_kept": True,
        "convs_before": 36,
        "convs_after": 20,
        "epochs": 3.0,
        "environment": Environment("2026-11-18T08:00:00+00:00", "Some CPU", 2, "Linux", {"torch": "2.13"}, "abc123"),
    }
    return Report(**facts | more)


def result(given: Report) -> ResultFacts:
    """A result with the files that a run leaves."""
    place = f"runs/made-up/{given.method}/{given.budget.replace('%', 'pct')}/{given.label}"
    files = (
        FileFacts("ONNX, float32", f"{place}/model.onnx", 1_063_000, given.measured_ms, given.score),
        FileFacts("weights", f"{place}/model.safetensors", 1_020_000, note="for Python: layermerge.load reads it"),
    )
    command = f"layermerge compress runs/made-up/recipe.yaml --run-dir runs/made-up-again --budget {given.budget}"
    return ResultFacts(given, verdict_of(given), place, files, {"latency table": 8.0, "fine-tuning": 95.0}, command)


def made_up(layers: int = 12, *, name: str = "made-up", layer: str = "block{}.conv", **more: Any) -> RunFacts:
    """A run of so many layers: `layermerge` drops or merges two layers after the other, `layeronly` drops them.

    With `estimated`, scores are estimated for every point of the frontier.
    """
    names = [layer.format(place) for place in range(layers)]
    singles = [_candidate(names, place, place + 1, (place,)) for place in range(layers)]
    gone = [_candidate(names, place, place + 1, ()) for place in range(layers)]
    pairs = [_candidate(names, place, place + 2, (place, place + 1)) for place in range(layers - 1)]
    candidates = (*singles, *gone, *pairs)
    reports = [report("original", "100%", 20.0, 0.91, budget_ms=20.0), report(), report("layeronly", value=0.8)]
    results = more.pop("results", tuple(map(result, reports)))
    estimated = more.pop("estimated", False)
    methods = tuple(
        _method(method, layers, candidates, results, estimated=estimated) for method in ("layermerge", "layeronly")
    )
    facts: dict[str, Any] = {
        "name": name,
        "directory": f"runs/{name}",
        "method": "layermerge",
        "inputs": ((3, 32, 32),),
        "layers": tuple(_layer(place, layer.format(place)) for place in range(layers)),
        "candidates": candidates,
        "original_ms": 20.0,
        "fixed_ms": 2.0,
        "scale": 1.0,
        "original_score": ORIGINAL,
        "latency_setting": {"runtime": "onnxruntime", "version": "1.2", "threads": 1, "batch": 1},
        "importance_setting": {"recipe.steps": 10},
        "methods": methods,
        "results": results,
        "headline": 1 if len(results) > 1 else None,
        "headline_note": "",
        "model": "timm:resnet18",
        "weights": None,
        "license": None,
        "blocks": tuple(BlockSpan(f"block{place}", place, place + 2) for place in range(1, layers - 1, 3)),
        "curves": tuple(_curve(method) for method in ("layermerge", "layeronly")),
        "costs": (CostFacts(method="layermerge", cost=TableCost(entries=9, scored=5, importance_seconds=300.0)),),
        "reasons": (
            ReasonFacts(kind="rule", reason="a pooling lies between", count=7, examples=("a to b",), plain="Pooling."),
            ReasonFacts(kind="slow", reason="unmerged it is faster", count=3, examples=("c to d",)),
        ),
        "missing": (),
    }
    return RunFacts(**facts | more)


def _layer(place: int, name: str) -> LayerFacts:
    size = 32 >> (place // 40)
    kernel, stride = ((3, 3), (1, 1), (5, 5), (3, 1))[place % 4], (2, 2) if place and place % 40 == 0 else (1, 1)
    spec = ConvSpec(16, 16, kernel, stride, groups=16 if place % 3 == 2 else 1)
    layer = Layer(name, spec, (16, size, size), (16, size, size), 1.0, name)
    return LayerFacts(layer, removable=place > 0, fixed=False, latency_ms=0.1 + 0.02 * (place % 7))


def _candidate(names: list[str], start: int, end: int, kept: tuple[int, ...]) -> CandidateFacts:
    size = 1 + 2 * len(kept)
    spec = ConvSpec(16, 16, (size, size)) if kept else None
    candidate = Candidate(start, end, tuple(names[start:end]), tuple(names[place] for place in kept), spec)
    alone = sum(0.1 + 0.02 * (place % 7) for place in range(start, end))
    taken = alone * (1.0 if len(kept) == 1 else 0.7 if kept else 0.0)
    words = candidate_words(candidate)
    change = -0.01 * (end - len(kept)) if end - start > 1 or not kept else 0.0
    return CandidateFacts(candidate.key, candidate, kept, words, taken, alone - taken, change)


def _method(
    method: str,
    layers: int,
    candidates: tuple[CandidateFacts, ...],
    results: tuple[ResultFacts, ...],
    *,
    estimated: bool,
) -> MethodFacts:
    """Point by point, two layers fewer are treated; the last point is the untouched network."""
    points = []
    for treated in range(layers - layers % 2, -1, -2):
        if method == "layermerge":
            front = [2 * layers + place for place in range(0, treated, 2)]
        else:
            front = [layers + place for place in range(treated)]
        latency_ms = 20.0 - 12.0 * treated / layers
        chain = (*front, *range(treated, layers))
        expected = 0.9 - 0.1 * treated / layers
        estimate = EstimateFacts(expected, expected - 0.02, expected + 0.01) if estimated else None
        points.append(PointFacts(Point(latency_ms, float(layers - treated / 3)), chain, estimate))
    rounds = (Round(12.0, 12.7), Round(11.0, 11.6))
    solution = Solution((), 11.0, points[1].point.importance, 11.6, 12.0, rounds)
    choice = ChoiceFacts(Choice("s", method, method, "exp", "60%", 20.0, solution, TableCost()), points[1].candidates)

    def described(places: tuple[int, ...]) -> Any:
        return describe([(candidates[place].candidate, candidates[place].latency_ms or 0.0) for place in places], 2.0)

    def command(budget: str) -> str:
        return f"layermerge compress --run-dir runs/made-up --budget {budget}"

    frontier = tuple(points)
    return MethodFacts(
        method=method,
        objective="exp",
        entries=9,
        points=len(points),
        frontier=frontier,
        choices=(choice,),
        stops=stops_of(frontier, (choice,), results, 20.0, described, command),
    )


def _curve(method: str) -> CurveFacts:
    scores = (0.2, 0.6, None, 0.88)
    variant = Variant(method=method, budget="60%", label="plain", budget_ms=12.0)
    return CurveFacts(variant, epochs=(0.0, 1.0, 2.0, 3.0), scores=scores, seconds=95.0)
