"""Example inputs: the shapes that users write, and seeded tensors of them."""

from __future__ import annotations

import re
from math import prod

import torch
from torch import Tensor

from layermerge.errors import ModelError

Shape = tuple[int, ...]
_BATCH = 2
_SEED = 20240721
_SHAPE = re.compile(r"[1-9][0-9]{0,8}(x[1-9][0-9]{0,8}){0,3}", re.IGNORECASE)
_MOST_VALUES = 100_000_000
"""Of one input: an image of 5,700 x 5,700 pixels in three colours."""


def parse_shape(text: str) -> Shape:
    """Reads '3x224x224', an input's shape without the batch."""
    if not _SHAPE.fullmatch(text):
        raise ModelError(f"input shape '{text[:40]}' is not of the form 3x224x224 (channels, height, width)")
    return _bounded(tuple(int(size) for size in text.lower().split("x")))


def _bounded(shape: Shape) -> Shape:
    if (values := prod(shape)) > _MOST_VALUES:
        written = "x".join(map(str, shape))
        raise ModelError(f"input shape {written} has {values:.2g} values; {_MOST_VALUES:,} are the most that fit")
    return shape


def random_input(shape: Shape) -> Tensor:
    """A batch of 2, the same at every call."""
    return torch.randn(_BATCH, *_bounded(shape), generator=torch.Generator().manual_seed(_SEED))
