"""ImageSets: the images of a task, and which of them are trained on, held out, or kept for the test.

In: images in any of several forms, how they are prepared. Out: batches, addressed by a `Draw`. The held-out part is taken
from the training images and never trained on. An example looks the same for the same (seed, epoch), however batches are
shared or skipped.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from functools import cached_property
from itertools import islice

import numpy as np
from torch import Tensor

from layermerge.data import splits
from layermerge.data.draws import Draw, Scalar
from layermerge.data.images import Images, Indices
from layermerge.data.preparation import Preparation
from layermerge.data.streams import Stream
from layermerge.data.user_data import Data, as_images
from layermerge.errors import DataError

# Kinds of random choice: each has a generator of its own, seeded with (seed, epoch, kind).
_ORDER, _AUGMENT, _SUBSET, _HELD_OUT = range(4)

Labelled = tuple[Tensor, Tensor]


class ImageSets:
    """Training, held-out and test images.

    `held_out` is a part of the training images (a fraction or a number, every class in proportion) or a set of its own.
    With `held_out_from`, training uses the images before that index and the held-out part is what follows, or `held_out`
    of it when that is a number: for networks that have seen only the first part of a training set.
    """

    def __init__(
        self,
        train: Data,
        test: Data,
        *,
        preparation: Preparation = Preparation(),
        held_out: float | int | Data = 0.1,
        held_out_from: int | None = None,
        seed: int = 0,
        eval_batch_size: int = 250,
        workers: int = 0,
    ) -> None:
        self._train, self._test = as_images(train, "train"), as_images(test, "test")
        self.preparation, self._seed, self._held_out_from = preparation, seed, held_out_from
        self._eval_batch_size, self._workers = eval_batch_size, workers
        self._held_out: Images | Stream = self._train
        if not isinstance(held_out, (int, float)):
            if held_out_from is not None:
                raise DataError(
                    "held_out_from takes the held-out part from the training images; leave out the held-out set"
                )
            self._held_out = as_images(held_out, "held_out")
            self._train_indices, self._held_out_indices = _all(self._train), _all(self._held_out)
        elif isinstance(self._train, Stream):
            raise DataError(
                f"{self._train.name} cannot be split, as it is iterable only; give held_out=a loader of its own"
            )
        else:
            self._train_indices, self._held_out_indices = splits.split(
                self._train.labels, held_out, held_out_from, _generator(seed, 0, _HELD_OUT)
            )

    @property
    def all(self) -> tuple[Images | Stream, ...]:
        return self._train, self._held_out, self._test

    def train_batches(self, draw: Draw) -> Iterator[Labelled]:
        """This process's part of the batches of one epoch."""
        rank, processes = draw.share
        steps, size = self.steps_per_epoch(draw.batch_size, draw.subset), draw.batch_size
        if min(size, self.train_count(draw.subset)) < processes:
            raise DataError(f"a batch of {size} cannot be shared among {processes} processes; take a larger batch_size")
        if isinstance(self._train, Stream):
            cut = islice(self._train.batches(size, self.train_count(draw.subset)), draw.first, steps)
            return ((images[rank::processes], labels[rank::processes]) for images, labels in cut)
        order = _generator(draw.seed, draw.epoch, _ORDER).permutation(self._pool(draw.seed, draw.subset))
        mine = [order[step * size : (step + 1) * size][rank::processes] for step in range(draw.first, steps)]
        varied = int(_generator(draw.seed, draw.epoch, _AUGMENT).integers(2**63))
        return self._train.batches(mine, self.preparation, varied, self._workers)

    def steps_per_epoch(self, batch_size: int, subset: int | None = None) -> int:
        return max(1, self.train_count(subset) // batch_size)

    def train_count(self, subset: int | None = None) -> int:
        size = _size(self._train, self._train_indices)
        return size if subset is None else min(size, subset)

    def held_out_batches(self) -> Iterator[Labelled]:
        return self._eval_batches(self._held_out, self._held_out_indices)

    def test_batches(self) -> Iterator[Labelled]:
        return self._eval_batches(self._test, _all(self._test))

    def describe(self) -> dict[str, Scalar]:
        """Plain values, for provenance."""
        return {
            "train": self._train.name,
            "held_out": self._held_out.name,
            "test": self._test.name,
            "train_count": self.train_count(),
            "held_out_count": _size(self._held_out, self._held_out_indices),
            "test_count": _size(self._test, _all(self._test)),
            "held_out_from": self._held_out_from,
            "held_out_seed": self._seed,
            "data_fingerprint": self._fingerprint,
            **self.preparation.describe(),
        }

    @cached_property
    def _fingerprint(self) -> str:
        digest = hashlib.sha256(self._train_indices.tobytes() + self._held_out_indices.tobytes())
        for images in self.all:
            digest.update(f"{images.name} {images.fingerprint()}".encode())
        return digest.hexdigest()[:16]

    def _pool(self, seed: int, subset: int | None) -> Indices:
        """What an epoch trains on."""
        indices = self._train_indices
        if subset is None or subset >= len(indices) or isinstance(self._train, Stream):
            return indices
        return indices[splits.subset(self._train.labels[indices], subset, _generator(seed, 0, _SUBSET))]

    def _eval_batches(self, images: Images | Stream, indices: Indices) -> Iterator[Labelled]:
        if isinstance(images, Stream):
            return images.batches(self._eval_batch_size)
        cut = [
            indices[start : start + self._eval_batch_size] for start in range(0, len(indices), self._eval_batch_size)
        ]
        return images.batches(cut, self.preparation, None, self._workers)


def _generator(seed: int, epoch: int, kind: int) -> np.random.Generator:
    return np.random.default_rng((seed, epoch, kind))


def _all(images: Images | Stream) -> Indices:
    """Every index; none of a stream, which has no indices."""
    return np.arange(0 if isinstance(images, Stream) else len(images))


def _size(images: Images | Stream, indices: Indices) -> int:
    return images.count if isinstance(images, Stream) else len(indices)
