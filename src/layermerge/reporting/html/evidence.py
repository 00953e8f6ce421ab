"""Evidence: what the rest rests on: prediction against measurement, recovery, what the tables cost, how it was measured."""

from __future__ import annotations

from layermerge.reporting.fact_records import CurveFacts, RunFacts
from layermerge.reporting.html.chart import Chart, Mark, Series, chart
from layermerge.reporting.html.markup import Child, Markup, el, folded
from layermerge.reporting.html.names import Ids, look_of
from layermerge.reporting.html.table import Cell, table
from layermerge.reporting.numbers import NOTHING, duration, known, ms, spaced

ENOUGH_POINTS = 3
"""For a chart; fewer are said in a sentence."""
_DASHES = (None, "7 4", "2 3", "8 3 2 3")


def evidence(facts: RunFacts, ids: Ids) -> Markup:
    """Everything folded: whoever wants to check opens it."""
    parts = [
        folded("Predicted against measured latency", _predicted(facts), id=ids("predicted")),
        folded("How the score came back while fine-tuning", _recovery(facts), id=ids("recovery")),
        folded("What the tables cost", _costs(facts), id=ids("cost")),
        folded("How this was measured", _how(facts), id=ids("how")),
    ]
    return el(
        "section",
        el("h2", "Evidence", id=ids("evidence-title")),
        parts,
        id=ids("evidence"),
        aria_labelledby=ids("evidence-title"),
    )


# -- predicted against measured


def _predicted(facts: RunFacts) -> list[Child]:
    stops = [(method, stop) for method in facts.methods for stop in method.stops if stop.measured]
    if not stops:
        return [el("p", "Nothing was measured yet.")]
    series, rows = [], []
    for method in facts.methods:
        chosen = {choice.choice.budget: choice.choice.solution for choice in method.choices}
        own = [(stop, chosen[stop.budget]) for other, stop in stops if other is method]
        marks = tuple(
            Mark(solution.latency_ms, stop.latency_ms, f"{method.method} at {spaced(stop.budget)}")
            for stop, solution in own
        )
        tried = tuple(
            Mark(turn.predicted_ms, turn.measured_ms, f"{method.method}, tried on the way to {spaced(stop.budget)}")
            for stop, solution in own
            for turn in solution.rounds
        )
        look = look_of(facts, method.method)
        series += [Series(method.method, look, tried, small=True), Series(method.method, look, marks)]
        for stop, solution in own:
            error = f" ± {ms(solution.error_ms, '')}" if solution.error_ms else ""
            off = stop.latency_ms / solution.latency_ms - 1 if solution.latency_ms else 0.0
            predicted = f"{ms(solution.latency_ms, '')}{error} ms"
            rows.append(
                [Cell(method.method, look=look), spaced(stop.budget), ms(stop.budget_ms), predicted, ms(stop.latency_ms),
                 f"{100 * off:+.1f} %".replace("-", "−"), len(solution.rounds)]
            )  # fmt: skip
    headings = ["method", "budget", "allows", "predicted", "measured", "measured is", "choices tried"]
    figures = table("Predicted against measured latency", headings, rows)
    if sum(len(each.marks) for each in series) < ENOUGH_POINTS:
        sentence = "; ".join(f"{row[1]}: {row[3]} predicted, {row[4]} measured" for row in rows)
        return [el("p", f"{sentence}."), figures]
    words = "On the dashed line the table predicts the whole network exactly. Small dots were tried on the way."
    drawn = Chart(
        label="Measured against predicted latency", x="predicted (ms)", y="measured (ms)", series=tuple(series), diagonal=True,
        file=f"{facts.name}-predicted",
    )  # fmt: skip
    return [el("p", words, class_="lead"), chart(drawn), figures]


# -- recovery


def _recovery(facts: RunFacts) -> list[Child]:
    curves = [curve for curve in facts.curves if any(map(known, curve.scores))]
    if not curves:
        return [el("p", "Nothing was fine-tuned in this run.")]
    percents = facts.original_score is None or facts.original_score.kind == "share"
    scale, unit = (100.0, " %") if percents else (1.0, "")
    rows = [_recovery_row(facts, curve, scale, unit) for curve in curves]
    headings = ["method", "budget", "before", "after", "epochs", "time"]
    figures = table("Recovery", headings, rows)
    if all(len(curve.scores) < ENOUGH_POINTS for curve in curves):
        sentence = "; ".join(
            f"{curve.variant.method} at {spaced(curve.variant.budget)} from {row[2]} to {row[3]}"
            for curve, row in zip(curves, rows, strict=True)
        )
        return [el("p", f"The held-out score went, {sentence}."), figures]
    seen: dict[str, int] = {}
    series = []
    for curve in curves:
        method = curve.variant.method
        seen[method] = seen.get(method, -1) + 1
        marks = tuple(
            Mark(epoch, scale * score, "")
            for epoch, score in zip(curve.epochs, curve.scores, strict=True)
            if score is not None
        )
        name = f"{method} {spaced(curve.variant.budget)}, {curve.variant.label}"
        series.append(Series(name, look_of(facts, method), marks, line=True, dash=_DASHES[seen[method] % 4], last=True))
    title = "held-out score (%)" if percents else "held-out score (more is better)"
    drawn = Chart(
        label="Held-out score against epochs of fine-tuning",
        x="epoch",
        y=title,
        series=tuple(series),
        file=f"{facts.name}-recovery",
    )
    return [
        el("p", "The score on held-out training images, from the first epoch on.", class_="lead"),
        chart(drawn),
        figures,
    ]


def _recovery_row(facts: RunFacts, curve: CurveFacts, scale: float, unit: str) -> list[Child | Cell]:
    def text(score: float | None) -> str:
        return NOTHING if score is None else f"{scale * score:.2f}{unit}" if unit else f"{score:.4f}"

    look, variant = look_of(facts, curve.variant.method), curve.variant
    return [
        Cell(variant.method, look=look), spaced(variant.budget), text(curve.scores[0]), text(curve.scores[-1]),
        f"{curve.epochs[-1]:g}", duration(curve.seconds),
    ]  # fmt: skip


# -- costs and settings


def _costs(facts: RunFacts) -> Markup:
    rows = [
        [Cell(each.method, look=look_of(facts, each.method)), each.cost.entries, each.cost.workloads,
         duration(each.cost.latency_seconds), each.cost.scored, duration(each.cost.importance_seconds),
         each.cost.ruled_out, each.cost.failed]
        for each in facts.costs
    ]  # fmt: skip
    headings = [
        "method",
        "candidates",
        "operations timed",
        "time for latency",
        "candidates scored",
        "time for scores",
        "spared by latency",
        "failed",
    ]
    return table("What the tables cost", headings, rows) if rows else el("p", "No table is complete yet.")


def _how(facts: RunFacts) -> list[Child]:
    lines = [f"Run directory {facts.directory}, plan of {facts.method}."]
    if facts.scale is not None and facts.scale != 1.0:
        lines.append(
            f"Latencies of single layers were multiplied by {facts.scale:.3f}, to what they take inside the network."
        )
    if facts.scale is not None:
        lines.append(
            "In the strip, parts of a compressed network are scaled to the latency that was measured for the whole."
        )
    tables = [
        ("Settings of the latency table", facts.latency_setting),
        ("Settings of the importance table", facts.importance_setting),
    ]
    lists = [
        [
            el("h3", title),
            el("dl", [[el("dt", name), el("dd", str(value))] for name, value in setting.items()], class_="settings"),
        ]
        for title, setting in tables
        if setting
    ]
    return [el("p", " ".join(lines)), lists]
