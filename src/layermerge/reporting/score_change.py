"""Score change: how much better or worse a network is than its original, and how sure that is.

In: the scores of both. Out: a `ScoreChange`. Example by example where both scores say which examples were right; otherwise
from the two intervals, which is wider than necessary, as both networks were shown the same examples.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from layermerge.errors import DataError
from layermerge.tasks.base import Score, right_bits

_Z = 1.959963984540054
Basis = Literal["paired", "separate", "none"]


@dataclass(frozen=True)
class ScoreChange:
    """The gain is in the unit of the score and above 0 where the network is better; `low` and `high` are its 95 % interval."""

    gain: float
    basis: Basis
    low: float | None = None
    high: float | None = None


def score_change(before: Score, after: Score) -> ScoreChange:
    """From the original's score to the network's."""
    sign = 1.0 if after.kind == "share" else -1.0
    gain = sign * (after.value - before.value)
    if before.right is not None and after.right is not None and before.count == after.count:
        try:
            return _paired(before, after)
        except DataError:  # a record that was cut short leaves the intervals
            pass
    if not all(map(_has_interval, (before, after))):
        return ScoreChange(gain, "none")
    worse, better = (after.low, after.high) if sign > 0 else (after.high, after.low)
    lower, higher = (before.low, before.high) if sign > 0 else (before.high, before.low)
    # The square-and-add interval of Newcombe (1998), method 10, from the single ones.
    below = math.hypot(_apart(after.value, worse), _apart(before.value, higher))
    above = math.hypot(_apart(after.value, better), _apart(before.value, lower))
    # A distance to the original is a difference already: nothing is added to its own interval.
    basis: Basis = "paired" if before.low == before.high else "separate"
    return ScoreChange(gain, basis, gain - below, gain + above)


def _paired(before: Score, after: Score) -> ScoreChange:
    """Of a difference of proportions on the same examples: Agresti and Min (2005), half an example added to each cell."""
    first, second = (right_bits(score.right or "", score.count) for score in (before, after))
    lost, won, count = int((first & ~second).sum()), int((second & ~first).sum()), before.count
    shown, apart, differing = count + 2, won - lost, won + lost + 1
    half = _Z * math.sqrt(differing - apart * apart / shown) / shown
    return ScoreChange(apart / count, "paired", apart / shown - half, apart / shown + half)


def _has_interval(score: Score) -> bool:
    return all(bound is not None and math.isfinite(bound) for bound in (score.low, score.high))


def _apart(value: float, bound: float | None) -> float:
    return 0.0 if bound is None else value - bound
