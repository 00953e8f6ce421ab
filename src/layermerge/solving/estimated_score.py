"""Estimated scores: what the task would say of a choice that has not been built yet, before any training.

In: a table of divergences with whole networks in it, each of which was scored by the task. Out: a curve from the loss of a
choice to its score, with the interval in which 95 % lie: how far each of the whole networks is from what the others say.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from layermerge.solving.divergences import Losses, losses_of, whole_rows
from layermerge.solving.labels import Floats
from layermerge.tables.estimators.base import BASELINE
from layermerge.tables.table import Table
from layermerge.tasks.base import ScoreKind

FEWEST = 4
"""Whole networks below which nothing is estimated."""
_LEAST_SHARE = 0.25
"""Of the mean fall of the score: no estimate counts as surer than one of a fall this small."""
_WITHIN = 2.3
"""Standard deviations within which 95 % lie, where a dozen or so tell how large it is."""


@dataclass(frozen=True)
class EstimatedScore:
    """The task's score on held-out images; off by less than `error` in 95 % of cases."""

    value: float
    error: float
    kind: ScoreKind = "share"

    def __str__(self) -> str:
        if self.kind == "share":
            return f"{100 * self.value:.1f} ± {100 * self.error:.1f} %"
        return f"{-self.value:.4g} ± {self.error:.2g}"


@dataclass(frozen=True, eq=False)
class ScoreCurve:
    """Scores by loss: the more is lost, the lower the score."""

    losses: Floats
    scores: Floats
    least_fall: float
    off: float
    """How far estimates are off, as a share of how far the score falls: one standard deviation."""
    kind: ScoreKind

    def __call__(self, loss: float) -> EstimatedScore:
        value = _read(self.losses, self.scores, loss)
        error = _WITHIN * self.off * max(float(self.scores[0]) - value, self.least_fall)
        return EstimatedScore(value, error if loss > 0 else 0.0, self.kind)


def can_estimate(table: Table) -> bool:
    """Whether enough whole networks were scored."""
    return BASELINE in table and sum(row.score is not None for row in whole_rows(table)) >= FEWEST


def score_curve(table: Table, losses: Losses) -> ScoreCurve:
    """From the whole networks in a table and its untouched network."""
    wholes = [row for row in whole_rows(table) if row.score is not None]
    untouched = table[BASELINE].value or 0.0
    at = np.array([losses.of_whole(row.parts) for row in wholes])
    scores = np.array([row.score or 0.0 for row in wholes])
    least_fall = _LEAST_SHARE * float(np.maximum(untouched - scores, 0.0).mean())
    off = []
    for place, row in enumerate(wholes):
        others = np.arange(len(wholes)) != place
        loss = losses_of(table, but=row.key).of_whole(row.parts)
        expected = _read(*_falling(at[others], scores[others], untouched), loss)
        fall = max(untouched - expected, least_fall)
        off.append((scores[place] - expected) / fall if fall > 0 else 0.0)
    kind: ScoreKind = "loss" if table.provenance.get("score") == "loss" else "share"
    spread = float(np.sqrt(np.mean(np.square(off))))
    return ScoreCurve(*_falling(at, scores, untouched), least_fall, spread, kind)


def scores_alone(table: Table) -> Callable[[str], EstimatedScore] | None:
    """From a candidate's key to what the task would say of the network with this candidate alone, where that can be told."""
    if not can_estimate(table):
        return None
    losses = losses_of(table)
    curve = score_curve(table, losses)
    return lambda key: curve(losses.alone.get(key, 0.0))


def _read(losses: Floats, scores: Floats, loss: float) -> float:
    return float(np.interp(loss, losses, scores))


def _falling(losses: Floats, scores: Floats, untouched: float) -> tuple[Floats, Floats]:
    """The curve nearest to the scores that never rises, from the untouched network on."""
    order = np.argsort(losses, kind="stable")
    fitted = falling_fit(np.minimum(scores[order], untouched))
    return np.concatenate([[0.0], losses[order]]), np.concatenate([[untouched], fitted])


def falling_fit(values: Sequence[float] | Floats) -> Floats:
    """The nearest sequence, by squares, that never rises: neighbours that do are replaced by their mean.

    >>> falling_fit([3.0, 1.0, 2.0, 0.0]).tolist()
    [3.0, 1.5, 1.5, 0.0]
    """
    means: list[float] = []
    counts: list[int] = []
    for value in values:
        mean, count = float(value), 1
        while means and means[-1] < mean:
            earlier = counts.pop()
            mean = (means.pop() * earlier + mean * count) / (earlier + count)
            count += earlier
        means.append(mean)
        counts.append(count)
    return np.repeat(means, counts)
