"""Comparison: what several methods reached, as one table, one file of figures and two pictures.

In: reports of runs that share their tables and their fine-tuning. Out: `comparison-LABEL.md`, `.csv`, and, where matplotlib
is installed, `accuracy-LABEL` and `recovery-LABEL` as `.png` and `.svg`.
"""

from __future__ import annotations

import csv
import importlib.util
import io
from collections.abc import Sequence
from pathlib import Path

from layermerge.files import text_writer, write_files
from layermerge.reporting.plots import MethodPoint, RecoveryCurve, plot_accuracy, plot_recovery
from layermerge.runs.directory import RunDirectory
from layermerge.runs.records import Report

_COLUMNS = (
    "method",
    "budget",
    "budget_ms",
    "predicted_ms",
    "measured_ms",
    "speed_up",
    "score",
    "low",
    "high",
    "convs",
    "entries",
    "scored",
    "ruled_out",
    "failed",
    "workloads",
    "latency_seconds",
    "importance_seconds",
)


def write_comparison(
    directory: RunDirectory,
    reports: Sequence[Report],
    notes: Sequence[str] = (),
    *,
    out: RunDirectory | None = None,
    label: str | None = None,
) -> list[Path]:
    """Writes table and pictures of a run's reports into its directory, or `out`, under the label of the first, or `label`."""
    label, unit, place = label or reports[0].label, reports[0].score, out or directory
    table, figures = (place.comparison(label, suffix) for suffix in (".md", ".csv"))
    write_files({table: text_writer(comparison_table(reports, notes)), figures: text_writer(_csv(reports))})
    written = [table, figures]
    if importlib.util.find_spec("matplotlib"):
        points, curves = (
            [MethodPoint.of(report) for report in reports],
            [_curve(directory, report) for report in reports],
        )
        held_out = "held-out score (%)" if unit.kind == "share" else "held-out score"
        for suffix in (".png", ".svg"):
            written.append(plot_accuracy(points, place.picture("accuracy", label, suffix), score=unit.title))
            if trained := [curve for curve in curves if curve.points]:
                written.append(plot_recovery(trained, place.picture("recovery", label, suffix), score=held_out))
    return written


def _curve(directory: RunDirectory, report: Report) -> RecoveryCurve:
    epochs = directory.variant(report.method, report.budget, report.label).read_recovery()
    points = tuple((epoch.epoch, report.score.scale * epoch.score) for epoch in epochs)
    return RecoveryCurve(report.method, report.budget, points)


def comparison_table(reports: Sequence[Report], notes: Sequence[str] = ()) -> str:
    """Markdown: accuracy and measured latency of every method, then what its tables cost."""
    first = reports[0]
    original = first.original_score
    lines = [
        f"Original: {first.original_ms:.3f} ms on {first.runtime} ({first.threads} thread(s), batch {first.batch_size}), "
        f"{original}; {first.convs_before} convs.",
        "",
        f"| method | budget | measured ms | predicted | speed-up | {first.score.title} | 95 % interval | convs |",
        "|---|---|---|---|---|---|---|---|",
    ]
    lines += [_line(report) for report in reports]
    lines += ["", "| method | entries | scored | ruled out | failed | workloads timed | latency s | importance s |"]
    lines += ["|---|---|---|---|---|---|---|---|"]
    costs = {report.method: report.cost for report in reports if report.cost.entries}
    lines += [
        f"| {method} | {cost.entries} | {cost.scored} | {cost.ruled_out} | {cost.failed} | {cost.workloads} "
        f"| {cost.latency_seconds:.0f} | {cost.importance_seconds:.0f} |"
        for method, cost in costs.items()
    ]
    return "\n".join([*lines, *(["", *(f"- {note}" for note in notes)] if notes else []), ""])


def _line(report: Report) -> str:
    predicted = report.prediction or "-"
    score, digits = report.score, 2 if report.score.kind == "share" else 5
    low, high = _bounds(report)
    interval = "-" if low is None or high is None else f"{low:.{digits}f} - {high:.{digits}f}"
    return (
        f"| {report.method} | {report.budget} | {report.measured_ms:.3f} | {predicted} | {report.speed_up:.2f}x "
        f"| {score.scale * score.value:.{digits}f} | {interval} | {report.convs_after} |"
    )


def _csv(reports: Sequence[Report]) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, _COLUMNS, lineterminator="\n")
    writer.writeheader()
    for report in reports:
        facts = {
            **vars(report),
            **vars(report.cost),
            "speed_up": round(report.speed_up, 4),
            "convs": report.convs_after,
        }
        facts |= {"score": report.score.value, "low": report.score.low, "high": report.score.high}
        writer.writerow({column: facts[column] for column in _COLUMNS})
    return text.getvalue()


def _bounds(report: Report) -> tuple[float | None, float | None]:
    """The interval of the score, in the unit that is shown."""
    score = report.score
    if score.low is None or score.high is None:
        return None, None
    return score.scale * score.low, score.scale * score.high
