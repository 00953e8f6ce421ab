"""Split: which examples are trained on and which are held out. Seeded, disjoint, stratified by class.

In: labels, a number, a generator. Out: sorted indices. The same labels, number and seed give the same split anywhere.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from layermerge.data.images import Indices, Labels
from layermerge.errors import DataError

Sizes = npt.NDArray[np.int64]


def proportional(sizes: Sizes, count: int) -> Sizes:
    """`count` divided among classes of these sizes: each gets its exact share rounded down or up, the sum is `count`."""
    exact = sizes * count  # in units of 1 / sizes.sum(), so that rounding is exact
    parts, remainders = np.divmod(exact, sizes.sum())
    parts[np.argsort(-remainders, kind="stable")[: count - parts.sum()]] += 1
    return np.asarray(parts, dtype=np.int64)


def stratified(labels: Labels, parts: Sizes, generator: np.random.Generator) -> Indices:
    """This many examples of each class, at random; sorted."""
    sizes = np.bincount(labels)
    order = generator.permutation(len(labels))
    order = order[np.argsort(labels[order], kind="stable")]  # class after class, each in random order
    place = np.arange(len(labels)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    return np.sort(order[place < np.repeat(parts, sizes)])


def subset(labels: Labels, count: int, generator: np.random.Generator) -> Indices:
    """`count` examples, every class in proportion."""
    return stratified(labels, proportional(np.bincount(labels), count), generator)


def held_out(labels: Labels, count: int, generator: np.random.Generator) -> Indices:
    """About `count` examples: in proportion, but every class of two or more has one on each side at least."""
    sizes = np.bincount(labels)
    most = np.maximum(sizes - 1, 0)  # the only image of a class is trained on
    return stratified(labels, np.clip(proportional(sizes, count), np.minimum(most, 1), most), generator)


def split(
    labels: Labels, count: float | int, tail_from: int | None, generator: np.random.Generator
) -> tuple[Indices, Indices]:
    """Indices to train on and indices held out: `count` of all, as a fraction or a number.

    With `tail_from`, only what comes before that index is trained on, and the rest is held out, or `count` of it when
    that is a number.
    """
    if tail_from is not None and not 0 < tail_from < len(labels):
        raise DataError(f"held_out_from={tail_from} leaves nothing on one side of the {len(labels)} training images")
    if isinstance(count, float) and not 0 < count < 1:
        raise DataError(f"held_out={count} is not a fraction between 0 and 1; a number of images is a whole number")
    source = np.arange(tail_from or 0, len(labels))
    most = len(source) if tail_from else len(source) - 1
    wanted = count if isinstance(count, int) else len(source) if tail_from else round(count * len(source))
    if not 1 <= wanted <= most:
        raise DataError(f"held_out={count} of {len(source)} images leaves nothing to hold out, or nothing to train on")
    chosen = source if wanted == len(source) else source[held_out(labels[source], wanted, generator)]
    rest = np.arange(tail_from) if tail_from else np.setdiff1d(source, chosen, assume_unique=True)
    return rest, chosen
