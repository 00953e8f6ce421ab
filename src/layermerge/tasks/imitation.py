"""Imitation: images without labels; a network is as good as its outputs are close to those of the original.

In: images, and the original, which `compress` and everything that opens a run provide. With d the error of a tensor
(`units`): the figure reported is d, of all tensors the mean. Training minimises log(1 + d), so that steps do not grow with
the distance of a network that was cut down, with places counted by what either network says; the score is -d / (1 + d) on
held-out images, which is -d near the original, and never falls below -1, so that it is on the scale of shares. Images that
come again and again are shown to the original once, and its outputs are held, up to a bound.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator
from functools import cached_property
from typing import Any, Unpack

import numpy as np
import torch
from torch import Tensor, nn

from layermerge.arguments import Count, checked
from layermerge.data import split
from layermerge.data.images import Images, Labelled
from layermerge.data.sets import Draw, ImageSets, Loading, Scalar
from layermerge.data.unlabelled import PartOfImages, Unlabelled, as_unlabelled
from layermerge.errors import DataError, first_line
from layermerge.files import weights_digest
from layermerge.tasks.answers import Answers, Form
from layermerge.tasks.base import Batch, Network, Score, Task, device_of, evaluating
from layermerge.tasks.calling import Call
from layermerge.tasks.units import Unit, errors, units_of

FEWEST = 20
"""Images, of which a tenth is held out, and another for the test where there is none."""
SET_ASIDE = 0.1
MOST_BYTES = 1 << 28
"""Of the original's outputs that are held."""
SCORE = "distance to the original"
_TEST = 20  # a kind of random choice, alongside those of ImageSets
_UNITS = "by kind and place"
"""How errors are counted, for provenance: scores that were counted otherwise do not mix with these."""
_ROUNDING = 1e-12
"""What float32 rounds to, squared: networks that are no farther apart are equal."""


class Imitation(Task):
    """A faster network imitates the original, on images without labels.

    `images` and `test` are a folder, a tensor or array, a map-style Dataset, a DataLoader or a list of batches; labels in
    them are ignored. A network with several inputs takes tuples, or dicts by name. Without `test`, a tenth is set aside for
    it. `teacher` is the original; without it, a run uses its own network. Other keywords are those of `Loading`.
    """

    ceiling = 0.0
    imitates = True

    @checked(DataError)
    def __init__(
        self,
        images: Unlabelled,
        test: Unlabelled | None = None,
        *,
        teacher: nn.Module | None = None,
        **loading: Unpack[Loading],
    ) -> None:
        smaller: Loading = {"eval_batch_size": 32, **loading}
        given = as_unlabelled(images, "images")
        if len(given) < FEWEST:
            raise DataError(
                f"{len(given)} images are too few to imitate with; give at least {FEWEST}, better a few hundred"
            )
        train, kept = (given, as_unlabelled(test, "test images")) if test is not None else _set_aside(given, smaller)
        held_out = smaller.get("held_out", SET_ASIDE)
        if not isinstance(held_out, (int, float)):
            smaller["held_out"] = as_unlabelled(held_out, "held-out images")
        self._sets = ImageSets(train, kept, **smaller)
        self._original = None if teacher is None else _Original(teacher, self._sets)

    @checked(DataError)
    def for_original(self, original: nn.Module) -> Imitation:
        if self._original is not None:
            return self
        bound = copy.copy(self)
        bound._original = _Original(original, self._sets)
        return bound

    @property
    def counts_unusual(self) -> bool:
        return any(unit.places is not None for unit in self._known.units)

    # -- training

    @checked(DataError)
    def train_batches(self, draw: Draw) -> Iterator[Batch]:
        call = self._known.call
        return (call.inputs(given) for given, _ in self._sets.train_batches(draw))

    @checked(DataError)
    def steps_per_epoch(self, batch_size: Count, subset: Count | None = None) -> int:
        return self._sets.steps_per_epoch(batch_size, subset)

    def example_inputs(self) -> Any:
        return self._known.call.example(next(iter(self.train_batches(Draw(seed=0, batch_size=2)))))

    def forward(self, network: Network, batch: Batch) -> Any:
        device = device_of(network)
        return self._known.call.run(network, tuple(tensor.to(device) for tensor in batch))

    def loss(self, outputs: Any, batch: Batch, *, label_smoothing: float = 0.0) -> Tensor:
        if label_smoothing:
            raise DataError("imitation has no labels to smooth; leave out label_smoothing")
        return self._mean(outputs, self._known.answers(batch), len(batch[0]))

    def distance(self, outputs: Any, teacher: Any, temperature: float) -> Tensor:  # noqa: ARG002
        """Of outputs as they are: there need not be probabilities that a temperature could soften."""
        form = self._known.form
        count = form.count(teacher)
        return self._mean(outputs, form.read(teacher, count), count)

    def _mean(self, outputs: Any, theirs: Answers, count: int) -> Tensor:
        known = self._known
        return errors(known.form.read(outputs, count), theirs, known.units, either=True).mean(0).log1p().mean()

    # -- evaluation

    def held_out_batches(self) -> Iterator[Batch]:
        call = self._known.call
        return (call.inputs(given) for given, _ in self._sets.held_out_batches())

    def divergence(self, outputs: Any, original: Any) -> Tensor:
        """The error d of each image, of all tensors the mean."""
        known = self._known
        count = known.form.count(original)
        mine, theirs = (known.form.read(given, count) for given in (outputs, original))
        return errors(mine, theirs, known.units).mean(1).expand(count)

    @checked(DataError)
    def evaluate(self, network: Network) -> float:
        found = self._errors(network, "held out", self._sets.held_out_batches).mean(0)
        return 0.0 - float((found / (1 + found)).mean())

    @checked(DataError)
    def test(self, network: Network) -> Score:
        found = self._errors(network, "test", self._sets.test_batches).mean(1)
        mean, count = float(found.mean()), len(found)
        half = 1.96 * float(found.std()) / math.sqrt(count) if count > 1 else 0.0
        if mean < _ROUNDING:
            mean = half = 0.0
        return Score(SCORE, mean, count, max(0.0, mean - half), mean + half, kind="loss")

    def describe(self) -> dict[str, Scalar]:
        return {"task": "imitation", "original": self._known.digest, "units": _UNITS, **self._sets.describe()}

    def _errors(self, network: Network, part: str, batches: Callable[[], Iterator[Labelled]]) -> Tensor:
        """Images x tensors, in float64."""
        known, found = self._known, list[Tensor]()
        with evaluating(network):
            for number, (given, _) in enumerate(batches()):
                batch = known.call.inputs(given)
                theirs = known.held_answers((part, number), batch)
                with torch.inference_mode():  # not around the reading: what a dataset caches may be trained on later
                    mine = known.form.read(self.forward(network, batch), len(batch[0]))
                    apart = errors(tuple(rows.cpu() for rows in mine), theirs, known.units)
                found.append(apart.expand(len(batch[0]), -1))
        return torch.cat(found)

    @property
    def _known(self) -> _Original:
        if self._original is None:
            raise DataError("Imitation has no network to imitate; give it one: Imitation(images, teacher=model)")
        return self._original


def _set_aside(given: Images, loading: Loading) -> tuple[Images, Images]:
    """What is left, and a tenth of the images for the test."""
    if loading.get("held_out_from") is not None:
        raise DataError("held_out_from counts images of which a part is set aside for the test; give test images too")
    generator = np.random.default_rng((loading.get("seed", 0), _TEST))
    chosen = split.subset(given.labels, max(1, round(SET_ASIDE * len(given))), generator)
    rest = np.setdiff1d(np.arange(len(given)), chosen, assume_unique=True)
    return PartOfImages(given, rest, given.name), PartOfImages(given, chosen, f"{given.name}, set aside")


class _Original:
    """The network to imitate: how it is called, the form of its answers, and what is held of them."""

    def __init__(self, network: nn.Module, sets: ImageSets) -> None:
        # A copy: what is imitated must not change while the network is trained.
        self._module = copy.deepcopy(network).eval().requires_grad_(False)
        self._sets = sets
        self._held: dict[tuple[str, int], Answers] = {}
        self._held_bytes = 0
        given, _ = next(iter(sets.train_batches(Draw(seed=0, batch_size=2))))
        self.call = Call.of(network, given)
        two = self.call.inputs(given)
        self.form = Form.of(self._outputs(tuple(tensor[:1] for tensor in two)), self._outputs(two))

    def __getstate__(self) -> dict[str, Any]:
        """Without what is held: another process has it sooner by computing it."""
        return self.__dict__ | {"_held": {}, "_held_bytes": 0}

    @cached_property
    def digest(self) -> str:
        return weights_digest(self._module)

    @cached_property
    def units(self) -> tuple[Unit, ...]:
        """Over the held-out images."""

        def batches() -> Iterator[Answers]:
            for number, (given, _) in enumerate(self._sets.held_out_batches()):
                yield self.held_answers(("held out", number), self.call.inputs(given))

        return units_of(batches, self.form.layouts)

    def answers(self, batch: Batch) -> Answers:
        return self.form.read(self._outputs(batch), len(batch[0]))

    def held_answers(self, key: tuple[str, int], batch: Batch) -> Answers:
        """The answers to a batch that comes again and again; computed again where there is no room for them."""
        if key in self._held:
            return self._held[key]
        found = tuple(rows.cpu() for rows in self.answers(batch))
        size = sum(rows.nbytes for rows in found)
        if self._held_bytes + size <= MOST_BYTES:
            self._held[key] = found
            self._held_bytes += size
        return found

    def _outputs(self, batch: Batch) -> Any:
        device = batch[0].device
        module = self._module.to(device)
        try:
            with torch.no_grad(), torch.autocast(device.type, enabled=False):
                return self.call.run(module, batch)
        except Exception as error:  # whatever the user's network raises
            shapes = ", ".join(" x ".join(map(str, tensor.shape[1:])) for tensor in batch)
            raise DataError(
                f"{type(module).__name__} cannot take images of {shapes}: {first_line(error)}; give what it was made for"
            ) from error
