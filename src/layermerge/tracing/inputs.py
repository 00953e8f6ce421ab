"""Inputs: what a network was traced with, and which of its dimensions are free."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from layermerge.errors import TraceError

_HEIGHT, _WIDTH = 2, 3
Size = tuple[int, int]
"""Height and width."""


@dataclass(frozen=True)
class Inputs:
    """Example inputs as a call makes them, which of their tensors carry the batch, and whether images may have any size."""

    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    free_size: bool = False

    @staticmethod
    def of(example_inputs: Any, *, free_size: bool = False) -> Inputs:
        """A tensor, a tuple or list of positional inputs, or a dict of keyword inputs."""
        if isinstance(example_inputs, Mapping):
            return Inputs((), dict(example_inputs), free_size)
        if isinstance(example_inputs, (tuple, list)):
            return Inputs(tuple(example_inputs), {}, free_size)
        return Inputs((example_inputs,), {}, free_size)

    @property
    def as_given(self) -> Any:
        """What `of` takes."""
        return self.kwargs or self.args

    @property
    def tensors(self) -> list[Tensor]:
        return [leaf for leaf in pytree.tree_leaves((self.args, dict(self.kwargs))) if isinstance(leaf, Tensor)]

    @property
    def batch(self) -> int:
        batched = [tensor for tensor in self.tensors if tensor.dim() > 0]
        if not batched:
            raise TraceError(
                "the example inputs hold no tensor with a batch dimension; pass for instance torch.randn(2, 3, 224, 224)"
            )
        return batched[0].shape[0]

    def _map(self, change: Callable[[Any], Any]) -> Inputs:
        args, kwargs = pytree.tree_map(change, (self.args, dict(self.kwargs)))
        return Inputs(args, kwargs, self.free_size)

    def _carries_batch(self, leaf: Any) -> bool:
        return isinstance(leaf, Tensor) and leaf.dim() > 0 and leaf.shape[0] == self.batch

    def resized(self, batch: int) -> Inputs:
        """The same inputs repeated or cut to another batch size."""

        def resize(leaf: Any) -> Any:
            if not self._carries_batch(leaf):
                return leaf
            times = -(-batch // leaf.shape[0])
            return leaf.repeat(times, *[1] * (leaf.dim() - 1))[:batch].clone()

        return self._map(resize)

    def _free_sides(self, leaf: Any) -> list[int]:
        """The dimensions of an image that may have any size; one of a single pixel is no image's, but a value per channel."""
        if not self.free_size or not self._carries_batch(leaf) or leaf.dim() != 4:
            return []
        return [side for side in (_HEIGHT, _WIDTH) if leaf.shape[side] > 1]

    @property
    def size(self) -> Size | None:
        """Height and width of the first image of free size."""
        images = (leaf for leaf in self.tensors if self._free_sides(leaf))
        return next(((leaf.shape[_HEIGHT], leaf.shape[_WIDTH]) for leaf in images), None)

    @property
    def size_text(self) -> str:
        """For messages, behind the batch size; nothing where sizes are fixed."""
        return f" and size {self.size[0]}x{self.size[1]}" if self.size else ""

    def at_size(self, change: Callable[[int, int], Size]) -> Inputs:
        """The same inputs with every image repeated or cut to another height and width."""

        def resize(leaf: Any) -> Any:
            sides = self._free_sides(leaf)
            sizes = dict(zip((_HEIGHT, _WIDTH), change(*leaf.shape[_HEIGHT:]), strict=True)) if sides else {}
            for side in sides:
                times = [1] * leaf.dim()
                times[side] = -(-sizes[side] // leaf.shape[side])
                leaf = leaf.repeat(times).narrow(side, 0, sizes[side]).clone()
            return leaf

        return self._map(resize)

    def cloned(self) -> Inputs:
        return self._map(lambda leaf: leaf.detach().clone() if isinstance(leaf, Tensor) else leaf)

    def in_float64(self) -> Inputs:
        return self._map(lambda leaf: leaf.double() if isinstance(leaf, Tensor) and leaf.is_floating_point() else leaf)

    def bound_to(self, model: nn.Module) -> dict[str, Any]:
        """The inputs by the names that the model's forward() gives them."""
        signature = inspect.signature(model.forward)
        try:
            return dict(signature.bind(*self.args, **self.kwargs).arguments)
        except TypeError as error:
            raise TraceError(
                f"{type(model).__name__}.forward{signature} cannot take these example inputs: {error}; "
                "pass them as a tuple in that order, or as a dict by name"
            ) from error

    def dynamic_shapes(self, model: nn.Module) -> dict[str, Any]:
        """Which dimension of which input is free, in the form torch.export takes."""

        def mark(leaf: Any) -> Any:
            free = [0, *self._free_sides(leaf)]
            return dict.fromkeys(free, torch.export.Dim.AUTO) if self._carries_batch(leaf) else None

        return {name: pytree.tree_map(mark, value) for name, value in self.bound_to(model).items()}
