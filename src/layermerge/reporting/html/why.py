"""Why not more: what a smaller budget would cost, what sets the limit, and what was ruled out, in plain words."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from layermerge.reporting.fact_records import ReasonFacts, RunFacts
from layermerge.reporting.html.explore import estimate_text
from layermerge.reporting.html.markup import Child, Markup, el, folded
from layermerge.reporting.html.names import Ids
from layermerge.reporting.numbers import ms, plural, share, spaced

_KINDS = {
    "rule": "Ranges of layers that cannot be treated as one",
    "slow": "Merges that would not be faster on this machine, so their score was not measured",
    "failed": "What could not be measured",
}


def why(facts: RunFacts, ids: Ids) -> Markup:
    """What a smaller budget would cost, what sets the limit, and what was ruled out."""
    layers = len(facts.layers)
    wide = {
        (each.candidate.start, each.candidate.end)
        for each in facts.candidates
        if each.candidate.end - each.candidate.start > 1
    }
    told = f"Of {layers * (layers - 1) // 2:,} ranges of two or more layers, {len(wide):,} can be treated as one."
    parts: list[Child] = [el("ul", [el("li", line) for line in _limits(facts)]), el("p", told)]
    if not any(group.kind == "rule" for group in facts.reasons):
        parts.append(
            el(
                "p",
                "The plan of this run does not list the ranges that its rules forbid; ",
                el("code", "layermerge plan MODEL"),
                " does.",
            )
        )
    for kind, title in _KINDS.items():
        groups = _alike([group for group in facts.reasons if group.kind == kind])
        if groups:
            counted = sum(group.count for group in groups)
            parts.append(folded(f"{title} ({counted:,})", [_reason(group) for group in groups], class_="reasons"))
    return el(
        "section",
        el("h2", "Why not more?", id=ids("why-title")),
        parts,
        id=ids("why"),
        aria_labelledby=ids("why-title"),
    )


def _limits(facts: RunFacts) -> Iterable[str]:
    whole = facts.original_ms
    best = facts.results[facts.headline] if facts.headline is not None else None
    if best:
        report = best.report
        tighter = [
            result.report
            for result in facts.results
            if result.report.method == report.method and result.report.budget_ms < report.budget_ms
        ]
        for other in sorted(tighter, key=lambda each: -each.budget_ms)[:1]:
            lost = 100 * (report.score.value - other.score.value) if other.score.kind == "share" else None
            cost = (
                f"cost another {lost:.1f} points"
                if lost is not None
                else f"led to {other.score.value:.4g} instead of {report.score.value:.4g}"
            )
            yield f"A tighter budget was tried: {spaced(other.budget)} {cost}."
        stops = [stop for method in facts.methods if method.method == report.method for stop in method.stops]
        lower = [stop for stop in stops if stop.estimated and stop.budget_ms <= 0.92 * report.budget_ms]
        if lower and lower[-1].estimated and facts.original_score:
            expected = estimate_text(facts.original_score, lower[-1].estimated)
            yield f"At {spaced(lower[-1].budget)} the score would be {expected}."
        elif not tighter:
            yield f"No tighter budget than {spaced(report.budget)} was tried; the slider above shows what each would remove."
    if whole and facts.fixed_ms is not None:
        fixed = f"{ms(facts.fixed_ms)} ({share(facts.fixed_ms / whole)} of the original)"
        yield f"What no choice changes (pooling, classifier and so on) takes {fixed}."
    smallest = min((method.frontier[0].point.latency_ms for method in facts.methods if method.frontier), default=None)
    if whole and smallest is not None:
        least = f"{ms(smallest)} ({share(smallest / whole)})"
        yield f"The fastest network that can be built from these layers takes {least}, with nearly all of them gone."
    stuck = sum(not layer.removable for layer in facts.layers)
    if stuck:
        yield (
            f"{plural(stuck, 'convolution')} of {len(facts.layers)} cannot be removed alone: what goes in and what comes out "
            "differ in size or channels."
        )


def _alike(groups: Sequence[ReasonFacts]) -> list[ReasonFacts]:
    """Reasons that are the same in plain words are given once. The latency table's own are of operations that were not timed to
    the end, and the candidates behind them are given already."""
    ranges = [group for group in groups if not group.reason.startswith("latency:")] or groups
    found: dict[str, ReasonFacts] = {}
    for group in ranges:
        known = found.get(group.plain or group.reason)
        own = group if known is None else replace(known, count=known.count + group.count)
        found[group.plain or group.reason] = own
    return list(found.values())


def _reason(group: ReasonFacts) -> Markup:
    examples = el("ul", [el("li", example) for example in group.examples])
    technical = el("span", f" ({group.reason})", class_="muted small") if group.plain else None
    return el(
        "div", el("strong", f"{group.count:,} × "), group.plain or group.reason, technical, examples, class_="reason"
    )
