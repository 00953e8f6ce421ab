"""ImageSets: the images of a task, and which of them are trained on, held out, or kept for the test.

In: images in any of several forms, how they are loaded. Out: batches, addressed by a `Draw`: any process and any restart
gets the same. The held-out part is taken from the training images and never trained on. An example looks the same for the
same (seed, epoch), however batches are shared or skipped.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TypedDict, Unpack

import numpy as np

from layermerge.arguments import Count, checked
from layermerge.data import split
from layermerge.data.datasets import Data, as_images
from layermerge.data.images import Images, Indices, Labelled
from layermerge.data.preparation import Preparation
from layermerge.errors import DataError
from layermerge.files import digest

# Kinds of random choice: each has a generator of its own, seeded with (seed, epoch, kind).
_ORDER, _AUGMENT, _SUBSET, _HELD_OUT = range(4)

MOST_WORKERS = 256  # more would keep a machine from doing anything else
Scalar = str | int | float | bool | None


@checked(DataError)
@dataclass(frozen=True)
class Draw:
    """Which training batches to draw. `first` leaves out batches that were trained on; `share` is this process's part."""

    seed: int
    batch_size: int
    epoch: int = 0
    subset: Count | None = None
    """Train on this many examples, the same in every epoch; None for all."""
    first: int = 0
    share: tuple[int, int] = (0, 1)
    """(rank, processes): every process gets its slice of each batch."""

    def __post_init__(self) -> None:
        if min(self.seed, self.epoch, self.first) < 0 or self.batch_size < 1:
            raise DataError(
                "a draw needs seed >= 0, epoch >= 0, first >= 0 and batch_size >= 1; "
                f"got {self.seed}, {self.epoch}, {self.first} and {self.batch_size}"
            )
        if not 0 <= self.share[0] < self.share[1]:
            raise DataError(f"a draw's share is (rank, processes), rank counted from 0; got {self.share}")


class Loading(TypedDict, total=False):
    """How images are loaded: what every task on images takes as keywords."""

    preparation: Preparation
    """How images are scaled, varied and normalised; not at all by default."""
    held_out: float | int | Data
    """A part of the training images that is never trained on (a fraction or a number, every class in proportion) or a
    separate set; a tenth by default.
    """
    held_out_from: int | None
    """Training uses the images before this index; the held-out part is what follows, or `held_out` of it when that is a
    number: for networks that have seen only the first part of a training set."""
    seed: int
    """Seed for drawing the held-out part; 0 by default."""
    eval_batch_size: int
    """Images per batch of evaluation; 250 by default, 50 for diffusion."""
    workers: int
    """Processes that read images; 0 by default: images are read in this process."""


_DEFAULTS: Loading = {
    "preparation": Preparation(),
    "held_out": 0.1,
    "held_out_from": None,
    "seed": 0,
    "eval_batch_size": 250,
    "workers": 0,
}


class ImageSets:
    """Training, held-out and test images."""

    def __init__(self, train: Data, test: Data, **loading: Unpack[Loading]) -> None:
        self._how: Loading = {**_DEFAULTS, **loading}
        seed, size, workers = self._how["seed"], self._how["eval_batch_size"], self._how["workers"]
        if seed < 0 or size < 1 or not 0 <= workers <= MOST_WORKERS:
            raise DataError(
                f"images need seed >= 0, eval_batch_size >= 1 and 0 to {MOST_WORKERS} workers; "
                f"got {seed}, {size} and {workers}"
            )
        self.preparation, self.seed = self._how["preparation"], seed
        self.train, self._test = as_images(train, "train"), as_images(test, "test")
        self._held_out, self._train_indices, self._held_out_indices = self._split()
        for other in (self._held_out, self._test):
            if other.shape and self.train.shape and other.shape != self.train.shape:
                raise DataError(
                    f"{self.train.name} has images of {_sides(self.train)}, but {other.name} of {_sides(other)} "
                    "(channels, height, width); give one shape"
                )

    def _split(self) -> tuple[Images, Indices, Indices]:
        """What is held out, and which indices of it and of the training images are used."""
        wanted, tail_from = self._how["held_out"], self._how["held_out_from"]
        if not isinstance(wanted, (int, float)):
            if tail_from is not None:
                raise DataError(
                    "held_out_from takes the held-out part from the training images; leave out the held-out set"
                )
            held_out = as_images(wanted, "held_out")
            return held_out, np.arange(len(self.train)), np.arange(len(held_out))
        if not self.train.addressable:
            raise DataError(
                f"{self.train.name} cannot be split, as it is iterable only; give held_out=a loader of its own"
            )
        generator = _generator(self.seed, 0, _HELD_OUT)
        return self.train, *split.split(self.train.labels, wanted, tail_from, generator)

    @property
    def all(self) -> tuple[Images, ...]:
        return self.train, self._held_out, self._test

    @cached_property
    def trained_classes(self) -> int | None:
        """How many classes are trained on; None where labels are not known before they are read."""
        return len(np.unique(self.train.labels[self._train_indices])) if self.train.addressable else None

    def train_batches(self, draw: Draw) -> Iterator[Labelled]:
        """This process's part of the batches of one epoch."""
        rank, processes = draw.share
        steps, size = self.steps_per_epoch(draw.batch_size, draw.subset), draw.batch_size
        if min(size, self.train_count(draw.subset)) < processes:
            raise DataError(f"a batch of {size} cannot be shared among {processes} processes; take a larger batch_size")
        order = self._order(draw)
        mine = [order[step * size : (step + 1) * size][rank::processes] for step in range(draw.first, steps)]
        varied = int(_generator(draw.seed, draw.epoch, _AUGMENT).integers(2**63))
        return self.train.batches(mine, self.preparation, varied, self._how["workers"])

    def steps_per_epoch(self, batch_size: int, subset: int | None = None) -> int:
        return max(1, self.train_count(subset) // batch_size)

    def train_count(self, subset: int | None = None) -> int:
        size = len(self._train_indices)
        return size if subset is None else min(size, subset)

    def held_out_batches(self) -> Iterator[Labelled]:
        return self._eval_batches(self._held_out, self._held_out_indices)

    def test_batches(self) -> Iterator[Labelled]:
        return self._eval_batches(self._test, np.arange(len(self._test)))

    def describe(self) -> dict[str, Scalar]:
        """Plain values, for provenance."""
        return {
            "train": self.train.name,
            "held_out": self._held_out.name,
            "test": self._test.name,
            "train_count": self.train_count(),
            "held_out_count": len(self._held_out_indices),
            "test_count": len(self._test),
            "held_out_from": self._how["held_out_from"],
            "held_out_seed": self.seed,
            "data_fingerprint": self._fingerprint,
            **self.preparation.describe(),
        }

    @cached_property
    def _fingerprint(self) -> str:
        sets = (f"{images.name} {images.fingerprint()}" for images in dict.fromkeys(self.all))
        return digest(self._train_indices.tobytes(), self._held_out_indices.tobytes(), *sets)

    def _order(self, draw: Draw) -> Indices:
        """What an epoch trains on, in the order of its batches."""
        indices = self._train_indices
        if not self.train.addressable:
            return indices[: self.train_count(draw.subset)]
        if self.train_count(draw.subset) < len(indices):
            labels = self.train.labels[indices]
            indices = indices[split.subset(labels, self.train_count(draw.subset), _generator(draw.seed, 0, _SUBSET))]
        return _generator(draw.seed, draw.epoch, _ORDER).permutation(indices)

    def _eval_batches(self, images: Images, indices: Indices) -> Iterator[Labelled]:
        size = self._how["eval_batch_size"]
        cut = [indices[start : start + size] for start in range(0, len(indices), size)]
        return images.batches(cut, self.preparation, None, self._how["workers"])


def _generator(seed: int, epoch: int, kind: int) -> np.random.Generator:
    return np.random.default_rng((seed, epoch, kind))


def _sides(images: Images) -> str:
    return " x ".join(map(str, images.shape or ()))
