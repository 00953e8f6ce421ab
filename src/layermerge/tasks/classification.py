"""Classification: images of known classes, accuracy, cross entropy.

In: training and test images in any of several forms, and how they are prepared. The held-out part is taken from the
training images and never trained on. An example looks the same for the same (seed, epoch), however batches are shared
or skipped.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from layermerge.errors import DataError
from layermerge.tasks import splits
from layermerge.tasks.base import Batch, Draw, Network, Scalar, Score, Task
from layermerge.tasks.images import Images, Indices
from layermerge.tasks.preparation import Preparation
from layermerge.tasks.streams import Stream
from layermerge.tasks.user_data import Data, as_images

# Kinds of random choice: each has a generator of its own, seeded with (seed, epoch, kind).
_ORDER, _AUGMENT, _SUBSET, _HELD_OUT = range(4)


class Classification(Task):
    """Classification of images.

    `held_out` is a part of the training images (a fraction or a number, every class in proportion) or a set of its own.
    With `held_out_from`, training uses the images before that index and the held-out part is what follows, or `held_out`
    of it when that is a number: for networks that have seen only the first part of a training set.
    """

    ceiling = 1.0

    def __init__(
        self,
        train: Data,
        test: Data,
        *,
        preparation: Preparation = Preparation(),
        held_out: float | int | Data = 0.1,
        seed: int = 0,
        eval_batch_size: int = 250,
        workers: int = 0,
        held_out_from: int | None = None,
    ) -> None:
        self._train, self._test = as_images(train, "train"), as_images(test, "test")
        self._preparation, self._seed, self._held_out_from = preparation, seed, held_out_from
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

    # -- training

    def train_batches(self, draw: Draw) -> Iterator[Batch]:
        rank, processes = draw.share
        steps, size = self.steps_per_epoch(draw.batch_size, draw.subset), draw.batch_size
        if min(size, self._count(draw.subset)) < processes:
            raise DataError(f"a batch of {size} cannot be shared among {processes} processes; take a larger batch_size")
        if isinstance(self._train, Stream):
            cut = islice(self._train.batches(size, self._count(draw.subset)), draw.first, steps)
            return ((images[rank::processes], labels[rank::processes]) for images, labels in cut)
        order = _generator(draw.seed, draw.epoch, _ORDER).permutation(self._pool(draw.seed, draw.subset))
        mine = [order[step * size : (step + 1) * size][rank::processes] for step in range(draw.first, steps)]
        varied = int(_generator(draw.seed, draw.epoch, _AUGMENT).integers(2**63))
        return self._train.batches(mine, self._preparation, varied, self._workers)

    def steps_per_epoch(self, batch_size: int, subset: int | None = None) -> int:
        return max(1, self._count(subset) // batch_size)

    def forward(self, network: Network, batch: Batch) -> Any:
        return network(batch[0].to(_device(network)))

    def loss(self, outputs: Any, batch: Batch, *, label_smoothing: float = 0.0) -> Tensor:
        logits = self._checked(outputs)
        return functional.cross_entropy(logits, batch[1].to(logits.device), label_smoothing=label_smoothing)

    def distance(self, outputs: Any, teacher: Any, temperature: float) -> Tensor:
        softened = [functional.log_softmax(_logits(given) / temperature, dim=1) for given in (outputs, teacher)]
        divergence = functional.kl_div(softened[0], softened[1], reduction="batchmean", log_target=True)
        return divergence * temperature**2  # so that gradients do not shrink with the temperature

    # -- evaluation

    def evaluate(self, network: Network) -> float:
        correct, count = self._correct(network, self._held_out, self._held_out_indices)
        return correct / count

    def test(self, network: Network) -> Score:
        correct, count = self._correct(network, self._test, _all(self._test))
        return Score("accuracy", correct / count, count, *wilson_interval(correct, count))

    def describe(self) -> dict[str, Scalar]:
        return {
            "task": "classification",
            "train": self._train.name,
            "held_out": self._held_out.name,
            "test": self._test.name,
            "train_count": self._count(None),
            "held_out_count": _size(self._held_out, self._held_out_indices),
            "test_count": _size(self._test, _all(self._test)),
            "held_out_from": self._held_out_from,
            "held_out_seed": self._seed,
            "data_fingerprint": self._fingerprint,
            **self._preparation.describe(),
        }

    @cached_property
    def _fingerprint(self) -> str:
        digest = hashlib.sha256(self._train_indices.tobytes() + self._held_out_indices.tobytes())
        for images in (self._train, self._held_out, self._test):
            digest.update(f"{images.name} {images.fingerprint()}".encode())
        return digest.hexdigest()[:16]

    def _count(self, subset: int | None) -> int:
        size = _size(self._train, self._train_indices)
        return size if subset is None else min(size, subset)

    def _pool(self, seed: int, subset: int | None) -> Indices:
        """What an epoch trains on."""
        indices = self._train_indices
        if subset is None or subset >= len(indices) or isinstance(self._train, Stream):
            return indices
        return indices[splits.subset(self._train.labels[indices], subset, _generator(seed, 0, _SUBSET))]

    def _correct(self, network: Network, images: Images | Stream, indices: Indices) -> tuple[int, int]:
        correct = count = 0
        with _evaluating(network):
            for batch, labels in self._eval_batches(images, indices):
                with torch.inference_mode():  # not around the reading: what a dataset caches may be trained on later
                    logits = self._checked(self.forward(network, (batch,)))
                correct += int((logits.argmax(1).cpu() == labels).sum())
                count += len(labels)
        return correct, count

    def _eval_batches(self, images: Images | Stream, indices: Indices) -> Iterator[tuple[Tensor, Tensor]]:
        if isinstance(images, Stream):
            return images.batches(self._eval_batch_size)
        cut = [
            indices[start : start + self._eval_batch_size] for start in range(0, len(indices), self._eval_batch_size)
        ]
        return images.batches(cut, self._preparation, None, self._workers)

    def _checked(self, outputs: Any) -> Tensor:
        """The logits; labels of all sets are looked at with the first of them, not when a training reaches a bad one."""
        logits = _logits(outputs)
        for images in (self._train, self._held_out, self._test):
            if images.largest_label >= logits.shape[1]:
                raise DataError(
                    f"{images.name} has label {images.largest_label}, but the network has {logits.shape[1]} outputs; "
                    "it is of another data set, or labels do not count from 0"
                )
        return logits


def wilson_interval(correct: int, count: int, z: float = 1.959963984540054) -> tuple[float, float]:
    """The 95 % interval of a proportion; sound near 0 and 1 too, where the normal one is not."""
    share, spread = correct / count, z * z / count
    centre = (share + spread / 2) / (1 + spread)
    half = (spread * (share * (1 - share) + spread / 4)) ** 0.5 / (1 + spread)
    return max(0.0, centre - half), min(1.0, centre + half)


def _generator(seed: int, epoch: int, kind: int) -> np.random.Generator:
    return np.random.default_rng((seed, epoch, kind))


def _all(images: Images | Stream) -> Indices:
    """Every index; none of a stream, which has no indices."""
    return np.arange(0 if isinstance(images, Stream) else len(images))


def _size(images: Images | Stream, indices: Indices) -> int:
    return images.count if isinstance(images, Stream) else len(indices)


def _logits(outputs: Any) -> Tensor:
    """The answer of a network that may give it under a name, or with others behind it."""
    given = getattr(outputs, "logits", outputs)
    if isinstance(given, (tuple, list)) and given:
        given = given[0]
    if not isinstance(given, Tensor) or given.ndim != 2:
        found = f"a tensor of shape {tuple(given.shape)}" if isinstance(given, Tensor) else f"a {type(given).__name__}"
        raise DataError(f"the network gives {found}, not images x classes; wrap it so that it returns its logits")
    return given


def _device(network: Network) -> torch.device:
    parameter = next(network.parameters(), None) if isinstance(network, nn.Module) else None
    return torch.device("cpu") if parameter is None else parameter.device


@contextmanager
def _evaluating(network: Network) -> Iterator[None]:
    """Evaluation mode, and afterwards every module as it was: some may have been in another mode than the whole."""
    if not isinstance(network, nn.Module):
        yield
        return
    before = [(module, module.training) for module in network.modules()]
    network.eval()
    try:
        yield
    finally:
        network.train(before[0][1])
        for module, training in before:
            module.training = training
