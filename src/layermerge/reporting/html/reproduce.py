"""Reproduce: the command that makes the result again, and what it was made with."""

from __future__ import annotations

from layermerge.reporting.fact_records import ResultFacts, RunFacts
from layermerge.reporting.html.hero import code
from layermerge.reporting.html.markup import Child, Markup, el
from layermerge.reporting.html.names import Ids
from layermerge.reporting.numbers import duration, plural


def reproduce(facts: RunFacts, ids: Ids) -> Markup:
    """The section."""
    best = facts.results[facts.headline] if facts.headline is not None else None
    parts: list[Child] = [el("h2", "Reproduce it", id=ids("reproduce-title"))]
    if best is None:
        parts.append(el("p", "There is no result to reproduce yet."))
    else:
        parts += [
            code(best.command, "the command that reproduces this run"),
            el("dl", _environment(facts, best), class_="settings"),
        ]
    return el("section", parts, id=ids("reproduce"), aria_labelledby=ids("reproduce-title"))


def _environment(facts: RunFacts, best: ResultFacts) -> list[Child]:
    made, where = best.report.environment, facts.latency_setting
    spent = ", ".join(f"{name} {duration(seconds)}" for name, seconds in best.seconds.items())
    whole = duration(sum(best.seconds.values()))
    rows = [
        ("date", made.finished.replace("T", " ").replace("+00:00", " UTC") if made else "not recorded by this version"),
        ("duration", f"{whole} ({spent})" if spent else "not recorded"),
        (
            "processor",
            f"{made.processor}, {plural(made.cores, 'core')}" if made else str(where.get("processor", "not recorded")),
        ),
        (
            "latency measured on",
            f"{best.report.runtime}, {plural(best.report.threads, 'thread')}, batch {best.report.batch_size}",
        ),
        (
            "versions",
            ", ".join(f"{name} {number}" for name, number in made.versions.items()) if made else "not recorded",
        ),
        ("system", made.system if made else "not recorded"),
        ("commit of layermerge", (made.commit or "installed as a package") if made else "not recorded"),
    ]
    return [[el("dt", name), el("dd", value)] for name, value in rows]
