"""Sample: the images that a calibration looks at, cut into batches that are fitted on and batches that are held out.

In: a tensor, batches, images or a task. Out: the inputs of the network, a fifth of the images held out: every fifth one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from math import prod
from typing import Annotated, Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from layermerge.arguments import READ_INSIDE
from layermerge.data.images import Images
from layermerge.data.preparation import Preparation
from layermerge.data.sets import Draw
from layermerge.errors import DataError
from layermerge.tasks.base import Task
from layermerge.tracing.inputs import Inputs
from layermerge.tracing.structure import Structure

FEWEST = 20
"""Images, of which a fifth is held out."""
_READ_AT_ONCE = 64
_LARGEST_MAP_BYTES = 16 << 20
"""Of a batch, at the network's largest feature map."""
_MOST_IMAGES = 64
"""In a batch."""
_EVERY = 5

Sources: TypeAlias = Annotated[Tensor | Iterable[Any] | Images | Task, READ_INSIDE]
"""Images of any kind, labelled or not."""


@dataclass(frozen=True)
class Sample:
    """Batches of inputs, and how many images are in them."""

    fitted: tuple[Inputs, ...]
    held_out: tuple[Inputs, ...]
    count: int

    @staticmethod
    def of(images: Sources, example: Inputs, count: int, batch_size: int) -> Sample:
        """The first `count` images, as inputs like the example, in batches of at most `batch_size`."""
        fitted, held_out, seen = list[Inputs](), list[Inputs](), 0
        for given in _batches(images, count):
            inputs = _like(given, example)
            size = min(inputs.batch, count - seen)
            places = torch.arange(seen, seen + size)
            seen += size
            for into, chosen in ((fitted, places % _EVERY != _EVERY - 1), (held_out, places % _EVERY == _EVERY - 1)):
                for part in torch.split(chosen.nonzero().flatten(), batch_size):
                    into += [_taken(inputs, part)] if len(part) else []
            if seen >= count:
                break
        if seen < FEWEST:
            raise DataError(
                f"{seen} images are too few to calibrate with; give at least {FEWEST}, better a few hundred"
            )
        return Sample(tuple(fitted), tuple(held_out), seen)


def batch_size_for(structure: Structure) -> int:
    """How many images a network is run on at a time."""
    shapes = [shape for layer in structure.layers for shape in (layer.input_shape, layer.output_shape)]
    return max(1, min(_MOST_IMAGES, _LARGEST_MAP_BYTES // (4 * max(map(prod, shapes)))))


def held_out_inputs(task: Task, example: Inputs, batch_size: int, most: int) -> tuple[Inputs, ...]:
    """What the task calls a network with, for `most` of its held-out images, in batches of at most `batch_size`."""
    found, left = list[Inputs](), most
    for batch in task.held_out_batches():
        inputs = _like(_recorded(task, batch), example)
        taken = torch.arange(min(inputs.batch, left))
        found += [_taken(inputs, part) for part in torch.split(taken, batch_size) if len(part)]
        left -= len(taken)
        if not left:
            break
    if not found:
        raise DataError(f"{type(task).__name__} has no held-out batches to compare outputs on; hold some images out")
    return tuple(found)


def with_example(images: Sources, count: int, number: int) -> tuple[Iterable[Any], Inputs]:
    """Batches of images, and the first of them as what a network takes that has this number of inputs."""
    batches = _batches(images, count)
    first = next(batches, None)
    if first is None:
        raise DataError(f"there are no images; give at least {FEWEST}, better a few hundred")
    if isinstance(first, Mapping):
        return chain([first], batches), Inputs((), dict(first))
    parts = tuple(first) if isinstance(first, (tuple, list)) else (first,)
    return chain([first], batches), Inputs(parts[:number], {})


def _batches(images: Any, count: int) -> Iterator[Any]:
    """What each batch gives the network: a tensor, a tuple or a dict of inputs; labels may follow."""
    if isinstance(images, Tensor):
        if images.ndim == 0:
            raise DataError("images are a single number; give a tensor of images x channels x height x width")
        yield from torch.split(images, _READ_AT_ONCE)
    elif isinstance(images, Task):
        draw = Draw(seed=0, batch_size=_READ_AT_ONCE, subset=count)
        for batch in images.train_batches(draw):
            yield _recorded(images, batch)
    elif isinstance(images, Images):
        indices = np.arange(min(count, len(images))) * (len(images) // min(count, len(images)))
        cut = [indices[start : start + _READ_AT_ONCE] for start in range(0, len(indices), _READ_AT_ONCE)]
        yield from images.batches(cut, Preparation(), None)
    elif isinstance(images, Iterable) and not isinstance(images, (str, bytes, Mapping)):
        yield from images
    else:
        raise DataError(
            f"images are a {type(images).__name__}; give a tensor, batches of images such as a DataLoader, or a task"
        )


def _recorded(task: Task, batch: Any) -> Any:
    """What the task calls a network with, for a batch of its own."""
    calls: list[Any] = []

    def network(*args: Any, **kwargs: Any) -> None:
        calls.append(kwargs or args)

    task.forward(network, batch)
    return calls[0]


def _like(given: Any, example: Inputs) -> Inputs:
    """A batch as the network takes it: as many inputs as the example has, by name where it has names."""
    if example.kwargs:
        if not isinstance(given, Mapping) or not example.kwargs.keys() <= given.keys():
            names = ", ".join(example.kwargs)
            raise DataError(f"the network takes its inputs by name; give batches that are dicts with {names}")
        inputs = Inputs((), {name: given[name] for name in example.kwargs})
    else:
        parts = tuple(given) if isinstance(given, (tuple, list)) else (given,)
        if len(parts) < len(example.args):
            raise DataError(
                f"the network takes {len(example.args)} inputs, but a batch holds {len(parts)}; give tuples of all of them"
            )
        inputs = Inputs(parts[: len(example.args)], {})
    for mine, wanted in zip(inputs.tensors, example.tensors, strict=False):
        if mine.shape[1:] != wanted.shape[1:]:
            raise DataError(
                f"a batch of images has shape {tuple(mine.shape)}, but the network was traced with "
                f"{tuple(wanted.shape)}; give images of that size, with a leading batch dimension"
            )
    if len(inputs.tensors) != len(example.tensors):
        raise DataError("a batch of images holds something that is not a tensor; give tensors")
    return inputs


def _taken(inputs: Inputs, chosen: Tensor) -> Inputs:
    batch = inputs.batch

    def take(leaf: Any) -> Any:
        carries = isinstance(leaf, Tensor) and leaf.dim() > 0 and leaf.shape[0] == batch
        return leaf.detach()[chosen.to(leaf.device)] if carries else leaf

    return Inputs(tuple(map(take, inputs.args)), {name: take(leaf) for name, leaf in inputs.kwargs.items()})
