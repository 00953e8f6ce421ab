"""Ruling out: merges that cannot pay, known from latency before anything is trained.

A merge pays by being faster. Where the same range with the same convs kept, but unmerged, is on the menu and no slower, the
solver prefers it as long as it scores at least as much. It must, where its own score (one for each kept layer, and what
dropping the others costs) is no less than the most that any single entry can score. A cheaper activation that saves no time is
not tried either: it has no other advantage.
"""

from __future__ import annotations

import math

from layermerge.planning.candidate import Candidate
from layermerge.planning.plan import Plan
from layermerge.tables.latency import LatencyTable
from layermerge.tables.table import Table


def ruled_out(plan: Plan, latency: LatencyTable, singles: Table, *, largest_gain: float) -> dict[str, str]:
    """Why entries need no run, by key. `singles` has D of every droppable layer; no D exceeds `largest_gain`.

    Candidates that keep no conv are never ruled out.
    """
    reasons = {}
    for candidate in plan.entries:
        if candidate.spec is None or not candidate.changes:
            continue
        if reason := _reason(plan, candidate, latency, singles, largest_gain):
            reasons[candidate.key] = reason
    return reasons


def slower_than_untouched(plan: Plan, latency: LatencyTable) -> dict[str, str]:
    """Why entries need no run where no change can be positive: their layers as they are score no less, whatever is summed,
    and are no slower. Candidates that keep no conv are never ruled out."""
    reasons = {}
    for candidate in plan.entries:
        if candidate.spec is None or not candidate.changes:
            continue
        own_ms = latency.of(candidate)
        if own_ms is None:
            reasons[candidate.key] = latency.why_off(candidate) or "its latency could not be measured"
            continue
        parts = [plan.single(index, kept=True) for index in range(candidate.start, candidate.end)]
        taken = [None if part is None or part.fixed else latency.of(part) for part in parts]
        known = [one for one in taken if one is not None]
        if len(known) < len(parts):
            continue
        spread_ms = math.hypot(*(latency.spread_of(one) for one in (candidate, *parts) if one is not None))
        if sum(known) <= own_ms - spread_ms:
            reasons[candidate.key] = f"as they are its layers take {sum(known):.4f} ms, merged {own_ms:.4f} ms"
    return reasons


def _reason(plan: Plan, candidate: Candidate, latency: LatencyTable, singles: Table, largest_gain: float) -> str | None:
    own_ms = latency.of(candidate)
    if own_ms is None:
        return latency.why_off(candidate)
    if candidate.replaced and (reason := _no_faster(plan, candidate, latency, own_ms)):
        return reason
    parts = _split(plan, candidate)
    if parts is None or (candidate.free and candidate.replaced):
        return None
    score = 0.0
    split_ms = 0.0
    for part in parts:
        part_ms = latency.of(part)
        change = 0.0 if part.spec is not None else _change(singles, part)
        if part_ms is None or change is None:
            return None
        split_ms += part_ms
        score += math.exp(change) - (0.0 if part.kept else 1.0)
    spread_ms = math.hypot(*(latency.spread_of(each) for each in (candidate, *parts)))
    if split_ms > own_ms + spread_ms or score < math.exp(largest_gain):
        return None
    return f"unmerged it takes {split_ms:.4f} ms, merged {own_ms:.4f} ms"


def _no_faster(plan: Plan, candidate: Candidate, latency: LatencyTable, own_ms: float) -> str | None:
    """Why a cheaper activation does not pay: the candidate takes as long with its own."""
    plain = candidate.unreplaced
    plain_ms = latency.of(plain) if plain in plan else None
    if plain_ms is None:
        return None
    spread_ms = math.hypot(latency.spread_of(candidate), latency.spread_of(plain))
    own = f"with its own activation it takes {plain_ms:.4f} ms, with a cheaper one {own_ms:.4f} ms"
    return own if plain_ms <= own_ms + spread_ms else None


def _split(plan: Plan, candidate: Candidate) -> list[Candidate] | None:
    """The same range as single layers, the same convs kept; None where the menu lacks one of them."""
    parts = []
    for index, name in enumerate(candidate.layers, candidate.start):
        part = plan.single(index, kept=name in candidate.kept)
        if part is None:
            return None
        parts.append(part)
    return parts


def _change(singles: Table, part: Candidate) -> float | None:
    row = singles.rows.get(part.key)
    return row.value if row is not None and row.status == "ok" else None
