"""Explore: the score against the latency, every budget, and the command for each."""

from __future__ import annotations

from collections.abc import Iterable

from layermerge.reporting.change_words import ChangeWords, change_words
from layermerge.reporting.fact_records import EstimateFacts, MethodFacts, ResultFacts, RunFacts, StopFacts
from layermerge.reporting.html.chart import Band, Chart, Mark, Series, chart
from layermerge.reporting.html.hero import code, icon, tone_words
from layermerge.reporting.html.markup import Child, Markup, el, folded, join
from layermerge.reporting.html.names import Ids, look_of, methods_of
from layermerge.reporting.html.table import Cell, table
from layermerge.reporting.numbers import (
    NOTHING,
    figure,
    interval_text,
    known,
    ms,
    score_text,
    score_title,
    spaced,
    times,
)
from layermerge.runs.records import CONTROL
from layermerge.tasks.base import Score

_FEW_MARKS = 9


def explore(facts: RunFacts, ids: Ids) -> Markup:
    """The section that the slider drives; without scripts, its charts and tables."""
    score = facts.original_score or next((result.report.score for result in facts.results), None)
    title = f"{score.name.capitalize()} against latency, at every budget" if score else "Every budget"
    parts: list[Child] = [el("h2", title, id=ids("explore-title"))]
    offered = any(method.stops for method in facts.methods)
    parts += [_controls(facts, ids), _now(facts, ids)] if offered else []
    if score and (drawn := _chart(facts, score)):
        parts += [el("p", _lead(facts), class_="lead"), el("div", drawn, id=ids("main-chart"))]
    if offered:
        parts += [_solver_words(facts), _all_budgets(facts, ids)]
    else:
        parts.append(el("p", "No budget can be shown before both tables are measured.", class_="lead"))
    if facts.results:
        parts.append(folded("All results", _results(facts, facts.results)))
    return el("section", parts, id=ids("explore"), aria_labelledby=ids("explore-title"))


def opening(facts: RunFacts) -> tuple[int, int]:
    """Which method, and which of its stops, the page opens with: those of the headline, else the middle of the first."""
    best = facts.results[facts.headline].report if facts.headline is not None else None
    for place, method in enumerate(facts.methods):
        for number, stop in enumerate(method.stops):
            if best and method.method == best.method and stop.budget == best.budget:
                return place, number
    first = next((place for place, method in enumerate(facts.methods) if method.stops), 0)
    return first, 3 * len(facts.methods[first].stops) // 4 if facts.methods else 0


# -- the chart


def _lead(facts: RunFacts) -> str:
    measured = [result for result in facts.results if result.report.method != CONTROL]
    told = (
        "Solid marks were measured on exported files; bars are 95 % intervals. "
        if measured
        else "Nothing was measured yet. "
    )
    if any(stop.estimated for method in facts.methods for stop in method.stops):
        return told + "The dashed band is an estimate for budgets that were not tried, before any fine-tuning."
    return told + "No scores were estimated for other budgets; the slider shows what each would keep, and its command."


def _chart(facts: RunFacts, score: Score) -> Markup | None:
    band = _band(facts)
    labels = dict.fromkeys(result.report.label for result in facts.results)
    series = [*_original(facts), *_measured(facts, several=len(labels) > 1)]
    if not series or (len(series) == 1 and not band and not any(method.stops for method in facts.methods)):
        return None
    control = [result.report for result in facts.results if result.report.method == CONTROL]
    across = [
        (score.scale * report.score.value, "original, fine-tuned as long")
        for report in control[:1]
        if known(report.score.value)
    ]
    return chart(
        Chart(
            label=f"{score.name} against latency: measured results{', and an estimated band' if band else ''}",
            x="latency (ms)",
            y=score_title(score),
            series=tuple(series),
            band=band,
            across=tuple(across),
            speeds=facts.original_ms,
            live=True,
            file=f"{facts.name}-score-latency",
        )
    )


def _original(facts: RunFacts) -> Iterable[Series]:
    score = facts.original_score
    if score and facts.original_ms and known(score.value):
        tip = f"original: {score_text(score)}, {ms(facts.original_ms)}"
        yield Series("original", "control", (_mark(facts.original_ms, score, tip, "original"),))


def _measured(facts: RunFacts, *, several: bool) -> Iterable[Series]:
    """One series per method; where there are several ways of fine-tuning, one for each of them."""
    shown = [
        result.report
        for result in facts.results
        if result.report.method != CONTROL and known(result.report.score.value)
    ]
    groups = dict.fromkeys((report.method, report.label if several else "") for report in shown)
    for place, (method, label) in enumerate(sorted(groups, key=lambda group: methods_of(facts).index(group[0]))):
        own = [report for report in shown if report.method == method and (not several or report.label == label)]
        marks = tuple(
            _mark(
                report.measured_ms,
                report.score,
                f"{method} at {spaced(report.budget)}, {report.label}: {score_text(report.score)}, {ms(report.measured_ms)}",
                spaced(report.budget) if len(shown) < _FEW_MARKS else "",
            )
            for report in sorted(own, key=lambda report: report.measured_ms)
        )
        look = f"s{place % 6}" if several else look_of(facts, method)
        yield Series(f"{method}, {label}, measured" if several else f"{method}, measured", look, marks, line=True)


def _mark(at: float, score: Score, tip: str, text: str) -> Mark:
    low, high = (
        None if bound is None or not known(bound) else score.scale * bound for bound in (score.low, score.high)
    )
    return Mark(at, score.scale * score.value, tip, low, high, text)


def _band(facts: RunFacts) -> Band | None:
    """What the first method that has estimates is expected to score, budget by budget."""
    for method in facts.methods:
        scale = facts.original_score.scale if facts.original_score else 1.0
        points = {stop.latency_ms: _band_point(stop, stop.estimated, scale) for stop in method.stops if stop.estimated}
        if len(points) > 1:
            return Band(f"{method.method}, estimated: not measured", tuple(sorted(points.values())))
    return None


def _band_point(stop: StopFacts, estimate: EstimateFacts, scale: float) -> tuple[float, float, float, float]:
    return stop.latency_ms, scale * estimate.value, scale * estimate.low, scale * estimate.high


# -- the slider and what follows it


def _controls(facts: RunFacts, ids: Ids) -> Markup:
    method, stop = opening(facts)
    offered = [(place, each) for place, each in enumerate(facts.methods) if each.stops]
    options = [el("option", each.method, value=place, selected=place == method) for place, each in offered]
    choice = el("label", "Method ", el("select", options, id=ids("method"))) if len(offered) > 1 else None
    stops = facts.methods[method].stops
    slider = el("input", type="range", id=ids("budget"), min=0, max=len(stops) - 1, step=1, value=stop)
    text = el("output", _budget_text(stops[stop]), id=ids("budget-text"), for_=ids("budget"))
    return el(
        "div", choice, el("label", "Budget", for_=ids("budget")), slider, text, class_="slide script", hidden=True
    )


def _budget_text(stop: StopFacts) -> str:
    return f"{spaced(stop.budget)} · {ms(stop.budget_ms)}"


def _now(facts: RunFacts, ids: Ids) -> Markup:
    """The figures at the chosen budget; a script fills in those of another from the table of all."""
    method, place = opening(facts)
    stop = facts.methods[method].stops[place]
    cells = zip(_HEADINGS, _cells(facts, stop), strict=True)
    figures = [
        el("div", el("dt", name), el("dd", cell, data_part=f"now-{at}")) for at, (name, cell) in enumerate(cells)
    ]
    command = el(
        "div",
        el("p", "The command for this budget:", class_="small"),
        code(stop.command, "the command for this budget"),
        id=ids("command"),
    )
    return el(
        "div", el("dl", figures, class_="now", id=ids("figures")), command, class_="at-budget", aria_live="polite"
    )


_HEADINGS = ("budget", "latency", "speed-up", "score", "convolutions")


def _cells(facts: RunFacts, stop: StopFacts) -> list[str]:
    kind = "measured" if stop.measured else "predicted"
    convs = f"{stop.left} left ({stop.removed} removed, {stop.merged} merged)"
    return [
        _budget_text(stop),
        f"{ms(stop.latency_ms)}, {kind}",
        times((facts.original_ms or 0.0) / stop.latency_ms) if stop.latency_ms else NOTHING,
        _score_cell(facts, stop),
        convs,
    ]


def _score_cell(facts: RunFacts, stop: StopFacts) -> str:
    if stop.result is not None:
        return f"{score_text(facts.results[stop.result].report.score)}, measured"
    if stop.estimated and facts.original_score:
        return estimate_text(facts.original_score, stop.estimated)
    return "not measured"


def estimate_text(score: Score, estimate: EstimateFacts) -> str:
    """An estimate with its interval, marked as one."""
    unit = " %" if score.kind == "share" else ""
    between = f"{figure(score, estimate.low)} to {figure(score, estimate.high)}"
    return f"about {figure(score, estimate.value)}{unit} ({between}), estimated"


def _all_budgets(facts: RunFacts, ids: Ids) -> Markup:
    words = change_words(facts)
    tables = []
    for place, method in enumerate(facts.methods):
        if not method.stops:
            continue
        headings = [*_HEADINGS, words.sum_title(method.objective)]
        rows = [_row(facts, method, stop, words) for stop in method.stops]
        own = table(
            f"Every budget with {method.method}", headings, rows, tall=True, class_="budgets-table", data_method=place
        )
        tables.append(join([el("h3", method.method) if len(facts.methods) > 1 else None, own]))
    note = "The command for each is the one above with this budget in it."
    return folded("Every budget as a table", el("p", note, class_="muted small"), tables, id=ids("all-budgets"))


def _row(facts: RunFacts, method: MethodFacts, stop: StopFacts, words: ChangeWords) -> list[Child | Cell]:
    budget, latency, speed, score, convs = _cells(facts, stop)
    total = words.sum_text(method.objective, stop.importance)
    return [budget, latency, speed, Cell(score, words=True), Cell(convs, words=True), total]


def _solver_words(facts: RunFacts) -> Markup:
    """What the solver goes by, without which a sum of importances says nothing."""
    words = change_words(facts)
    objective = facts.methods[0].objective if facts.methods else "delta"
    return folded("How a choice is made for a budget", el("p", words.solver(objective, len(facts.layers))))


def _results(facts: RunFacts, results: Iterable[ResultFacts]) -> Markup:
    rows = []
    for result in results:
        report, verdict = result.report, result.verdict
        is_control = report.method == CONTROL
        tone = None if is_control else join([icon(verdict.tone), " ", tone_words(verdict.tone)])
        rows.append(
            [
                Cell(f"{report.method}, {report.label}", look=look_of(facts, report.method)),
                spaced(report.budget),
                ms(report.measured_ms),
                times(report.speed_up),
                score_text(report.score),
                interval_text(report.score),
                f"{report.convs_before} → {report.convs_after}",
                Cell(el("span", tone, class_=f"tone {verdict.tone}") if tone else NOTHING),
            ]
        )
    headings = ["method", "budget", "measured latency", "speed-up", "score", "95 % interval", "convolutions", "verdict"]
    return table("All results", headings, rows)
