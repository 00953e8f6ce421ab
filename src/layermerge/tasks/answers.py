"""Answers: the floating-point tensors of whatever a network returns.

In: outputs of any structure: tensors, tuples, lists, dicts, dataclasses, classes that torch's pytree knows. Out: one row per
image for each tensor, in the order in which they come; what an exported file returns, which knows no structure, is read alike.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from math import prod
from typing import Any

from torch import Tensor
from torch.utils import _pytree as pytree

from layermerge.errors import DataError

Answers = tuple[Tensor, ...]
"""Each images x values; of a tensor that all images share, 1 x values."""


def floating_tensors(outputs: Any) -> Iterator[Tensor]:
    """Those of a structure, in the order of torch's pytree, which exported files keep."""
    if isinstance(outputs, Tensor):
        if outputs.is_floating_point():
            yield outputs
        return
    parts: Iterable[Any]
    if isinstance(outputs, Mapping):
        parts = outputs.values()
    elif isinstance(outputs, (tuple, list)):
        parts = outputs
    elif is_dataclass(outputs) and not isinstance(outputs, type):
        parts = [getattr(outputs, field.name) for field in fields(outputs)]
    else:
        parts = [leaf for leaf in pytree.tree_leaves(outputs) if leaf is not outputs]
    for part in parts:
        yield from floating_tensors(part)


@dataclass(frozen=True)
class Form:
    """What the original returns for one image: the shape of each tensor, and which dimension of it grows with the images."""

    shapes: tuple[tuple[int, ...], ...]
    along: tuple[int | None, ...]

    @staticmethod
    def of(one: Any, two: Any) -> Form:
        """From what it returns for one image and for two."""
        first, second = list(floating_tensors(one)), list(floating_tensors(two))
        if not first:
            raise DataError(
                f"the network returns a {type(one).__name__} without any floating-point tensor, so there is nothing to "
                "imitate; wrap it so that it returns scores or maps"
            )
        if len(first) != len(second):
            raise DataError(_differs(len(first), len(second)))
        shapes = tuple(tuple(tensor.shape) for tensor in first)
        along = tuple(_grows(mine, tuple(other.shape)) for mine, other in zip(shapes, second, strict=True))
        return Form(shapes, along)

    @property
    def layouts(self) -> tuple[tuple[int, ...], ...]:
        """The dimensions of what each row holds; of a tensor that all images share, how many values there are."""
        return tuple(map(_layout, self.shapes, self.along))

    def count(self, outputs: Any) -> int:
        """How many images outputs are of; 1 where they do not tell."""
        for tensor, shape, along in zip(floating_tensors(outputs), self.shapes, self.along, strict=False):
            if along is not None and along < tensor.ndim:
                return tensor.shape[along] // shape[along]
        return 1

    def read(self, outputs: Any, count: int) -> Answers:
        """The answers about this many images; refuses what is not of the original's form."""
        tensors = list(floating_tensors(outputs))
        if len(tensors) != len(self.shapes):
            raise DataError(_differs(len(self.shapes), len(tensors)))
        return tuple(map(_rows, tensors, self.shapes, self.along, [count] * len(tensors)))


def _differs(before: int, now: int) -> str:
    return (
        f"the network returns {now} floating-point tensors where the original returned {before}; imitation needs outputs whose "
        "structure does not depend on the images: wrap the network so that it returns what comes before"
    )


def _grows(one: tuple[int, ...], two: tuple[int, ...]) -> int | None:
    """The dimension that is twice as large for two images; None where nothing depends on how many there are."""
    if one == two:
        return None
    for dimension in range(len(one)):
        if two == (*one[:dimension], 2 * one[dimension], *one[dimension + 1 :]):
            return dimension
    raise DataError(
        f"the network returns {one} for one image and {two} for two; imitation needs outputs whose shape does not depend on "
        "the images: wrap the network so that it returns what comes before"
    )


def _rows(tensor: Tensor, shape: tuple[int, ...], along: int | None, count: int) -> Tensor:
    expected = shape if along is None else (*shape[:along], count * shape[along], *shape[along + 1 :])
    if tuple(tensor.shape) != expected:
        raise DataError(
            f"the network returns {tuple(tensor.shape)} for {count} images where the original returns {expected}; imitation "
            "needs outputs of one shape"
        )
    return tensor.reshape(1, -1) if along is None else tensor.movedim(along, 0).reshape(count, -1)


def _layout(shape: tuple[int, ...], along: int | None) -> tuple[int, ...]:
    if along is None:
        return (prod(shape),)
    rest = (*shape[:along], *shape[along + 1 :])
    return rest if shape[along] == 1 else (shape[along], *rest)
