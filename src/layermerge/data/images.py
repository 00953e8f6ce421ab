"""Images: one protocol for labelled images, whether from memory, a folder, a user's Dataset or a stream.

In: indices of the batches, a Preparation, a seed. Out: (images, labels) tensors on the CPU. What an example looks like
depends on the seed and its index alone: not on batches, workers or what was read before; global random state stays.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from layermerge.data.preparation import Preparation, Variation
from layermerge.errors import DataError
from layermerge.files import digest

Labels = npt.NDArray[np.int64]
Indices = npt.NDArray[np.int64]
Labelled = tuple[Tensor, Tensor]


class Images(ABC):
    """Labelled images by index."""

    addressable = True
    """Whether they can be read in any order. A stream is read in its own only, so it cannot be split or shuffled."""

    def __init__(self, name: str, labels: Any, classes: Sequence[str] | None = None) -> None:
        self.name = name
        self.labels = checked_labels(name, labels, len(classes) if classes else None)
        self.largest_label = int(self.labels.max())
        self.classes = tuple(classes or map(str, range(self.largest_label + 1)))

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def shape(self) -> tuple[int, ...] | None:
        """Channels, height and width; None where only the preparation tells."""
        return None

    @abstractmethod
    def batches(
        self, index_batches: Sequence[Indices], preparation: Preparation, seed: int | None, workers: int = 0
    ) -> Iterator[Labelled]:
        """The images of these batches; without a seed, as for evaluation. Only the images asked for are read."""

    def fingerprint(self) -> str:
        """Names labels and content."""
        return digest(self.labels.tobytes(), *self._content())

    @abstractmethod
    def _content(self) -> Iterable[str | memoryview]:
        """What names the images."""


class ArrayImages(Images):
    """Images in memory: uint8 N x H x W x C, or float N x C x H x W, which is taken as already prepared."""

    def __init__(self, name: str, pixels: Any, labels: Any, classes: Sequence[str] | None = None) -> None:
        super().__init__(name, labels, classes)
        self.pixels = _channels_first(name, pixels).contiguous()
        if len(self.pixels) != len(self.labels):
            raise DataError(
                f"{name} has {len(self.pixels)} images and {len(self.labels)} labels; give one label per image"
            )

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.pixels.shape[1:])

    def batches(
        self,
        index_batches: Sequence[Indices],
        preparation: Preparation,
        seed: int | None,
        workers: int = 0,  # noqa: ARG002 - memory needs none
    ) -> Iterator[Labelled]:
        prepared = self.pixels.is_floating_point()
        if prepared and preparation.normalise is not None:
            raise DataError(
                f"{self.name} holds float images, which are already prepared; give uint8, or normalise=None"
            )
        if preparation.augment in ("imagenet", "randaugment"):
            raise DataError(
                f"augment '{preparation.augment}' is for image folders; {self.name} is arrays: try crop_flip"
            )
        vary = None if seed is None else Variation(preparation, len(self), seed)
        for indices in index_batches:
            chosen = torch.from_numpy(indices)
            images = self.pixels[chosen]
            if vary is not None:
                images = vary(images, chosen)
            yield (
                images.contiguous() if prepared else preparation.finish(images),
                torch.from_numpy(self.labels[indices]),
            )

    def _content(self) -> Iterable[str | memoryview]:
        return str((tuple(self.pixels.shape), self.pixels.dtype)), self.pixels.numpy().data


def checked_labels(name: str, labels: Any, classes: int | None = None) -> Labels:
    """Labels as int64, none of them negative or beyond the classes."""
    try:
        values = np.asarray(labels)
    except ValueError:
        values = np.empty((0, 0))  # rows of unequal length: refused below like any other shape
    if values.ndim != 1 or not np.issubdtype(values.dtype, np.integer):
        raise DataError(f"labels of {name} are {values.dtype} of shape {values.shape}; give one whole number per image")
    if not len(values):
        raise DataError(f"{name} is empty; give at least one image")
    for label in (int(values.min()), int(values.max())):
        if label < 0 or (classes is not None and label >= classes):
            limit = "and must not be negative" if classes is None else f"outside 0..{classes - 1}"
            raise DataError(f"{name} has label {label} at index {int(np.argmax(values == label))}, {limit}")
    return np.ascontiguousarray(values, dtype=np.int64)


def _channels_first(name: str, given: Any) -> Tensor:
    try:
        pixels = given if isinstance(given, Tensor) else torch.from_numpy(np.require(given, requirements="W"))
    except (TypeError, ValueError) as error:
        raise DataError(f"images of {name} are not an array of numbers ({error})") from None
    if pixels.is_floating_point() and pixels.ndim == 4:
        return pixels.to(torch.float32)
    if pixels.dtype == torch.uint8 and pixels.ndim == 3:
        return pixels.unsqueeze(1)
    if pixels.dtype == torch.uint8 and pixels.ndim == 4:
        if pixels.shape[3] in (1, 3, 4):
            return pixels.permute(0, 3, 1, 2)
        if pixels.shape[1] in (1, 3, 4):
            return pixels
    raise DataError(
        f"images of {name} are {str(pixels.dtype).removeprefix('torch.')} of shape {tuple(pixels.shape)}; give uint8 "
        "N x H x W x C (or N x C x H x W), or prepared float N x C x H x W"
    )
