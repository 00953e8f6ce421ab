"""Diffusion: networks that predict the noise in an image, called as net(noisy images, time steps, ...).

In: images, a noise schedule, the pretrained network. Time steps and noise are addressed like everything a task draws: in
evaluation each image meets the same time step and noise for every network. The score is the negative loss, with the
pretrained network's own as the unit, so that importance is exp(-(loss - base) / pretrained loss).
"""

from __future__ import annotations

import copy
import inspect
import math
from collections.abc import Callable, Iterable, Iterator
from functools import cached_property
from typing import Any, Unpack

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from layermerge.arguments import Count, checked
from layermerge.data.datasets import Data
from layermerge.data.images import Labelled
from layermerge.data.sets import Draw, ImageSets, Loading, Scalar
from layermerge.errors import DataError, first_line
from layermerge.files import weights_digest
from layermerge.tasks.base import Batch, Network, Score, Task, answer_of, device_of, evaluating
from layermerge.tasks.noise import NoiseSchedule

Conditions = Callable[[Tensor], tuple[Tensor, ...]]
"""From the labels of a batch to what else the network takes: class labels, or the embedding of a text for each."""

_TRAIN, _HELD_OUT, _TEST = 10, 11, 12  # kinds of random choice, alongside those of ImageSets
_GOLDEN = (math.sqrt(5) - 1) / 2


class Diffusion(Task):
    """Prediction of noise. Images are given in [0, 1] and reach the network in [-1, 1]; with `centred=False`, for latents, as
    they are.

    `schedule` is a diffusers scheduler or a NoiseSchedule, by default that of DDPM. Other keywords are those of `Loading`.
    """

    ceiling = 0.0

    @checked(DataError)
    def __init__(
        self,
        train: Data,
        test: Data,
        pretrained: nn.Module,
        *,
        schedule: Any = None,
        conditions: Conditions | None = None,
        centred: bool = True,
        **loading: Unpack[Loading],
    ) -> None:
        smaller: Loading = {"eval_batch_size": 50, **loading}
        self._sets = ImageSets(train, test, **smaller)
        if self._sets.preparation.normalise is not None:
            raise DataError("diffusion scales images to [-1, 1] itself; leave out the normalisation")
        given = NoiseSchedule.from_betas() if schedule is None else schedule
        self.schedule = given if isinstance(given, NoiseSchedule) else NoiseSchedule.of(given)
        self._conditions, self._centred = conditions, centred
        # A copy: the unit of the score must not change while the network is trained.
        self._pretrained = copy.deepcopy(pretrained).eval().requires_grad_(False)
        self._require_fit(pretrained)

    # -- training

    @checked(DataError)
    def train_batches(self, draw: Draw) -> Iterator[Batch]:
        rank, processes = draw.share
        whole = min(draw.batch_size, self._sets.train_count(draw.subset))
        for step, (images, labels) in enumerate(self._sets.train_batches(draw), start=draw.first):
            generator = np.random.default_rng((draw.seed, draw.epoch, step, _TRAIN))
            times = generator.integers(self.schedule.steps, size=whole)
            noise = generator.standard_normal((whole, *images.shape[1:]), dtype=np.float32)
            mine = slice(rank, None, processes)
            yield self._noisy(images, labels, torch.from_numpy(times[mine]), torch.from_numpy(noise[mine]))

    @checked(DataError)
    def steps_per_epoch(self, batch_size: Count, subset: Count | None = None) -> int:
        return self._sets.steps_per_epoch(batch_size, subset)

    def example_inputs(self) -> Any:
        noisy, times, _, *extras = next(iter(self.train_batches(Draw(seed=0, batch_size=2))))
        return (noisy, times, *extras)

    def forward(self, network: Network, batch: Batch) -> Any:
        noisy, times, _, *extras = (tensor.to(device_of(network)) for tensor in batch)
        return network(noisy, times, *extras)

    def loss(self, outputs: Any, batch: Batch, *, label_smoothing: float = 0.0) -> Tensor:
        if label_smoothing:
            raise DataError("diffusion has no labels to smooth; leave out label_smoothing")
        predicted = _prediction(outputs, batch[2])
        return functional.mse_loss(predicted, batch[2].to(predicted))

    def distance(self, outputs: Any, teacher: Any, temperature: float) -> Tensor:  # noqa: ARG002
        """Of predictions, as they are: there are no probabilities that a temperature could soften."""
        theirs = _prediction(teacher)
        return functional.mse_loss(_prediction(outputs, theirs), theirs)

    # -- evaluation

    def held_out_batches(self) -> Iterator[Batch]:
        return self._noised(self._sets.held_out_batches(), _HELD_OUT)

    def divergence(self, outputs: Any, original: Any) -> Tensor:
        """Squared differences of predictions, in units of the pretrained network's loss."""
        theirs = _prediction(original)
        difference = _prediction(outputs, theirs).double() - theirs.double()
        return difference.square().flatten(1).mean(1) / self._unit

    @checked(DataError)
    def evaluate(self, network: Network) -> float:
        return -self._mean_loss(network) / self._unit

    @checked(DataError)
    def test(self, network: Network) -> Score:
        losses = self.test_losses(network)
        mean = float(losses.mean())
        half = 1.96 * float(losses.std()) / math.sqrt(len(losses)) if len(losses) > 1 else 0.0
        return Score("noise loss", mean, len(losses), mean - half, mean + half, kind="loss")

    @checked(DataError)
    def test_losses(self, network: Network) -> Tensor:
        """Of each test image, always with the same noise: two networks can be compared image by image."""
        return self._losses(network, self._sets.test_batches(), _TEST)

    def describe(self) -> dict[str, Scalar]:
        return {
            "task": "diffusion",
            "schedule": self.schedule.fingerprint(),
            "centred": self._centred,
            "conditioned": self._conditions is not None,
            "pretrained": weights_digest(self._pretrained),
            **self._sets.describe(),
        }

    @cached_property
    def _unit(self) -> float:
        unit = self._mean_loss(self._pretrained)
        if not (math.isfinite(unit) and unit > 0):
            raise DataError(f"the pretrained network's loss is {unit}, which cannot be a unit; give trained weights")
        return unit

    def _mean_loss(self, network: Network) -> float:
        return float(self._losses(network, self._sets.held_out_batches(), _HELD_OUT).mean())

    def _losses(self, network: Network, batches: Iterable[Labelled], kind: int) -> Tensor:
        """Of each image, in float64."""
        losses: list[Tensor] = []
        with evaluating(network):
            for batch in self._noised(batches, kind):
                with torch.inference_mode():
                    predicted = _prediction(self.forward(network, batch), batch[2]).cpu().double()
                losses.append((predicted - batch[2].double()).square().flatten(1).mean(1))
        return torch.cat(losses)

    def _noised(self, batches: Iterable[Labelled], kind: int) -> Iterator[Batch]:
        """With the same noise each time; time steps are spread evenly over the images."""
        generator = np.random.default_rng((self._sets.seed, kind))
        seen = 0
        for images, labels in batches:
            places = np.arange(seen, seen + len(images))
            times = torch.from_numpy((places * _GOLDEN % 1.0 * self.schedule.steps).astype(np.int64))
            noise = torch.from_numpy(generator.standard_normal(tuple(images.shape), dtype=np.float32))
            yield self._noisy(images, labels, times, noise)
            seen += len(images)

    def _noisy(self, images: Tensor, labels: Tensor, times: Tensor, noise: Tensor) -> Batch:
        """(noisy images, time steps, what is to be predicted, and whatever else the network takes)."""
        if self._centred:
            if images.numel() and not 0 <= float(images.min()) <= float(images.max()) <= 1:
                raise DataError(
                    f"diffusion takes images in [0, 1], but these range from {float(images.min()):.3g} to "
                    f"{float(images.max()):.3g}; leave out their normalisation, or set centred=False for latents"
                )
            images = images * 2 - 1
        extras = self._conditions(labels) if self._conditions else ()
        return self.schedule.add_noise(images, noise, times), times, self.schedule.target(images, noise, times), *extras

    def _require_fit(self, pretrained: nn.Module) -> None:
        """Tries the network once, so that a misfit is reported before anything is measured."""
        name = type(pretrained).__name__
        batch = next(iter(self.train_batches(Draw(seed=0, batch_size=2))))
        inputs = 2 + len(batch) - 3
        if not _takes(pretrained, inputs):
            raise DataError(
                f"{name} does not take {inputs} inputs, but diffusion calls it as net(images, time steps"
                f"{', ...' if inputs > 2 else ''}); give a network with a time input"
            )
        try:
            with evaluating(pretrained), torch.inference_mode():
                outputs = self.forward(pretrained, batch)
        except Exception as error:  # whatever the user's network raises
            shape = " x ".join(map(str, batch[0].shape[1:]))
            raise DataError(
                f"{name} cannot take images of {shape} with their time steps: {first_line(error)}"
            ) from error
        _prediction(outputs, batch[2])


def _takes(network: nn.Module, count: int) -> bool:
    """Whether this many positional inputs fit the signature; one that cannot be read is given the benefit of the doubt."""
    try:
        signature = inspect.signature(network.forward)
    except (TypeError, ValueError):
        return True
    try:
        signature.bind(*range(count))
    except TypeError:
        return False
    return True


def _prediction(outputs: Any, target: Tensor | None = None) -> Tensor:
    """The answer of a network that may give it as `.sample`, or first of several; of the target's shape."""
    given = answer_of(outputs, "sample")
    if not isinstance(given, Tensor):
        raise DataError(
            f"the network gives a {type(given).__name__}, not an image; return a tensor or an object with .sample"
        )
    if target is not None and given.shape != target.shape:
        raise DataError(
            f"the network gives {tuple(given.shape)} for images of {tuple(target.shape)}; "
            "diffusion needs as many channels out as in, without learned variances"
        )
    return given
