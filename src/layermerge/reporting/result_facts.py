"""Result facts: of each result its verdict, its files, what it took and how to make it again; and which stands for the run.

In: variants of a run directory that led to a result. Out: `ResultFacts`, the control first.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from layermerge.planning.plan import METHODS
from layermerge.reporting.commands import Commands
from layermerge.reporting.fact_records import FileFacts, ResultFacts
from layermerge.reporting.verdict import LARGE_DISTANCE, LARGE_LOSS, relative_loss, verdict_of
from layermerge.runs.directory import VariantDirectory
from layermerge.runs.records import CONTROL, Report
from layermerge.tables.bounds import Objective

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
            files = tuple(_file(path, report) for path in place.network_files())
            before, after = (replace(score, right=None) for score in (report.original_score, report.score))
            shown = replace(report, original_score=before, score=after)
            found.append(ResultFacts(shown, verdict_of(report), str(place.path), files, _seconds(place, report), again))
    order = [CONTROL, *METHODS]
    return tuple(
        sorted(found, key=lambda each: (*rank(order, each.report.method), each.report.label, each.report.budget_ms))
    )


def _file(path: Path, report: Report) -> FileFacts:
    """The figures of a result are those of the file that its runtime reads."""
    served = path.name == "model.onnx" and report.runtime != "torch"
    kind = _KINDS[path.suffix]
    if path.suffix == ".onnx":
        kind += ", float32" if path.stem == "model" else f", {path.stem.removeprefix('model').strip('.-_')}"
    note = "for Python: layermerge.load reads it" if path.suffix == ".safetensors" else ""
    facts = FileFacts(kind, str(path), path.stat().st_size, note=note)
    return replace(facts, latency_ms=report.measured_ms, score=replace(report.score, right=None)) if served else facts


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
    """Why this result stands for the run, where there are several."""
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
    """Known names in their order, others behind them by name."""
    return (order.index(name) if name in order else len(order), name)
