"""Report pictures: what the report draws, as files for slides and papers.

In: the facts of runs. Out: accuracy against latency, frontiers and recovery as `.png` and `.svg`, as far as a run has them.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from layermerge.reporting.fact_records import MethodFacts, RunFacts
from layermerge.reporting.plots import MethodPoint, RecoveryCurve, picture, plot_accuracy, plot_recovery, styles

_SUFFIXES = (".png", ".svg")


def write_pictures(runs: Sequence[RunFacts], page: Path) -> list[Path]:
    """Draws the runs into files next to the page; of several ways of fine-tuning, the one that most results share."""
    written: list[Path] = []
    for place, run in enumerate(runs):
        stem = page.stem if len(runs) == 1 else f"{page.stem}-run{place + 1}"
        for suffix in _SUFFIXES:
            written += _draw(run, page.parent, stem, suffix)
    return written


def _draw(run: RunFacts, directory: Path, stem: str, suffix: str) -> list[Path]:
    written = []
    reports = [result.report for result in run.results]
    labels = Counter(report.label for report in reports) + Counter(curve.variant.label for curve in run.curves)
    label = labels.most_common(1)[0][0] if labels else ""
    shown = [report for report in reports if report.label == label and math.isfinite(report.score.value)]
    if points := [MethodPoint.of(report) for report in shown]:
        place = directory / f"{stem}-accuracy{suffix}"
        written.append(plot_accuracy(points, place, score=reports[0].score.title))
    if methods := [method for method in run.methods if method.frontier]:
        written.append(_plot_frontiers(methods, run.original_ms or 0.0, directory / f"{stem}-frontier{suffix}"))
    share = run.original_score is None or run.original_score.kind == "share"
    if curves := _curves(run, label, 100.0 if share else 1.0):
        title = "held-out score (%)" if share else "held-out score"
        place = directory / f"{stem}-recovery{suffix}"
        written.append(plot_recovery(curves, place, score=title))
    return written


def _curves(run: RunFacts, label: str, scale: float) -> list[RecoveryCurve]:
    curves = []
    for curve in run.curves:
        pairs = zip(curve.epochs, curve.scores, strict=True)
        points = tuple((epoch, scale * score) for epoch, score in pairs if score is not None)
        if curve.variant.label == label and points:
            curves.append(RecoveryCurve(curve.variant.method, curve.variant.budget, points))
    return curves


def _plot_frontiers(methods: Sequence[MethodFacts], original_ms: float, path: Path) -> Path:
    """A panel for each method: what their points sum differs, so they share no axis."""
    with picture(path, width=max(8.0, 4.0 * len(methods)), height=4.0, panels=len(methods)) as drawn:
        panels = drawn if isinstance(drawn, list) else [drawn]
        for axes, method, (colour, marker, _) in zip(panels, methods, styles(), strict=False):
            inside = [each.point for each in method.frontier if each.point.latency_ms <= original_ms * 1.0001]
            latencies, sums = [point.latency_ms for point in inside], [point.importance for point in inside]
            axes.step(latencies, sums, where="post", color=colour, linewidth=1.6)
            chosen = [each.choice.solution for each in method.choices]
            axes.plot(
                [solution.latency_ms for solution in chosen],
                [solution.importance for solution in chosen],
                color=colour,
                marker=marker,
                linestyle="none",
                markersize=7,
                markeredgecolor="white",
            )
            axes.set_title(method.method, fontsize=10)
            axes.set_xlabel("predicted latency (ms)")
            axes.set_ylabel("importance")
    return path
