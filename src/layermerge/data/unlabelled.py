"""Images without labels: what a task takes that needs none, in any form. Labels that come with them are not looked at.

In: a folder, an array, a tuple or dict of arrays, a data set, a loader, a list of batches. Out: `Images`, all of one class. A
network of several inputs gets examples that are tuples, or dicts by name: `batches` then gives these in place of a tensor.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any, TypeAlias

import numpy as np
import torch
from torch import Tensor
from torch.utils import _pytree as pytree
from torch.utils.data import DataLoader, Dataset, IterableDataset, default_collate

from layermerge.arguments import READ_INSIDE
from layermerge.data.datasets import Collate, Data, LoadedImages, random_state, require_unprepared
from layermerge.data.folders import read_images
from layermerge.data.images import ArrayImages, Images, Indices, Labelled
from layermerge.data.preparation import Preparation
from layermerge.errors import DataError, first_line
from layermerge.files import digest

Unlabelled: TypeAlias = Annotated[
    str | Path | Tensor | np.ndarray[Any, Any] | Mapping[str, Any] | Iterable[Any] | Data, READ_INSIDE
]
"""A folder, arrays or tensors, a map-style Dataset, a DataLoader, or a list of batches."""

MOST_HELD_BYTES = 2 << 30
"""What comes in an order of its own is held in memory, as it has to be split and shuffled."""
_SAMPLED_EXAMPLES = 16


def as_unlabelled(given: Unlabelled, part: str) -> Images:
    """What a user passes; `part` is what messages call it."""
    if isinstance(given, (str, Path)):
        return read_images(Path(given).expanduser())
    if isinstance(given, Images) and given.addressable:
        return given
    if isinstance(given, (Tensor, np.ndarray)):
        return _array(f"the array of {part}", given)
    if isinstance(given, (tuple, Mapping)):
        return _held(f"the {part}", given)
    if isinstance(given, IterableDataset):
        return _read_whole(f"the {part}", DataLoader(given, batch_size=64))
    if isinstance(given, DataLoader) and not isinstance(given.dataset, IterableDataset):
        return UnlabelledDataset(f"the {part}", given.dataset, given.collate_fn, given.num_workers)
    if not isinstance(given, (list, DataLoader)) and hasattr(given, "__getitem__") and hasattr(given, "__len__"):
        return UnlabelledDataset(f"the {part}", given)
    if isinstance(given, Iterable):
        return _read_whole(f"the {part}", given)
    raise DataError(
        f"{part} are a {type(given).__name__}; give a folder, a tensor, a map-style Dataset, a DataLoader or a list of batches"
    )


class UnlabelledDataset(LoadedImages):
    """A user's map-style Dataset of whatever a network takes; its own transforms are all the preparation there is."""

    def __init__(self, name: str, dataset: Any, collate: Collate = default_collate, workers: int = 0) -> None:
        self.dataset, self.workers = dataset, workers
        self.collate = partial(_collated, collate)
        super().__init__(name, np.zeros(len(dataset), np.int64), ("images",))

    def reader(self, preparation: Preparation, seed: int | None) -> Callable[[int], tuple[Any, Any]]:  # noqa: ARG002
        return partial(_example, self.name, self.dataset)

    def finisher(self, preparation: Preparation, seed: int | None) -> Callable[[Tensor, Tensor], Tensor]:  # noqa: ARG002
        require_unprepared(self.name, preparation)
        return lambda images, _: images

    def _content(self) -> Iterable[str]:
        """Some examples, evenly spread: enough to tell data sets of one class and length apart."""
        yield f"{type(self.dataset).__qualname__} {len(self)}"
        for index in range(0, len(self), -(-len(self) // _SAMPLED_EXAMPLES)):
            with random_state(0, index):
                example, _ = _example(self.name, self.dataset, index)
            for leaf in pytree.tree_leaves(example):
                if isinstance(leaf, (Tensor, np.ndarray)):
                    yield digest(_values(torch.as_tensor(leaf)))


class HeldInputs(Images):
    """Several inputs in memory: a tuple or dict of tensors, one row per example. They are taken as already prepared."""

    def __init__(self, name: str, inputs: tuple[Tensor, ...] | dict[str, Tensor]) -> None:
        self.inputs = inputs
        counts = {len(leaf) for leaf in pytree.tree_leaves(inputs)}
        if len(counts) != 1:
            raise DataError(f"{name} hold {_listed(sorted(counts))} examples; give one row per example in each of them")
        super().__init__(name, np.zeros(counts.pop(), np.int64), ("images",))

    def batches(
        self,
        index_batches: Sequence[Indices],
        preparation: Preparation,
        seed: int | None,  # noqa: ARG002
        workers: int = 0,  # noqa: ARG002 - memory needs none
    ) -> Iterator[Labelled]:
        require_unprepared(self.name, preparation)
        for indices in index_batches:
            chosen = torch.from_numpy(indices)
            yield pytree.tree_map(lambda leaf: leaf[chosen], self.inputs), torch.zeros(len(indices), dtype=torch.int64)  # noqa: B023

    def _content(self) -> Iterable[str | memoryview]:
        for leaf in pytree.tree_leaves(self.inputs):
            yield str((tuple(leaf.shape), leaf.dtype))
            yield _values(leaf)


class PartOfImages(Images):
    """Some of other images, by their indices."""

    def __init__(self, whole: Images, indices: Indices, name: str) -> None:
        super().__init__(name, whole.labels[indices], whole.classes)
        self._whole, self._indices = whole, indices

    @property
    def shape(self) -> tuple[int, ...] | None:
        return self._whole.shape

    def batches(
        self, index_batches: Sequence[Indices], preparation: Preparation, seed: int | None, workers: int = 0
    ) -> Iterator[Labelled]:
        return self._whole.batches([self._indices[batch] for batch in index_batches], preparation, seed, workers)

    def _content(self) -> Iterable[str | memoryview]:
        return self._whole.fingerprint(), np.ascontiguousarray(self._indices).data


def _array(name: str, pixels: Any) -> ArrayImages:
    if pixels.ndim == 0:
        raise DataError(f"{name} is a single number; give images x channels x height x width")
    return ArrayImages(name, pixels, np.zeros(len(pixels), np.int64), ("images",))


def _held(name: str, given: Any) -> Images:
    """Of a pair of images and labels, the images; otherwise several inputs."""
    leaves = list(given.values()) if isinstance(given, Mapping) else list(given)
    if not leaves or not all(isinstance(leaf, (Tensor, np.ndarray)) and leaf.ndim for leaf in leaves):
        found = _listed(sorted({type(leaf).__name__ for leaf in leaves}))
        raise DataError(f"{name} hold {found or 'nothing'}; give tensors or arrays, one row per example")
    tensors = [torch.as_tensor(leaf).detach().cpu().contiguous() for leaf in leaves]
    if not isinstance(given, Mapping) and (len(tensors) == 1 or (len(tensors) == 2 and _are_labels(tensors[1]))):
        return _array(name, tensors[0])
    return HeldInputs(name, dict(zip(given, tensors, strict=True)) if isinstance(given, Mapping) else tuple(tensors))


def _are_labels(tensor: Tensor) -> bool:
    return tensor.ndim == 1 and not tensor.is_floating_point()


def _read_whole(name: str, batches: Iterable[Any]) -> Images:
    """All batches in memory, one after the other."""
    read: list[list[Tensor]] = []
    structure, size = None, 0
    for batch in batches:
        if not isinstance(batch, (Tensor, tuple, list, Mapping)):
            raise DataError(
                f"a batch of {name} is a {type(batch).__name__}; give tensors, or tuples or dicts of tensors"
            )
        mine = dict(batch) if isinstance(batch, Mapping) else batch if isinstance(batch, Tensor) else tuple(batch)
        leaves, found = pytree.tree_flatten(mine)
        if (structure is not None and found != structure) or not all(isinstance(leaf, Tensor) for leaf in leaves):
            raise DataError(f"{name} differ in what they hold, or hold something that is not a tensor; give tensors")
        structure, size = found, size + sum(leaf.nbytes for leaf in leaves)
        if size > MOST_HELD_BYTES:
            raise DataError(
                f"{name} take more than {MOST_HELD_BYTES / 1e9:.1f} GB and can only be read in their own order; "
                "give a map-style Dataset, or fewer"
            )
        read.append(leaves)
    if structure is None:
        raise DataError(f"{name} hold nothing; give at least one batch")
    try:
        whole = [torch.cat(column) for column in zip(*read, strict=True)]
    except RuntimeError as error:
        raise DataError(f"{name} are not of one shape: {first_line(error)}") from None
    together = pytree.tree_unflatten(whole, structure)
    return _array(name, together) if isinstance(together, Tensor) else _held(name, together)


def _example(name: str, dataset: Dataset[Any], index: int) -> tuple[Any, int]:
    try:
        return dataset[index], 0
    except Exception as error:  # whatever the user's code raises
        raise DataError(f"example {index} of {name} cannot be read: {first_line(error)}") from error


def _collated(collate: Collate, examples: list[Any]) -> tuple[Any, Tensor]:
    """Whatever the examples are collated to, and the label that all have."""
    return collate([example for example, _ in examples]), torch.zeros(len(examples), dtype=torch.int64)


def _values(tensor: Tensor) -> memoryview:
    """What a fingerprint is made of; numpy does not know every kind of float."""
    plain = tensor.detach().cpu()
    return np.ascontiguousarray((plain.float() if plain.is_floating_point() else plain).numpy()).data


def _listed(things: Iterable[Any]) -> str:
    return " and ".join(map(str, things))
