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
from layermerge.reporting.plots import MethodPoint, plot_accuracy, plot_recovery
from layermerge.runs.results import Report
from layermerge.tuning.recovery import read_recovery

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
    directory: Path, label: str, reports: Sequence[Report], curves: Sequence[Path], notes: Sequence[str] = ()
) -> list[Path]:
    """Writes table and pictures of reports into a directory; `curves` are where each report's recovery is logged."""
    table = directory / f"comparison-{label}.md"
    figures = directory / f"comparison-{label}.csv"
    write_files({table: text_writer(comparison_table(reports, notes)), figures: text_writer(_csv(reports))})
    written = [table, figures]
    if importlib.util.find_spec("matplotlib"):
        named = {f"{report.method} {report.budget}": path for report, path in zip(reports, curves, strict=True)}
        unit = reports[0].score
        recovery = {
            name: [(row.epoch, unit.scale * row.score) for row in read_recovery(at)] for name, at in named.items()
        }
        held_out = "held-out score (%)" if unit.kind == "share" else "held-out score"
        for suffix in (".png", ".svg"):
            written.append(plot_accuracy(_points(reports), directory / f"accuracy-{label}{suffix}", score=unit.title))
            place = directory / f"recovery-{label}{suffix}"
            written.append(plot_recovery(recovery, place, score=held_out, family=_method))
    return written


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
    predicted = "-" if report.predicted_ms is None else f"{report.predicted_ms:.3f}"
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
            **dict(report),
            **dict(report.cost),
            "speed_up": round(report.speed_up, 4),
            "convs": report.convs_after,
        }
        facts |= {"score": report.score.value, "low": report.score.low, "high": report.score.high}
        writer.writerow({column: facts[column] for column in _COLUMNS})
    return text.getvalue()


def _method(name: str) -> str:
    """Of "METHOD BUDGET"."""
    return name.rpartition(" ")[0]


def _points(reports: Sequence[Report]) -> list[MethodPoint]:
    return [
        MethodPoint(
            "original, fine-tuned" if report.method == "original" else report.method,
            report.budget,
            report.measured_ms,
            report.original_ms,
            report.score.scale * report.score.value,
            *_bounds(report),
        )
        for report in reports
    ]


def _bounds(report: Report) -> tuple[float | None, float | None]:
    """The interval of the score, in the unit that is shown."""
    score = report.score
    if score.low is None or score.high is None:
        return None, None
    return score.scale * score.low, score.scale * score.high
