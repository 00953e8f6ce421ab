"""Units: what the errors of answers are counted in, so that all kinds of values count, however large and however many they are.

In: the original's answers to images. Out: a unit for each tensor. An error is squared, in units of the variance that the
original's own answers have from image to image: 0 is the original, and 1 a network that says of every image what the original
says on average. Values of one tensor may be of several kinds, as where a detector puts boxes and scores side by side: each kind
has a unit of its own, as if it were a tensor, or the scores, which vary least and tell most, would hardly count.

Nor do all places count alike. Few of a detector's anchors hold an object, and of the others nobody reads the boxes; a text map
is dark nearly everywhere. One half of an error counts alike at every place, the other by how unusual the original's answer
there is: how far, of all kinds the mean, it is from what the original says there on average. Training counts places by what
either network says: if only the original's word counted, a network that is in doubt would see something everywhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from layermerge.errors import DataError
from layermerge.tasks.answers import Answers

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


@dataclass(frozen=True)
class Places:
    """Where values of one tensor lie, side by side in kinds, and what the original says there."""

    layout: tuple[int, ...]
    kinds: int
    """The dimension of the layout along which values differ in kind."""
    usual: Tensor
    """Each value as the original has it on average."""

    def unusual(self, theirs: Tensor, weights: Tensor) -> Tensor:
        """How far answers are from the usual one at each place, of all kinds the mean; about 1 on average."""
        apart = (theirs - self.usual.to(theirs)).square() * weights.to(theirs)
        return apart.view(-1, *self.layout).mean(1 + self.kinds, keepdim=True)

    def values(self, of_places: Tensor) -> Tensor:
        """What holds for places, for each of their values."""
        return of_places.expand(-1, *self.layout).reshape(len(of_places), -1)


@dataclass(frozen=True)
class Unit:
    """What the errors of one tensor are counted in."""

    weights: Tensor
    """One a value, or one for all: a squared error, times these, is a mean over values in the units of the tensor."""
    places: Places | None = None
    """None where values are all of one kind."""
    scale: float = 1.0
    """Errors of the mean answer grow by it as unusual places count more, so they are divided by it."""

    def errors(self, mine: Tensor, theirs: Tensor, *, either: bool) -> Tensor:
        """One an image; in float64 where nothing is trained. Gradients flow into `mine`, but not through what places count.

        Places count by what the original says there, or by what either says.
        """
        theirs = theirs.to(mine.device).float()
        apart = (mine.float() - theirs).square()
        if not mine.requires_grad:
            apart = apart.double()
        weights = self.weights.to(apart)
        if self.places is None:
            return apart.mean(1) * weights
        unusual = self.places.unusual(theirs, self.weights)
        if either:
            unusual = torch.maximum(unusual, self.places.unusual(mine.detach().float(), self.weights))
        factors = counted(unusual) / self.scale
        return (apart * self.places.values(factors)) @ weights / len(weights)


def counted(unusual: Tensor) -> Tensor:
    """How much the errors at a place count: one half alike, the other by how unusual the original's answer is.

    >>> counted(torch.tensor([0.0, 1.0, 9.0])).tolist()
    [0.5, 1.0, 5.0]
    """
    return (1 + unusual) / 2


def units_of(batches: Callable[[], Iterable[Answers]], layouts: Sequence[Sequence[int]]) -> tuple[Unit, ...]:
    """Of each of the original's tensors: from its answers, read twice, and the dimensions of what one says of an image."""
    seen = [_Seen(layout) for layout in layouts]
    for batch in batches():
        for one, rows in zip(seen, batch, strict=True):
            one.add(rows)
    return _scaled([one.unit() for one in seen], batches())


def _scaled(units: Sequence[Unit], batches: Iterable[Answers]) -> tuple[Unit, ...]:
    """So that the mean answer, whose error at a place is how unusual the original's is, stays 1 apart."""
    plain, weighted = ([0.0] * len(units) for _ in range(2))
    for batch in batches:
        for number, (unit, rows) in enumerate(zip(units, batch, strict=True)):
            if unit.places is not None:
                unusual = unit.places.unusual(rows.cpu().float(), unit.weights).double()
                plain[number] += float(unusual.sum())
                weighted[number] += float((counted(unusual) * unusual).sum())
    # Where every answer is the usual one, all places count half.
    scales = [more / less if less else 0.5 for less, more in zip(plain, weighted, strict=True)]
    return tuple(
        unit if unit.places is None else replace(unit, scale=scale) for unit, scale in zip(units, scales, strict=True)
    )


def errors(mine: Answers, theirs: Answers, units: Sequence[Unit], *, either: bool = False) -> Tensor:
    """Images x tensors: squared errors in these units; to be trained on where places count by what `either` says."""
    columns = [unit.errors(got, wanted, either=either) for got, wanted, unit in zip(mine, theirs, units, strict=True)]
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

    def unit(self) -> Unit:
        if not bool(self.squares.isfinite().all()):
            raise DataError(
                "the original's outputs are not finite on the held-out images; imitation cannot measure them"
            )
        mean_square = self.squares / self.count
        variance = (self.squares - self.total.square() / self.count).clamp_min(0) / max(1, self.count - 1)
        dimension = kinds_dimension(self.layout)
        if dimension is None:
            return Unit(_weights(variance.mean()[None], mean_square.mean()[None], torch.tensor([False])))
        others = [place for place in range(len(self.layout)) if place != dimension]
        score = (self.low.amin(others) >= 0) & (self.high.amax(others) <= 1)
        found = _weights(variance.mean(others), mean_square.mean(others), score)
        across = [len(found) if place == dimension else 1 for place in range(len(self.layout))]
        weights = found.view(across).expand(self.layout).flatten()
        return Unit(weights, Places(self.layout, dimension, (self.total / self.count).flatten()))


def _weights(variance: Tensor, mean_square: Tensor, score: Tensor) -> Tensor:
    """One a kind. Kinds that vary count alike; scores, which lie in [0, 1], in proportion where they hardly do."""
    varies = variance > _CONSTANT * mean_square
    size = torch.where(mean_square > 0, mean_square, float(mean_square.mean()) or 1.0)
    unit = torch.where(varies, variance, size)
    if bool(score.any()):
        unit = torch.where(score, unit.clamp_min(_RARE * float(variance[score].max())), unit)
    counted = float((variance / unit)[varies].sum())
    return len(unit) / ((counted or len(unit)) * unit)
