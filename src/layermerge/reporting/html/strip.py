"""Strip: layers as wide as their latency, original above compressed, with residual blocks and the fixed cost.

Drawn for one choice; the page's `strip.js` redraws the lower lane for another, by the same rules.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from layermerge.reporting.fact_records import LayerFacts, RunFacts, StopFacts
from layermerge.reporting.html.chart import ticks
from layermerge.reporting.html.markup import Markup, el, join, percent
from layermerge.reporting.html.names import Ids
from layermerge.reporting.numbers import ms, plural, share, spaced

_TOP, _LANE, _GAP = 46, 38, 34
_AFTER = _TOP + _LANE + _GAP
_HEIGHT = _AFTER + _LANE + 52
_ROOM_FOR_TEXT, _ROOMY = 3.2, 9.0


@dataclass(frozen=True)
class Segment:
    """A part of a lane: from where, how wide, in milliseconds."""

    start: float
    width: float
    kind: str
    text: str
    tip: str
    layer: int | None
    first: int = 0
    end: int = 0


def strip(facts: RunFacts, stop: StopFacts | None, ids: Ids) -> Markup:
    """Both lanes on one scale."""
    before = _before(facts, stop)
    after = _after(facts, stop) if stop else []
    full = max(sum(part.width for part in before), sum(part.width for part in after)) or 1.0
    above = " above the compressed network" if after else ""
    label = f"Layers of the network, each as wide as its latency: the original{above}"
    lower = [_joined(before, after, full), _lane(after, full), _after_label(facts, stop)] if stop else []
    picture = el(
        "svg",
        _arcs(facts, before, full),
        el("text", _before_label(facts), x="0%", y=13),
        el("g", _lane(before, full), data_part="before", transform=f"translate(0 {_TOP})"),
        el("g", lower, data_part="after", transform=f"translate(0 {_AFTER})"),
        _axis(full) if facts.original_ms else None,
        width="100%", height=_HEIGHT, role="img", aria_label=label, id=ids("strip"),
        data_full=full, data_scale=before_scale(facts),
    )  # fmt: skip
    return el("figure", picture, _legend(facts), class_="chart strip", data_file=f"{facts.name}-layers")


def _before(facts: RunFacts, stop: StopFacts | None) -> list[Segment]:
    """As wide as measured; all alike before anything was."""
    timed = any(layer.latency_ms for layer in facts.layers)
    kinds, scale = _kinds(facts, stop), before_scale(facts)
    segments, at = [], 0.0
    for place, each in enumerate(facts.layers):
        width = scale * (each.latency_ms or 0.0) if timed else 1.0
        tip = f"{each.layer.name}: {geometry(each)}" + (f", {ms(each.latency_ms)}" if timed else "")
        segments.append(Segment(at, width, kinds[place], _kernel(each), tip, place, place, place + 1))
        at += width
    if facts.fixed_ms:
        segments.append(_fixed(at, scale * facts.fixed_ms))
    return segments


def before_scale(facts: RunFacts) -> float:
    """So that the lane is as long as the network was measured to take; 1 but for rounding where all layers were timed."""
    whole = sum(layer.latency_ms or 0.0 for layer in facts.layers) + (facts.fixed_ms or 0.0)
    return facts.original_ms / whole if facts.original_ms and whole > 0 else 1.0


def _after(facts: RunFacts, stop: StopFacts) -> list[Segment]:
    """Parts as the latency table has them, scaled to the latency that is shown."""
    parts = [facts.candidates[place] for place in stop.candidates]
    whole = sum(part.latency_ms or 0.0 for part in parts) + (facts.fixed_ms or 0.0)
    scale = stop.latency_ms / whole if whole > 0 else 1.0
    segments, at = [], 0.0
    for part in parts:
        width, candidate = scale * (part.latency_ms or 0.0), part.candidate
        if width > 0:
            kind = "kept" if candidate.keeps_layer else "merged"
            text = "×".join(map(str, candidate.spec.kernel)) if candidate.spec else ""
            tip = (
                f"{part.words}, {ms(width)}"
                if not candidate.keeps_layer
                else f"{candidate.layers[0]}: {part.words}, {ms(width)}"
            )
            segments.append(Segment(at, width, kind, text, tip, candidate.start, candidate.start, candidate.end))
            at += width
    if facts.fixed_ms:
        segments.append(_fixed(at, scale * facts.fixed_ms))
    return segments


def _fixed(at: float, width: float) -> Segment:
    return Segment(
        at, width, "fixed", "fixed", f"what no choice changes (pooling, classifier and so on): {ms(width)}", None
    )


def _kinds(facts: RunFacts, stop: StopFacts | None) -> list[str]:
    """What becomes of each layer."""
    kinds = ["kept"] * len(facts.layers)
    for place in stop.candidates if stop else ():
        part = facts.candidates[place]
        for layer in range(part.candidate.start, part.candidate.end):
            if not part.candidate.keeps_layer:
                kinds[layer] = "merged" if layer in part.places else "removed"
    return kinds


def _lane(segments: Sequence[Segment], full: float) -> Markup:
    parts = []
    for each in segments:
        x, width = 100 * each.start / full, 100 * each.width / full
        box = el(
            "rect", el("title", each.tip), class_=f"seg {each.kind}", x=percent(x), y=0, width=percent(width), height=_LANE,
            data_layer=each.layer,
        )  # fmt: skip
        parts.append(box)
        if width >= _ROOM_FOR_TEXT:
            look = f"in {each.kind}" + ("" if width >= _ROOMY else " tight")
            parts.append(
                el("text", each.text, class_=look, x=percent(x + width / 2), y=_LANE / 2 + 4, text_anchor="middle")
            )
    return join(parts)


def _joined(before: Sequence[Segment], after: Sequence[Segment], full: float) -> Markup:
    """From the layers that merge to what they merge into."""
    shapes = []
    for each in after:
        if each.kind == "merged":
            left, right = before[each.first].start, before[each.end - 1].start + before[each.end - 1].width
            corners = [(left, -_GAP), (right, -_GAP), (each.start + each.width, 0), (each.start, 0)]
            shapes.append(el("polygon", points=" ".join(f"{100 * x / full:.3f},{y + _GAP}" for x, y in corners)))
    return el(
        "svg", shapes, class_="joined", x="0", y=-_GAP, width="100%", height=_GAP, viewBox=f"0 0 100 {_GAP}",
        preserveAspectRatio="none",
    )  # fmt: skip


def _arcs(facts: RunFacts, before: Sequence[Segment], full: float) -> Markup:
    """Upper halves of ellipses over the residual blocks."""
    arcs = []
    for block in facts.blocks:
        left, last = before[block.start].start, before[block.end - 1]
        right = last.start + last.width
        middle, half = 50 * (left + right) / full, 50 * (right - left) / full
        arcs.append(
            el(
                "ellipse",
                el("title", f"residual block {block.name}"),
                cx=percent(middle),
                cy=26,
                rx=percent(half),
                ry=22,
            )
        )
    return el("svg", arcs, class_="arcs", x="0", y=_TOP - 27, width="100%", height=26)


def _axis(full: float) -> Markup:
    parts = []
    for at, text in ticks(0.0, full, 6):
        x, anchor = 100 * at / full, "start" if at == 0 else "end" if at > 0.97 * full else "middle"
        parts.append(el("line", class_="axis", x1=percent(x), x2=percent(x), y1=_HEIGHT - 26, y2=_HEIGHT - 20))
        parts.append(el("text", f"{text} ms", class_="soft", x=percent(x), y=_HEIGHT - 6, text_anchor=anchor))
    return join(parts)


def _before_label(facts: RunFacts) -> str:
    return (
        f"original, {ms(facts.original_ms)}"
        if facts.original_ms
        else "original, not measured yet: all layers are drawn alike"
    )


def _after_label(facts: RunFacts, stop: StopFacts | None) -> Markup | None:
    if stop is None:
        return None
    saved = 1 - stop.latency_ms / facts.original_ms if facts.original_ms else 0.0
    kind = "measured" if stop.measured else "predicted"
    text = f"at {spaced(stop.budget)}, {ms(stop.latency_ms)} {kind}: {share(saved)} saved"
    return el("text", text, x="0%", y=_LANE + 16, data_part="after-label")


def _legend(facts: RunFacts) -> Markup:
    def row(kind: str, text: str) -> Markup:
        sample = el(
            "svg",
            el("rect", class_=f"seg {kind}", x=1, y=1, width=28, height=16),
            viewBox="0 0 30 18",
            width=30,
            height=18,
            aria_hidden="true",
        )
        return el("li", sample, el("span", text))

    rows = [
        row("kept", "kept"),
        row("merged", "merged into one"),
        row("removed", "removed"),
        row("fixed", "fixed cost: what no choice changes"),
    ]
    if facts.blocks:
        arc = el(
            "svg",
            el("path", d="M2,17A13,13 0 0 1 28,17"),
            class_="arcs",
            viewBox="0 0 30 18",
            width=30,
            height=18,
            aria_hidden="true",
        )
        rows.append(el("li", arc, el("span", "residual block")))
    return el("ul", rows, class_="legend", aria_label="How to read the strip")


def geometry(facts: LayerFacts) -> str:
    """A layer in a few words."""
    layer, spec = facts.layer, facts.layer.spec
    parts = [f"{_kernel(facts)}, {layer.input_shape[0]} to {layer.output_shape[0]} channels"]
    if spec.groups > 1:
        parts.append("depthwise" if spec.groups == spec.in_channels else plural(spec.groups, "group"))
    if max(spec.stride) > 1:
        parts.append(f"stride {max(spec.stride)}")
    return ", ".join(parts)


def _kernel(facts: LayerFacts) -> str:
    return "×".join(map(str, facts.layer.spec.kernel))
