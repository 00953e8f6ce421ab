"""Units: what the errors of answers are counted in, so that all kinds of values count, however large and however many they are.

In: the original's answers to images. Out: a weight for each value. An error is squared, in units of the variance that the
original's own answers have from image to image: 0 is the original, and 1 a network that says of every image what the original
says on average. Values of one tensor may be of several kinds, as where a detector puts boxes and scores side by side: each kind
has a unit of its own, as if it were a tensor, or the scores, which vary least and tell most, would hardly count.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeAlias

import torch
from torch import Tensor

from layermerge.errors import DataError
from layermerge.tasks.answers import Answers

Weights: TypeAlias = Tensor
"""One a value, or one for all; a squared error, times these, is a mean over values in the units of the tensor."""

_CONSTANT = 1e-6
"""A variance below this share of the mean square, a thousandth in size, is that of an output that does not depend on images."""
_RARE = 0.01
"""Scores of what hardly occurs, such as classes that no image shows, are counted in this share of the unit of those that do."""


def kinds_dimension(layout: Sequence[int]) -> int | None:
    """Along which dimension values differ in kind; None where all are of one.

    Of a map (channels x height x width) its channels, of two dimensions (anchors x what is said of each, or vice versa)
    the shorter, of more than three the last.

    >>> [kinds_dimension(layout) for layout in [(10,), (3549, 6), (84, 8400), (21, 64, 64), (3, 52, 52, 85)]]
    [None, 1, 0, 0, 3]
    """
    if len(layout) < 2:
        return None
    if len(layout) == 2:
        return 0 if layout[0] < layout[1] else 1
    return 0 if len(layout) == 3 else len(layout) - 1


def weights_of(batches: Iterable[Answers], layouts: Sequence[Sequence[int]]) -> tuple[Weights, ...]:
    """Of each of the original's tensors, from its answers, and the dimensions of what one says of an image."""
    seen = [_Seen(layout) for layout in layouts]
    for batch in batches:
        for one, rows in zip(seen, batch, strict=True):
            one.add(rows)
    return tuple(one.weights() for one in seen)


def errors(mine: Answers, theirs: Answers, weights: Sequence[Weights]) -> Tensor:
    """Images x tensors: squared errors in these units; in float64 where nothing is trained. Gradients flow into `mine`."""
    columns = []
    for got, wanted, weight in zip(mine, theirs, weights, strict=True):
        apart = (got.float() - wanted.to(got.device).float()).square()
        if not got.requires_grad:
            apart = apart.double()
        weight = weight.to(apart)
        columns.append(apart.mean(1) * weight if len(weight) == 1 else apart @ weight / len(weight))
    count = max(map(len, columns))
    return torch.stack([column.expand(count) for column in columns], 1)


class _Seen:
    """Sums over all images of one tensor, in float64."""

    def __init__(self, layout: Sequence[int]) -> None:
        self.layout, self.count = tuple(layout), 0
        self.total = torch.zeros(self.layout, dtype=torch.float64)
        self.squares = self.total.clone()
        self.low, self.high = (torch.full(self.layout, sign * float("inf")) for sign in (1, -1))

    def add(self, rows: Tensor) -> None:
        for row in rows.detach().cpu().float():  # one by one: maps in float64 take much memory
            values = row.view(self.layout)
            self.total += values
            self.squares += values.double().square()
            torch.minimum(self.low, values, out=self.low)
            torch.maximum(self.high, values, out=self.high)
        self.count += len(rows)

    def weights(self) -> Weights:
        if not bool(self.squares.isfinite().all()):
            raise DataError(
                "the original's outputs are not finite on the held-out images; imitation cannot measure them"
            )
        mean_square = self.squares / self.count
        variance = (self.squares - self.total.square() / self.count).clamp_min(0) / max(1, self.count - 1)
        dimension = kinds_dimension(self.layout)
        if dimension is None:
            return _weights(variance.mean()[None], mean_square.mean()[None], torch.tensor([False]))
        others = [place for place in range(len(self.layout)) if place != dimension]
        score = (self.low.amin(others) >= 0) & (self.high.amax(others) <= 1)
        found = _weights(variance.mean(others), mean_square.mean(others), score)
        if len(found) == 1:
            return found
        across = [len(found) if place == dimension else 1 for place in range(len(self.layout))]
        return found.view(across).expand(self.layout).flatten()


def _weights(variance: Tensor, mean_square: Tensor, score: Tensor) -> Weights:
    """One a kind. Kinds that vary count alike; scores, which lie in [0, 1], in proportion where they hardly do."""
    varies = variance > _CONSTANT * mean_square
    size = torch.where(mean_square > 0, mean_square, float(mean_square.mean()) or 1.0)
    unit = torch.where(varies, variance, size)
    if bool(score.any()):
        unit = torch.where(score, unit.clamp_min(_RARE * float(variance[score].max())), unit)
    counted = float((variance / unit)[varies].sum())
    return len(unit) / ((counted or len(unit)) * unit)
