"""Classification: images of known classes, accuracy, cross entropy."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator
from typing import Any, Unpack

import torch
from torch import Tensor
from torch.nn import functional

from layermerge.arguments import Count, checked
from layermerge.data.datasets import Data
from layermerge.data.images import Labelled
from layermerge.data.sets import Draw, ImageSets, Loading, Scalar
from layermerge.errors import DataError
from layermerge.tasks.base import Batch, Network, Score, Task, answer_of, bits_text, device_of, evaluating


class Classification(Task):
    """Classification of images.

    `train` and `test` are what `load_images` gives, a pair (images, labels) of arrays, a map-style Dataset or a DataLoader.
    Keywords are those of `Loading`: `preparation`, `held_out`, `held_out_from`, `seed`, `eval_batch_size`, `workers`.
    """

    ceiling = 1.0

    @checked(DataError)
    def __init__(self, train: Data, test: Data, **loading: Unpack[Loading]) -> None:
        self._sets = ImageSets(train, test, **loading)
        self._compared = False

    @checked(DataError)
    def train_batches(self, draw: Draw) -> Iterator[Batch]:
        return self._sets.train_batches(draw)

    @checked(DataError)
    def steps_per_epoch(self, batch_size: Count, subset: Count | None = None) -> int:
        return self._sets.steps_per_epoch(batch_size, subset)

    def forward(self, network: Network, batch: Batch) -> Any:
        return network(batch[0].to(device_of(network)))

    def loss(self, outputs: Any, batch: Batch, *, label_smoothing: float = 0.0) -> Tensor:
        logits = self._checked(outputs)
        return functional.cross_entropy(logits, batch[1].to(logits.device), label_smoothing=label_smoothing)

    def distance(self, outputs: Any, teacher: Any, temperature: float) -> Tensor:
        softened = [functional.log_softmax(_logits(given) / temperature, dim=1) for given in (outputs, teacher)]
        divergence = functional.kl_div(softened[0], softened[1], reduction="batchmean", log_target=True)
        return divergence * temperature**2  # so that gradients do not shrink with the temperature

    def held_out_batches(self) -> Iterator[Batch]:
        return self._sets.held_out_batches()

    def divergence(self, outputs: Any, original: Any) -> Tensor:
        """The Kullback-Leibler divergence of the network's classes from the original's."""
        mine, theirs = (functional.log_softmax(_logits(given).double(), dim=1) for given in (outputs, original))
        return (theirs.exp() * (theirs - mine)).sum(1)

    @checked(DataError)
    def evaluate(self, network: Network) -> float:
        return float(self._right(network, self._sets.held_out_batches()).double().mean())

    @checked(DataError)
    def test(self, network: Network) -> Score:
        right = self._right(network, self._sets.test_batches())
        correct, count = int(right.sum()), len(right)
        interval = wilson_interval(correct, count)
        return Score("accuracy", correct / count, count, *interval, right=bits_text(right))

    def describe(self) -> dict[str, Scalar]:
        return {"task": "classification", **self._sets.describe()}

    def _right(self, network: Network, batches: Iterable[Labelled]) -> Tensor:
        """Whether the network is right, image by image."""
        right = []
        with evaluating(network):
            for images, labels in batches:
                with torch.inference_mode():  # not around the reading: what a dataset caches may be trained on later
                    logits = self._checked(self.forward(network, (images,)))
                right.append(logits.argmax(1).cpu() == labels)
        return torch.cat(right)

    def _checked(self, outputs: Any) -> Tensor:
        """The logits; labels of all sets are looked at with the first of them, not when a training reaches a bad one."""
        logits = _logits(outputs)
        width, trained = logits.shape[1], self._sets.trained_classes
        for images in self._sets.all:
            if images.largest_label >= width:
                raise DataError(
                    f"{images.name} has label {images.largest_label}, but the network has {width} outputs; "
                    "it belongs to another data set, or labels do not count from 0"
                )
        if not self._compared and trained is not None and trained < width:
            warnings.warn(
                f"{self._sets.train.name} has images of {trained} of the network's {width} classes; "
                "scores say nothing about the others",
                stacklevel=2,
            )
        self._compared = True
        return logits


def wilson_interval(correct: int, count: int, z: float = 1.959963984540054) -> tuple[float, float]:
    """The 95 % interval of a proportion; sound near 0 and 1 too, where the normal one is not."""
    share, spread = correct / count, z * z / count
    centre = (share + spread / 2) / (1 + spread)
    half = (spread * (share * (1 - share) + spread / 4)) ** 0.5 / (1 + spread)
    return max(0.0, centre - half), min(1.0, centre + half)


def _logits(outputs: Any) -> Tensor:
    """The answer of a network that may give it under a name, or with others after it."""
    given = answer_of(outputs, "logits")
    if not isinstance(given, Tensor) or given.ndim != 2:
        found = f"a tensor of shape {tuple(given.shape)}" if isinstance(given, Tensor) else f"a {type(given).__name__}"
        raise DataError(f"the network gives {found}, not images x classes; wrap it so that it returns its logits")
    return given
