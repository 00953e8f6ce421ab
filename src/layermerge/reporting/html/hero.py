"""Hero: the first screen: the verdict, the file to use and how, and the ways to everything else."""

from __future__ import annotations

from collections.abc import Iterable

from layermerge.reporting.fact_records import ResultFacts, RunFacts
from layermerge.reporting.html.markup import Child, Markup, coded, el, folded, join
from layermerge.reporting.html.names import Ids
from layermerge.reporting.html.snippets import snippets
from layermerge.reporting.html.table import Cell, table
from layermerge.reporting.numbers import ms, plural, score_text, score_title, size, spaced, times
from layermerge.runs.records import Report

_TONES = {"good": "Good", "fair": "Look closer", "bad": "Not good enough", "unknown": "Not known"}
_ICONS = {
    "good": "M7,12.5l3.5,3.5L17,8.5",
    "fair": "M12,6.5V13.5M12,17v.01",
    "bad": "M8,8l8,8M16,8l-8,8",
    "unknown": "M9,9.5a3,3 0 1 1 3,3.5V14M12,17.5v.01",
}
_WAYS = (
    ("use", "Use it"),
    ("explore", "Other budgets"),
    ("network", "Which layers went, where the time goes"),
    ("why", "Why not more"),
    ("reproduce", "Reproduce it"),
    ("evidence", "Evidence"),
)


def hero(facts: RunFacts, ids: Ids) -> Markup:
    """The head of a run's report."""
    best = facts.results[facts.headline] if facts.headline is not None else None
    lines = el("ul", [el("li", line) for line in facts.missing])
    missing = el("div", "Not everything is there yet:", lines, class_="note") if facts.missing else None
    return el(
        "section",
        el("h1", facts.name, id=ids("title")),
        el("p", _setting(facts), class_="muted", id=ids("setting")),
        _ways(facts, ids, best),
        el("div", _verdict(facts, best, ids), _use(facts, best, ids) if best else None, class_="first"),
        el("div", missing, id=ids("missing")),
        class_="hero",
        aria_labelledby=ids("title"),
    )


def icon(tone: str) -> Markup:
    """A shape for each tone: colour alone tells nothing to some."""
    frame = "M12,2.5L22,20.5H2z" if tone == "fair" else "M12,2a10,10 0 1 0 .01,0z"
    return el(
        "svg", el("path", d=frame), el("path", d=_ICONS[tone]), viewBox="0 0 24 24", class_="icon", aria_hidden="true"
    )


def tone_words(tone: str) -> str:
    return _TONES[tone]


def code(text: str, name: str) -> Markup:
    """Code that a button copies."""
    button = el("button", "Copy", type="button", class_="copy script", aria_label=f"Copy {name}", hidden=True)
    return el("div", el("pre", el("code", text), tabindex="0", role="region", aria_label=name), button, class_="code")


def _setting(facts: RunFacts) -> str:
    where = facts.latency_setting
    inputs = ", ".join("×".join(map(str, shape)) for shape in facts.inputs)
    parts = [plural(len(facts.layers), "convolution"), f"input {inputs}"]
    if where.get("runtime"):
        threads = plural(int(where.get("threads") or 1), "thread")
        parts.append(f"{where['runtime']} {where.get('version', '')}, {threads}, batch {where.get('batch')}")
    return " · ".join(parts)


# -- the verdict


def _verdict(facts: RunFacts, best: ResultFacts | None, ids: Ids) -> Markup:
    if best is None:
        title = el("p", "No result yet", class_="verdict-title")
        figures = el("div", [_figure(*each) for each in _original_figures(facts)], class_="figures")
        return el("div", title, figures, class_="card verdict unknown", id=ids("verdict"))
    verdict = best.verdict
    head = el("p", icon(verdict.tone), el("span", tone_words(verdict.tone)), class_="tone")
    advice = [el("li", coded(line)) for line in verdict.advice]
    return el(
        "div",
        head,
        el("p", verdict.title + ".", class_="verdict-title"),
        el("p", el("strong", verdict.budget)),
        el("p", verdict.score),
        el("div", "What to try:", el("ul", advice), class_="advice") if advice else None,
        el("div", [_figure(*each) for each in _result_figures(best.report)], class_="figures"),
        el("p", facts.headline_note, class_="muted small") if facts.headline_note else None,
        class_=f"card verdict {verdict.tone}",
        id=ids("verdict"),
    )


def _figure(name: str, value: Child, note: str) -> Markup:
    return el(
        "div",
        el("div", name, class_="name"),
        el("div", value, class_="value"),
        el("div", note, class_="name"),
        class_="figure",
    )


def _arrow(before: str, after: str) -> Markup:
    return join([el("span", f"{before} → ", class_="from"), after])


def _result_figures(report: Report) -> list[tuple[str, Child, str]]:
    after, before = report.score, report.original_score
    return [
        (
            "Latency, ms",
            _arrow(ms(report.original_ms, ""), ms(report.measured_ms, "")),
            f"{times(report.speed_up)} as fast",
        ),
        (
            score_title(after).capitalize(),
            _arrow(score_text(before, ""), score_text(after, "")),
            f"{after.count:,} test examples",
        ),
        (
            "Convolutions",
            _arrow(str(report.convs_before), str(report.convs_after)),
            f"{report.method} at {spaced(report.budget)}, {report.label}",
        ),
    ]


def _original_figures(facts: RunFacts) -> Iterable[tuple[str, Child, str]]:
    yield "Latency", ms(facts.original_ms), "of the original"
    yield "Convolutions", str(len(facts.layers)), f"{plural(len(facts.candidates), 'candidate')} to choose from"
    if facts.original_score:
        yield score_title(facts.original_score).capitalize(), score_text(facts.original_score, ""), "of the original"


# -- using it


def _use(facts: RunFacts, best: ResultFacts, ids: Ids) -> Markup:
    measured = [file for file in best.files if file.latency_ms is not None]
    parts: list[Child] = [el("h2", "Use it")]
    for file in measured or best.files[:1]:
        told = [file.kind, size(file.bytes)] + (
            [ms(file.latency_ms), score_text(file.score)] if len(measured) > 1 else []
        )
        told += [file.note] if file.note else []
        parts += [code(file.path, f"path of the file, {file.kind}"), el("p", ", ".join(told), class_="muted small")]
    if not best.files:
        parts.append(el("p", f"The files are not in {best.directory} any more."))
    for place, (name, text) in enumerate(snippets(facts, best)):
        parts.append(
            folded(f"Load it with {name}", code(text, f"code for {name}"), open=place == 0, name=ids("snippet"))
        )
    if len(best.files) > 1:
        parts.append(folded("All files", _files(best)))
    return el("div", parts, class_="card use", id=ids("use"))


def _files(result: ResultFacts) -> Markup:
    rows = [
        (
            Cell(file.path, words=True),
            file.kind,
            size(file.bytes),
            ms(file.latency_ms),
            score_text(file.score),
            Cell(file.note, words=True),
        )
        for file in result.files
    ]
    return table("Files of the network", ["file", "kind", "size", "latency", "score", "for"], rows, class_="files")


# -- ways to the rest


def _ways(facts: RunFacts, ids: Ids, best: ResultFacts | None) -> Markup:
    links = [el("a", text, href=f"#{ids(name)}") for name, text in _WAYS if best or name != "use"]
    ways = el("nav", links, class_="ways", aria_label="Parts of this report")
    budgets = [
        el("a", spaced(stop.budget), href=f"#{ids('explore')}", data_budget=stop.budget)
        for method in facts.methods[:1]
        for stop in method.stops
        if stop.result is not None or _is_round(stop.budget)
    ]
    if not budgets:
        return ways
    row = el(
        "nav", el("span", "Get another budget:", class_="muted"), budgets, class_="budgets", aria_label="Other budgets"
    )
    return join([ways, row])


def _is_round(budget: str) -> bool:
    number = budget.removesuffix("%")
    return budget.endswith("%") and number.isdigit() and int(number) % 5 == 0 and int(number) < 100
