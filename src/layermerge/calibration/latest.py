"""Latest: values by key, those used last, up to a number of bytes."""

from __future__ import annotations

from collections.abc import Hashable

from torch import Tensor

Tensors = tuple[Tensor, ...]


class Latest:
    """Forgets what was not asked for longest, and does not take what would fill it alone."""

    def __init__(self, most_bytes: int) -> None:
        self.most_bytes = most_bytes
        self._kept: dict[Hashable, Tensors] = {}

    def find(self, key: Hashable) -> Tensors | None:
        found = self._kept.pop(key, None)
        if found is not None:
            self._kept[key] = found
        return found

    def keep(self, key: Hashable, values: Tensors) -> None:
        self._kept.pop(key, None)
        if _size(values) > self.most_bytes:
            return
        self._kept[key] = values
        while sum(map(_size, self._kept.values())) > self.most_bytes:
            del self._kept[next(iter(self._kept))]


def _size(values: Tensors) -> int:
    return sum(value.nbytes for value in values)
