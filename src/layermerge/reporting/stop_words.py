"""Stop words: of a choice of candidates, how many convolutions went, which, and what takes the time that is left.

In: the candidates of a choice, each with the latency that the table says. Out: `Described`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from layermerge.planning.candidate import Candidate
from layermerge.reporting.candidate_words import named
from layermerge.reporting.numbers import plural, share

_NAMES, _SLOWEST = 8, 4


class Described(NamedTuple):
    """Convolutions left, removed and merged into others; which went, and what takes most of the time, in words."""

    left: int
    removed: int
    merged: int
    went: str
    time: str


def describe(parts: Sequence[tuple[Candidate, float]], fixed_ms: float) -> Described:
    """What is to be said of a choice."""
    candidates = [candidate for candidate, _ in parts]
    gone = [name for candidate in candidates for name in candidate.layers if name not in candidate.kept]
    kept = sum(len(candidate.kept) for candidate in candidates)
    left = sum(candidate.spec is not None for candidate in candidates)
    merged = [candidate for candidate in candidates if candidate.spec is not None and len(candidate.layers) > 1]
    return Described(left, len(gone), kept - left, _went(gone, merged), _time(parts, fixed_ms))


def _went(gone: Sequence[str], merged: Sequence[Candidate]) -> str:
    if not gone and not merged:
        return "Nothing was removed or merged."
    told = f"Removed: {_listed(gone)}." if gone else "Nothing was removed."
    ranges = [f"{named(candidate.layers)}" for candidate in merged]
    return f"{told} Turned into one: {_listed(ranges)}." if merged else told


def _listed(names: Sequence[str]) -> str:
    more = len(names) - _NAMES
    return "; ".join(names[:_NAMES]) + (f" and {more} more" if more > 0 else "")


def _time(parts: Sequence[tuple[Candidate, float]], fixed_ms: float) -> str:
    whole = sum(taken for _, taken in parts) + fixed_ms
    if whole <= 0:
        return ""
    left = sorted((part for part in parts if part[1] > 0), key=lambda part: -part[1])
    slowest = [f"{named(candidate.layers)} {share(taken / whole)}" for candidate, taken in left[:_SLOWEST]]
    fixed = f"What no choice changes (pooling, classifier and so on) takes {share(fixed_ms / whole)}."
    return f"Slowest of {plural(len(left), 'part')}: {'; '.join(slowest)}. {fixed}"
