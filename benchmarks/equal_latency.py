"""At the same latency: a rival's file beside LayerMerge's, which are hardly ever exactly as fast.

In: files that were trained alike, with what they take and which test images they told right. Out: by how much LayerMerge is
ahead at the rival's latency, image by image. Its accuracy there is that of the chord between its next slower and its next
faster file. The untouched network, trained alike, is the slowest. What a network loses grows the faster it gets, so that
a chord lies below the curve: whatever error this makes is in the rival's favour.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from benchmarks.evidence import Entry, Made

from layermerge.reporting.score_change import ScoreChange, score_change
from layermerge.runs.records import CONTROL
from layermerge.tasks.base import Score, right_bits

ABOUT_AS_FAST = 1.02
"""A rival that is faster than every file by less than this is compared with the fastest."""
_Z = 1.959963984540054


@dataclass(frozen=True)
class Timed:
    """A file of LayerMerge's curve."""

    budget: str
    ms: float
    score: Score


@dataclass(frozen=True)
class Beside:
    """What stands beside a rival, and how far ahead that is."""

    slower: Timed
    faster: Timed
    share: float
    """Of the faster file: 0 where the slower is as fast as the rival, 1 where the faster is."""
    change: ScoreChange

    @property
    def budgets(self) -> str:
        """Of the files that it is made of."""
        used = [self.slower.budget] * (self.share < 1) + [self.faster.budget] * (self.share > 0)
        return " and ".join(used)


def beside(rival: Entry, found: Mapping[Entry, Made], taken: Mapping[str, float]) -> Beside | None:
    """LayerMerge at a rival's latency; None where none of its files is as fast."""
    curve = layermerge_curve(rival.label, found, taken)
    if not curve or taken[rival.name] * ABOUT_AS_FAST < curve[-1].ms:
        return None
    ms = min(
        max(taken[rival.name], curve[-1].ms), curve[0].ms
    )  # beyond an end of the curve stands the file at that end
    slower = min((one for one in curve if one.ms >= ms), key=lambda one: one.ms)
    faster = max((one for one in curve if one.ms <= ms), key=lambda one: one.ms)
    share = 0.0 if slower.ms == faster.ms else (slower.ms - ms) / (slower.ms - faster.ms)
    return Beside(slower, faster, share, lead(found[rival].report.score, slower.score, faster.score, share))


def layermerge_curve(label: str, found: Mapping[Entry, Made], taken: Mapping[str, float]) -> list[Timed]:
    """LayerMerge's files that were trained alike, the slowest first, which is the untouched network."""
    timed = [
        Timed(entry.budget, taken[entry.name], made.report.score)
        for entry, made in found.items()
        if entry.label == label and entry.method in ("layermerge", CONTROL) and entry.name in taken
    ]
    if label == Entry(CONTROL, "100%", 0).label and timed:
        untouched = next(made.report.original_score for made in found.values())
        timed.append(Timed("100%", taken["original"], untouched))
    return sorted(timed, key=lambda one: -one.ms)


def lead(rival: Score, slower: Score, faster: Score, share: float) -> ScoreChange:
    """From a rival to the chord between two others, image by image, with a 95 % interval."""
    if share in (0.0, 1.0):
        return score_change(rival, faster if share else slower)
    answers = [right_bits(one.right or "", one.count).astype(float) for one in (rival, slower, faster)]
    apart = (1 - share) * answers[1] + share * answers[2] - answers[0]
    gain, half = float(np.mean(apart)), _Z * float(np.std(apart, ddof=1)) / math.sqrt(len(apart))
    return ScoreChange(gain, "paired", gain - half, gain + half)
