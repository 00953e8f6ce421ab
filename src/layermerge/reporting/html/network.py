"""Network: the strip of layers, what went and where the time goes, in words, and a table of all layers."""

from __future__ import annotations

from layermerge.reporting.change_words import change_words
from layermerge.reporting.fact_records import RunFacts, StopFacts
from layermerge.reporting.html.explore import opening
from layermerge.reporting.html.markup import Child, Markup, el, join
from layermerge.reporting.html.names import Ids
from layermerge.reporting.html.strip import geometry, strip
from layermerge.reporting.html.table import Cell, table
from layermerge.reporting.numbers import NOTHING, ms, share, spaced


def network(facts: RunFacts, ids: Ids) -> Markup:
    """The section."""
    stop = opening_stop(facts)
    words = change_words(facts)
    parts: list[Child] = [el("h2", "The network, layer by layer", id=ids("network-title"))]
    if stop:
        parts += [
            el(
                "p",
                el("strong", f"At {spaced(stop.budget)}. ", data_part="at"),
                el("span", stop.went, data_part="went"),
                id=ids("went"),
            ),
            el("p", el("strong", "Where the time goes. "), el("span", stop.time, data_part="time"), id=ids("time")),
        ]
    parts += [strip(facts, stop, ids)]
    hint = "Click a layer, in the strip or in the table, to see what can be done with it: what that saves, and what it costs."
    parts.append(el("div", el("p", hint, class_="muted"), class_="details script", id=ids("details"), hidden=True))
    parts.append(_layers(facts, stop, ids))
    data = {
        "data_change": words.title,
        "data_scale": words.scale,
        "data_digits": words.digits,
        "data_explanation": words.explanation,
    }
    return el("section", parts, id=ids("network"), aria_labelledby=ids("network-title"), **data)


def opening_stop(facts: RunFacts) -> StopFacts | None:
    """The choice that the page opens with."""
    if not facts.methods:
        return None
    method, place = opening(facts)
    stops = facts.methods[method].stops
    return stops[place] if stops else None


def _layers(facts: RunFacts, stop: StopFacts | None, ids: Ids) -> Markup:
    fates = _fates(facts, stop)
    whole = facts.original_ms
    rows = []
    for place, each in enumerate(facts.layers):
        taken = each.latency_ms
        rows.append(
            [
                Cell(place, place),
                Cell(each.layer.name, words=True),
                Cell(geometry(each), words=True),
                Cell(
                    "×".join(map(str, each.layer.output_shape[1:])),
                    each.layer.output_shape[1] * each.layer.output_shape[2],
                ),
                Cell(ms(taken), taken if taken is not None else -1),
                Cell(
                    share(taken / whole) if taken is not None and whole else NOTHING, taken if taken is not None else -1
                ),
                Cell(fates[place], words=True, part="fate"),
            ]
        )
    at = f"at {spaced(stop.budget)}" if stop else "at a budget"
    headings = ["#", "layer", "convolution", "map", "latency", "of the whole", at]
    return join(
        [el("h3", "All layers"), table("All layers", headings, rows, tall=True, class_="layers", id=ids("layers"))]
    )


def _fates(facts: RunFacts, stop: StopFacts | None) -> list[str]:
    fates = [NOTHING] * len(facts.layers)
    for place in stop.candidates if stop else ():
        part = facts.candidates[place]
        for layer in range(part.candidate.start, part.candidate.end):
            fates[layer] = part.words
    return fates
