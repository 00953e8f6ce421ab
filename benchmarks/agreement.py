"""Agreement of two detectors: the boxes or the text map of one, with those of the other as truth.

Arrays in, figures out. Average precision is that of one class, the area under the envelope of precision over recall, boxes
matched greedily by falling score. Intervals are bootstrapped over pictures.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from skimage.measure import label, regionprops

Array = np.ndarray[Any, np.dtype[Any]]
Part = TypeVar("Part")

STRIDES = (8, 16, 32)
SCORE_ABOVE, OVERLAP_BELOW = 0.1, 0.45
"""What ddddocr keeps of YOLOX's boxes."""
TEXT_ABOVE = 0.3
"""From which value on rapidocr takes a place of PP-OCR's map for text."""

FEWEST_PLACES = 16


@dataclass(frozen=True)
class Boxes:
    """Corners (left, top, right, bottom) in pixels, with scores, highest first."""

    corners: Array
    scores: Array

    def __len__(self) -> int:
        return len(self.scores)


@dataclass(frozen=True)
class Matches:
    """Boxes found in one picture: their scores, which of them are true, and how many there were to find."""

    scores: Array
    true: Array
    wanted: int


@dataclass(frozen=True)
class Interval:
    """A figure with its 95 % interval over pictures."""

    value: float
    low: float
    high: float


def decode(answers: Array, side: int) -> Boxes:
    """What YOLOX answers about a picture (anchors x 6: centre, log of size, objectness, class), as the boxes that are served.

    Anchors are the cells of one grid a stride, row by row; centres are relative to their cell, sizes to the stride.
    """
    grids = [np.stack(np.meshgrid(np.arange(side // s), np.arange(side // s)), -1).reshape(-1, 2) for s in STRIDES]
    cells = np.concatenate(grids)
    strides = np.repeat(STRIDES, [len(grid) for grid in grids])[:, None]
    centres, sizes = (answers[:, :2] + cells) * strides, np.exp(answers[:, 2:4]) * strides
    scores = answers[:, 4] * answers[:, 5]
    corners = np.concatenate([centres - sizes / 2, centres + sizes / 2], 1)
    kept = scores > SCORE_ABOVE
    return suppressed(corners[kept], scores[kept])


def suppressed(corners: Array, scores: Array) -> Boxes:
    """Without boxes that overlap one of a higher score."""
    left = np.argsort(-scores, kind="stable")
    chosen = []
    while len(left):
        chosen.append(left[0])
        overlap = overlaps(corners[left[:1]], corners[left[1:]])[0]
        left = left[1:][overlap <= OVERLAP_BELOW]
    order = np.array(chosen, int)
    return Boxes(corners[order], scores[order])


def overlaps(first: Array, second: Array) -> Array:
    """Intersection over union of each box with each."""
    low = np.maximum(first[:, None, :2], second[None, :, :2])
    high = np.minimum(first[:, None, 2:], second[None, :, 2:])
    common = (high - low).clip(0).prod(2)
    areas = [(boxes[:, 2:] - boxes[:, :2]).prod(1) for boxes in (first, second)]
    found: Array = common / np.maximum(areas[0][:, None] + areas[1][None] - common, 1e-9)
    return found


def match(found: Boxes, truth: Boxes, least: float) -> Matches:
    """Each found box, highest score first, takes the true box that it overlaps most of those left, if by `least`."""
    overlap = overlaps(found.corners, truth.corners)
    true = np.zeros(len(found), bool)
    for number in range(len(found) if len(truth) else 0):
        best = int(overlap[number].argmax())
        if overlap[number, best] >= least:
            true[number] = True
            overlap[:, best] = -1
    return Matches(found.scores, true, len(truth))


def average_precision(pictures: Sequence[Matches]) -> float:
    """Over all pictures; 1 where there is nothing to find and nothing was found."""
    wanted = sum(one.wanted for one in pictures)
    scores = np.concatenate([one.scores for one in pictures])
    if not wanted:
        return float(len(scores) == 0)
    true = np.concatenate([one.true for one in pictures])[np.argsort(-scores, kind="stable")]
    precision = true.cumsum() / np.arange(1, len(true) + 1)
    envelope = np.maximum.accumulate(precision[::-1])[::-1]
    return float((envelope * true).sum() / wanted)


def text_boxes(text: Array) -> Boxes:
    """The pieces of a text map as upright boxes, their mean values as scores; specks are left out."""
    pieces = [
        piece for piece in regionprops(label(text > TEXT_ABOVE), intensity_image=text) if piece.area >= FEWEST_PLACES
    ]
    pieces.sort(key=lambda piece: -piece.intensity_mean)
    corners = [(left, top, right, bottom) for top, left, bottom, right in (piece.bbox for piece in pieces)]
    return Boxes(np.array(corners, float).reshape(-1, 4), np.array([piece.intensity_mean for piece in pieces]))


def confident(boxes: Boxes, above: float) -> Boxes:
    """Those of a higher score."""
    return Boxes(boxes.corners[boxes.scores > above], boxes.scores[boxes.scores > above])


def found_share(pictures: Sequence[Matches]) -> float:
    """How many of the true boxes were found."""
    return sum(int(one.true.sum()) for one in pictures) / max(1, sum(one.wanted for one in pictures))


@dataclass(frozen=True)
class Overlap:
    """Places of one picture's maps that are text in both, and in either."""

    common: int
    either: int

    @staticmethod
    def of(found: Array, truth: Array) -> Overlap:
        mine, theirs = found > TEXT_ABOVE, truth > TEXT_ABOVE
        return Overlap(int((mine & theirs).sum()), int((mine | theirs).sum()))


def map_overlap(pictures: Sequence[Overlap]) -> float:
    """Intersection over union of the text of all pictures."""
    either = sum(one.either for one in pictures)
    return sum(one.common for one in pictures) / either if either else 1.0


def bootstrapped(
    figure: Callable[[Sequence[Part]], float], pictures: Sequence[Part], *, draws: int = 1000, seed: int = 0
) -> Interval:
    """The figure, and where it lies in 95 of 100 draws of as many pictures."""
    generator = np.random.default_rng(seed)
    found = [
        figure([pictures[place] for place in generator.integers(0, len(pictures), len(pictures))]) for _ in range(draws)
    ]
    low, high = np.quantile(found, (0.025, 0.975))
    return Interval(figure(pictures), float(low), float(high))
