"""Examples: images as a network's file takes them, cut into those that ranges are taken of and those that are held out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor, nn

from layermerge.calibration.sample import Sample, Sources, with_example
from layermerge.data.preparation import Preparation
from layermerge.data.unlabelled import as_unlabelled
from layermerge.errors import DataError
from layermerge.quantization.tensors import Array
from layermerge.runtimes.onnx_file import as_array
from layermerge.tracing.inputs import Inputs

Feed = dict[str, Array]
_NUMBERS_AT_ONCE = 4 << 20
"""Of the inputs of a batch."""
_READ_AT_ONCE = 64


@dataclass(frozen=True)
class Examples:
    """Batches by the names of a file's inputs."""

    fitted: list[Feed]
    held_out: list[Feed]
    count: int

    @staticmethod
    def of(images: Sources | str | Path, example: Inputs, count: int, names: Sequence[str]) -> Examples:
        """`names` are those of the inputs that the file reads, in the order of the example."""
        if isinstance(images, (str, Path)):
            images = _folder(Path(images).expanduser(), example, count)
        size = sum(prod(tensor.shape[1:]) for tensor in example.tensors)
        sample = Sample.of(images, example, count, max(1, min(_READ_AT_ONCE, _NUMBERS_AT_ONCE // max(size, 1))))
        fitted, held_out = ([_feed(one, names) for one in part] for part in (sample.fitted, sample.held_out))
        return Examples(fitted, held_out, sample.count)


def example_for_module(
    module: nn.Module, images: Sources | str | Path, count: int
) -> tuple[Sources | str | Path, Inputs]:
    """What a network takes: as it was traced, or else as the first batch of images is."""
    surgery = getattr(module, "surgery", None)
    if surgery is not None:
        return images, surgery.inputs
    if isinstance(images, (str, Path)):
        raise DataError("a folder does not say which size this network takes; give a tensor, a DataLoader or a task")
    return with_example(images, count, 1)


def _feed(inputs: Inputs, names: Sequence[str]) -> Feed:
    if inputs.kwargs:
        return {name: as_array(inputs.kwargs[name]) for name in names}
    return {name: as_array(tensor) for name, tensor in zip(names, inputs.args, strict=True)}


def _folder(folder: Path, example: Inputs, count: int) -> Iterator[Tensor]:
    """Images of a folder, brought to the size that the network takes, their numbers from 0 to 1."""
    shape = example.tensors[0].shape
    if len(shape) != 4:
        raise DataError(f"the network takes inputs of shape {tuple(shape)}, which a folder of images does not give")
    images = as_unlabelled(folder, "images")
    chosen = np.arange(min(count, len(images))) * (len(images) // max(1, min(count, len(images))))
    cut = [chosen[start : start + _READ_AT_ONCE] for start in range(0, len(chosen), _READ_AT_ONCE)]
    for batch, _ in images.batches(cut, Preparation(size=(int(shape[2]), int(shape[3]))), None):
        yield batch


def example_for_file(
    inputs: Mapping[str, Sequence[int | None]], images: Sources | str | Path, count: int
) -> tuple[Any, Inputs]:
    """What a file takes: by its own shapes, or where these are free by the first batch of images."""
    import torch

    if isinstance(images, (str, Path)) or all(None not in shape[1:] for shape in inputs.values()):
        free = [name for name, shape in inputs.items() if None in shape[1:]]
        if free:
            raise DataError(f"the file takes '{free[0]}' of any size; give images as a tensor, a DataLoader or a task")
        return images, Inputs(tuple(torch.zeros(2, *map(int, shape[1:])) for shape in inputs.values()), {})  # type: ignore[arg-type]
    return with_example(images, count, len(inputs))
