"""Result facts: of each result its verdict, its files, what it took and how to make it again; and which one represents the run.

In: variants of a run directory that led to a result. Out: `ResultFacts`, the control first.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from layermerge.planning.plan import METHODS
from layermerge.reporting.commands import Commands
from layermerge.reporting.fact_records import FileFacts, ResultFacts
from layermerge.reporting.verdict import LARGE_DISTANCE, LARGE_LOSS, relative_loss, verdict_of
from layermerge.runs.directory import VariantDirectory
from layermerge.runs.records import CONTROL, Int8Result, Report
from layermerge.tables.bounds import Objective
from layermerge.tasks.base import Score

Menus = Mapping[str, tuple[str, Objective]]
"""By method: the menu that it chooses from, and what it sums."""
_KINDS = {".onnx": "ONNX", ".pt2": "torch.export", ".safetensors": "weights"}


def result_facts(
    places: Iterable[VariantDirectory], menus: Menus, usual: Objective, commands: Commands
) -> tuple[ResultFacts, ...]:
    """Of all that have a result: the control first, then by method as they are run, and budget."""
    found = []
    for place in places:
        if (report := place.read_result()) is not None:
            menu, objective = menus.get(report.method, (report.method, usual))
            again = commands.again(report, menu, objective)
            files = _files(place, report)
            before, after = (replace(score, right=None) for score in (report.original_score, report.score))
            shown = replace(report, original_score=before, score=after)
            found.append(ResultFacts(shown, verdict_of(report), str(place.path), files, _seconds(place, report), again))
    order = [CONTROL, *METHODS]
    return tuple(
        sorted(found, key=lambda each: (*rank(order, each.report.method), each.report.label, each.report.budget_ms))
    )


def _files(place: VariantDirectory, report: Report) -> tuple[FileFacts, ...]:
    """Each form of the network, with the figures that were measured on this file."""
    int8 = place.read_int8()
    figures: dict[Path, tuple[float, Score]] = {}
    if int8 is not None:
        figures = {place.exported: (int8.float32_ms, int8.float32_score), place.quantised: (int8.int8_ms, int8.score)}
    elif report.runtime != "torch" and not place.float16.is_file():
        figures = {place.exported: (report.measured_ms, report.score)}
    kinds = {place.exported: "ONNX, float32", place.quantised: "ONNX, INT8", place.float16: "ONNX, float16"}
    notes = {place.quantised: int8_words(int8)} if int8 is not None else {}
    found = []
    for path in place.network_files():
        note = "for Python: layermerge.load reads it" if path == place.weights else notes.get(path, "")
        facts = FileFacts(kinds.get(path, _KINDS[path.suffix]), str(path), path.stat().st_size, note=note)
        if path in figures:
            latency_ms, score = figures[path]
            facts = replace(facts, latency_ms=latency_ms, score=replace(score, right=None))
        found.append(facts)
    # What the result's own figures are of comes first: it is what people are shown how to load.
    return tuple(sorted(found, key=lambda file: not math.isclose(file.latency_ms or 0.0, report.measured_ms)))


def int8_words(int8: Int8Result) -> str:
    """What people should know of an INT8 file besides its figures."""
    kept = len(int8.left_in_float32)
    words = f"{int8.scheme} with {int8.instructions}, {kept} of {int8.layers} layers left in float32"
    return words if int8.faster else f"{words}; slower than float32 on this processor"


def _seconds(place: VariantDirectory, report: Report) -> dict[str, float]:
    epochs, calibration = place.read_recovery(), place.read_calibration()
    spent = {
        "latency table": report.cost.latency_seconds,
        "importance table": report.cost.importance_seconds,
        "calibration": calibration.seconds if calibration else 0.0,
        "fine-tuning": epochs[-1].seconds if epochs else 0.0,
    }
    return {name: seconds for name, seconds in spent.items() if seconds > 0}


def headline(results: Sequence[Report], method: str) -> int | None:
    """The method's result at the tightest budget that cost little of the score; where all cost much, the best score."""
    compressed = [place for place, report in enumerate(results) if report.method != CONTROL]
    own = [place for place in compressed if results[place].method == method] or compressed
    if little := [place for place in own if cost_little(results[place])]:
        # Of several fine-tunings for one budget, the held-out data choose: test data only report.
        return min(little, key=lambda place: (results[place].budget_ms, -results[place].held_out))
    return min(own, key=lambda place: relative_loss(results[place]), default=None)


def headline_note(results: Sequence[Report], place: int | None) -> str:
    """Why this result represents the run, where there are several."""
    count = sum(report.method != CONTROL for report in results)
    if place is None or count < 2:
        return ""
    if cost_little(results[place]):
        return f"One of {count} results: the tightest budget whose loss is not a large one."
    return f"One of {count} results. All of them lost much; this one lost least."


def cost_little(report: Report) -> bool:
    """Whether the verdict on the score is not a bad one."""
    return relative_loss(report) <= (LARGE_LOSS if report.original_score.value else LARGE_DISTANCE)


def rank(order: Sequence[str], name: str) -> tuple[int, str]:
    """Known names in their order, others after them by name."""
    return (order.index(name) if name in order else len(order), name)
