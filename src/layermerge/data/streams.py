"""Stream: a user's DataLoader that can only be read from its start. Out: batches of any size, in the order they come.

What cannot be addressed cannot be split, nor shuffled by seed; the held-out part must be given.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from layermerge.errors import DataError


class Stream:
    """(images, labels) batches of a loader, cut anew."""

    def __init__(self, loader: Any, name: str) -> None:
        self.name = name
        self.largest_label = 0
        """Of the labels that have come so far."""
        self._loader = loader

    @cached_property
    def count(self) -> int:
        """How many examples there are; read once to be counted, where the dataset does not say."""
        try:
            return len(self._loader.dataset)
        except TypeError:
            return sum(len(labels) for _, labels in self._read())

    def batches(self, batch_size: int, count: int | None = None) -> Iterator[tuple[Tensor, Tensor]]:
        """The first `count` examples, or all; the last batch may be short."""
        left = self.count if count is None else count
        images, labels = torch.empty(0), torch.empty(0, dtype=torch.int64)
        for more_images, more_labels in self._read():
            images = torch.cat([images, more_images]) if len(images) else more_images
            labels = torch.cat([labels, more_labels])
            while left and len(labels) >= min(batch_size, left):
                size = min(batch_size, left)
                yield images[:size], labels[:size]
                images, labels, left = images[size:], labels[size:], left - size
            if not left:
                return

    def fingerprint(self) -> str:
        return ""  # it would have to be read

    def _read(self) -> Iterator[tuple[Tensor, Tensor]]:
        for batch in self._loader:
            if not isinstance(batch, (tuple, list)) or len(batch) != 2:
                raise DataError(f"{self.name} gives a {type(batch).__name__}, not a pair of images and labels")
            images, labels = batch
            self.largest_label = max(self.largest_label, int(labels.max()))
            yield images, labels.to(torch.int64)
