"""Runs compared: several runs, each against its own original."""

from __future__ import annotations

from collections.abc import Sequence

from layermerge.reporting.fact_records import RunFacts
from layermerge.reporting.html.chart import Chart, Mark, Series, chart, look_at
from layermerge.reporting.html.hero import icon, tone_words
from layermerge.reporting.html.markup import Child, Markup, el, join
from layermerge.reporting.html.names import methods_of
from layermerge.reporting.html.table import Cell, table
from layermerge.reporting.numbers import NOTHING, known, ms, score_text, spaced, times
from layermerge.runs.records import CONTROL


def runs_compared(runs: Sequence[RunFacts]) -> Markup:
    """The section: a chart where there are points to compare, and a table."""
    series = _series(runs)
    lead = (
        "Each result's latency as a share of its own original, against the change in its score. "
        "A mark that would hide another is a ring around it."
    )
    parts: list[Child] = [el("h2", "The runs compared", id="runs-title")]
    if series:
        drawn = Chart(
            label="Change in score against share of latency, by run and method", x="latency (% of the original)",
            y="change in score (points)", series=series, across=((0.0, "as the original"),), file="runs-compared",
        )  # fmt: skip
        parts += [el("p", lead, class_="lead"), chart(drawn)]
    headings = [
        "run", "convolutions", "runtime", "original latency", "original score", "best result", "its latency",
        "speed-up", "its score", "verdict",
    ]  # fmt: skip
    parts.append(table("Runs", headings, [_row(run) for run in runs]))
    return el("section", parts, id="runs", aria_labelledby="runs-title")


def _series(runs: Sequence[RunFacts]) -> tuple[Series, ...]:
    """One for each method of each run: two methods never look alike."""
    found: list[Series] = []
    for run in runs:
        for method in methods_of(run):
            marks = tuple(
                Mark(
                    100 * report.measured_ms / report.original_ms,
                    100 * (report.score.value - report.original_score.value),
                    f"{run.name}: {method} at {spaced(report.budget)}, {report.label}",
                )
                for report in (result.report for result in run.results)
                if report.method == method != CONTROL and report.score.kind == "share" and known(report.score.value)
            )
            if marks:
                found.append(Series(f"{run.name}: {method}", look_at(len(found)), marks))
    return tuple(found)


def _row(run: RunFacts) -> list[Child | Cell]:
    begin: list[Child | Cell] = [
        run.name, len(run.layers), run.latency_setting.get("runtime") or NOTHING, ms(run.original_ms),
        score_text(run.original_score),
    ]  # fmt: skip
    if run.headline is None:
        return [*begin, *[NOTHING] * 5]
    best = run.results[run.headline]
    report, tone = best.report, best.verdict.tone
    verdict = el("span", join([icon(tone), " ", tone_words(tone)]), class_=f"tone {tone}")
    return [
        *begin, f"{report.method} {spaced(report.budget)}, {report.label}", ms(report.measured_ms), times(report.speed_up),
        score_text(report.score), verdict,
    ]  # fmt: skip
