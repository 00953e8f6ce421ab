"""Preparation: how images become what a network reads, and how they are varied for training.

Statistics are per channel and refer to pixels in [0, 1]. Sizes, interpolation and crops are for images of any size, from
folders; arrays have their size already.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from layermerge.arguments import checked
from layermerge.errors import DataError, require_package
from layermerge.models import import_torchvision

Augment = Literal["none", "flip", "crop_flip", "imagenet", "randaugment"]
Interpolation = Literal["nearest", "bilinear", "bicubic", "lanczos"]
ImageSize = int | tuple[int, int]
"""A side, or height and width."""


@checked(DataError)
@dataclass(frozen=True)
class Statistics:
    """Mean and standard deviation per channel, of pixels in [0, 1]."""

    mean: tuple[float, ...]
    std: tuple[float, ...]

    def __post_init__(self) -> None:
        if len(self.mean) != len(self.std) or not self.mean or min(self.std) <= 0:
            raise DataError(f"mean {self.mean} and std {self.std} must be one number per channel, std above 0")


STATISTICS: dict[str, Statistics | None] = {
    "imagenet": Statistics((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
    "cifar10": Statistics((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)),
    "fashion-mnist": Statistics((0.2860,), (0.3530,)),
    "none": None,
    "bytes": Statistics((0.0, 0.0, 0.0), (1 / 255, 1 / 255, 1 / 255)),
}
"""`none` leaves pixels from 0 to 1; `bytes` scales them to 0 to 255."""


@checked(DataError)
@dataclass(frozen=True)
class Preparation:
    """How images are scaled, varied for training, and normalised; evaluation varies nothing.

    `crop_flip` pads with black, crops at random and mirrors half of the images. `imagenet` crops and resizes at random;
    `randaugment` adds two random operations of magnitude 9. The last two need images from a folder.
    """

    normalise: Statistics | None = None
    """None leaves pixels in [0, 1]."""
    augment: Augment = "none"
    pad: int = 4
    size: ImageSize = 224
    """A side, or height and width."""
    interpolation: Interpolation = "bilinear"
    crop_pct: float = 0.875

    def __post_init__(self) -> None:
        shortest = self.size if isinstance(self.size, int) else min(self.size)
        if self.pad < 0 or shortest < 1 or not 0 < self.crop_pct <= 1:
            raise DataError(
                f"preparation needs pad >= 0, size >= 1 and crop_pct in (0, 1]; got {self.pad}, {self.size}, {self.crop_pct}"
            )

    @classmethod
    @checked(DataError)
    def for_data_set(cls, name: str, augment: Augment = "none") -> Preparation:
        """Normalised as is usual for this data set: imagenet, cifar10 or fashion-mnist."""
        if name not in STATISTICS:
            raise DataError(f"preparation does not know the data set '{name}'; it knows {', '.join(STATISTICS)}")
        return cls(normalise=STATISTICS[name], augment=augment)

    @classmethod
    @checked(DataError)
    def for_timm(cls, model: nn.Module, augment: Augment = "none") -> Preparation:
        """The preparation that a timm model was trained with, from its own configuration."""
        config = _timm_data().resolve_model_data_config(model)
        return cls(
            normalise=Statistics(tuple(config["mean"]), tuple(config["std"])),
            augment=augment,
            size=size_of(config["input_size"]),
            interpolation=config["interpolation"],
            crop_pct=config["crop_pct"],
        )

    def without_augment(self) -> Preparation:
        return replace(self, augment="none")

    def describe(self) -> dict[str, str | int | float | None]:
        """Plain values, for provenance."""
        stated = self.normalise
        return {
            "mean": None if stated is None else ", ".join(map(str, stated.mean)),
            "std": None if stated is None else ", ".join(map(str, stated.std)),
            "augment": self.augment,
            "pad": self.pad,
            "size": self.size if isinstance(self.size, int) else " x ".join(map(str, self.size)),
            "interpolation": self.interpolation,
            "crop_pct": self.crop_pct,
        }

    def image_transform(self) -> Callable[[Any], np.ndarray[Any, np.dtype[np.uint8]]]:
        """From a PIL image to channels, height, width in uint8: the part that is done image by image."""
        randomly = self.augment in ("imagenet", "randaugment")
        transform: Callable[[Any], np.ndarray[Any, np.dtype[np.uint8]]] = _timm_data().create_transform(
            self.size,
            is_training=randomly,
            interpolation=self.interpolation,
            crop_pct=self.crop_pct,
            auto_augment="rand-m9-n2" if self.augment == "randaugment" else None,
            color_jitter=None,
            use_prefetcher=True,  # leaves out conversion to float and normalisation, which are done by the batch
        )
        return transform

    def finish(self, images: Tensor) -> Tensor:
        """A batch of uint8 as normalised float32."""
        pixels = images.to(torch.float32).div_(255)
        if self.normalise is None:
            return pixels
        if images.shape[1] != len(self.normalise.mean):
            raise DataError(
                f"images of {images.shape[1]} channels cannot be normalised by {len(self.normalise.mean)} means; "
                "give one mean and std per channel"
            )
        mean, std = (torch.tensor(values).view(1, -1, 1, 1) for values in (self.normalise.mean, self.normalise.std))
        return pixels.sub_(mean).div_(std)


def size_of(shape: Sequence[int]) -> ImageSize:
    """That of images whose shape ends in height and width."""
    height, width = shape[-2:]
    return height if height == width else (height, width)


class Variation:
    """The flips and crops of one epoch, drawn for all examples at once so that each has its own wherever it is read."""

    def __init__(self, preparation: Preparation, count: int, seed: int) -> None:
        generator = np.random.default_rng(seed)
        self._flips = preparation.augment in ("flip", "crop_flip")
        self._pad = preparation.pad if preparation.augment == "crop_flip" else 0
        self._mirrored = torch.from_numpy(generator.random(count) < 0.5)
        self._corners = torch.from_numpy(generator.integers(0, 2 * self._pad + 1, (2, count)))

    def __call__(self, images: Tensor, indices: Tensor) -> Tensor:
        """`images` are the examples `indices`, channels first, of equal size."""
        if self._pad:
            height, width = images.shape[2:]
            windows = functional.pad(images, [self._pad] * 4).unfold(2, height, 1).unfold(3, width, 1)
            top, left = self._corners[:, indices]
            images = windows[torch.arange(len(images)), :, top, left]
        if self._flips:
            images = torch.where(self._mirrored[indices].view(-1, 1, 1, 1), images.flip(3), images)
        return images


def _timm_data() -> Any:
    """timm.data; torchvision is imported first because timm imports it and may find its operators missing."""
    with suppress(ImportError):
        import_torchvision()
    return require_package("timm.data", "an image folder", "layermerge[models]")
