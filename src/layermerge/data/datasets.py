"""Images that are read example by example, in this process or in DataLoader workers: a user's Dataset or DataLoader.

Every example is read under random state of its own, made from (seed, index), so the number of workers changes nothing.
What cannot be read is a DataError of one line that names the file or the example, from workers too.
"""

from __future__ import annotations

import random
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property, partial
from typing import Annotated, Any, TypeAlias

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, default_collate

from layermerge.arguments import READ_INSIDE
from layermerge.data.images import ArrayImages, Images, Indices, Labelled
from layermerge.data.preparation import Preparation
from layermerge.errors import DataError, first_line

Collate = Callable[[list[Any]], Any]
Data: TypeAlias = Annotated[Images | Dataset[Any] | DataLoader[Any] | tuple[Any, Any], READ_INSIDE]
"""Images, a pair (images, labels) of arrays or tensors, a map-style Dataset of such pairs, or a DataLoader."""


def as_images(data: Data, part: str) -> Images:
    """What a user passes; `part` is what messages call it: train, test, held_out."""
    if isinstance(data, Images):
        return data
    if isinstance(data, DataLoader):
        name = f"the {part} loader"
        if isinstance(data.dataset, IterableDataset):
            return Stream(name, data)
        return DatasetImages(name, data.dataset, collate=data.collate_fn, workers=data.num_workers)
    if isinstance(data, IterableDataset):
        return Stream(f"the {part} dataset", DataLoader(data, batch_size=64))
    if isinstance(data, (tuple, list)) and len(data) == 2:
        return ArrayImages(f"the {part} arrays", data[0], data[1])
    if hasattr(data, "__getitem__") and hasattr(data, "__len__") and not isinstance(data, (tuple, list, dict, str)):
        return DatasetImages(f"the {part} dataset", data)
    raise DataError(
        f"{part} data is a {type(data).__name__}; give images, a pair (images, labels), a map-style Dataset or a DataLoader"
    )


class LoadedImages(Images):
    """What folders and datasets share: the DataLoader."""

    collate: Collate = staticmethod(default_collate)
    workers = 0

    def batches(
        self, index_batches: Sequence[Indices], preparation: Preparation, seed: int | None, workers: int = 0
    ) -> Iterator[Labelled]:
        loader: DataLoader[Any] = DataLoader(
            _Examples(self.reader(preparation, seed), seed or 0),
            batch_sampler=[batch.tolist() for batch in index_batches],
            num_workers=workers or self.workers,
            collate_fn=partial(_collated, self.collate, self.name),
            generator=torch.Generator(),  # its own: the global one would be drawn from
        )
        finish = self.finisher(preparation, seed)
        for indices, batch in zip(index_batches, loader, strict=True):
            if isinstance(batch, DataError):
                raise batch
            images, labels = _pair(self.name, batch)
            yield finish(images, torch.from_numpy(indices)), labels.to(torch.int64)

    @abstractmethod
    def reader(self, preparation: Preparation, seed: int | None) -> Callable[[int], tuple[Any, Any]]:
        """Reads an example: its image and label. Runs in workers."""

    @abstractmethod
    def finisher(self, preparation: Preparation, seed: int | None) -> Callable[[Tensor, Tensor], Tensor]:
        """What is done to the images of a batch, given their indices. Runs in this process."""


class DatasetImages(LoadedImages):
    """A user's map-style Dataset of (image tensor, label), whose own transforms are all the preparation there is."""

    def __init__(
        self, name: str, dataset: Dataset[Any], *, collate: Collate = default_collate, workers: int = 0
    ) -> None:
        self.dataset: Any = dataset
        self.collate, self.workers = collate, workers
        super().__init__(name, _labels_of(name, dataset), getattr(dataset, "classes", None))

    @cached_property
    def shape(self) -> tuple[int, ...]:
        """That of the first example."""
        with random_state(0, 0):
            batch = _collated(self.collate, self.name, [_read_example(self.name, self.dataset, 0)])
        if isinstance(batch, DataError):
            raise batch
        return tuple(_pair(self.name, batch)[0].shape[1:])

    def reader(self, preparation: Preparation, seed: int | None) -> Callable[[int], tuple[Any, Any]]:  # noqa: ARG002
        return partial(_read_example, self.name, self.dataset)

    def finisher(self, preparation: Preparation, seed: int | None) -> Callable[[Tensor, Tensor], Tensor]:  # noqa: ARG002
        require_unprepared(self.name, preparation)
        return lambda images, _: images

    def _content(self) -> Iterable[str]:
        return (f"{type(self.dataset).__qualname__} {len(self)}",)


class Stream(Images):
    """(images, labels) batches of a user's DataLoader that can only be read from its start.

    An index is a place in the order in which examples come; the indices of batches must rise.
    """

    addressable = False

    def __init__(self, name: str, loader: Any) -> None:
        self.name, self._loader = name, loader
        self.labels = np.empty(0, np.int64)  # unknown until they are read
        self.largest_label = 0
        """Of the labels that have come so far."""

    def __len__(self) -> int:
        return self._count

    @cached_property
    def shape(self) -> tuple[int, ...] | None:
        """That of the first batch, which is read for it."""
        return next((tuple(images.shape[1:]) for images, _ in self._read()), None)

    @cached_property
    def _count(self) -> int:
        """Read once to be counted, where the dataset does not say."""
        try:
            return len(self._loader.dataset)
        except TypeError:
            return sum(len(labels) for _, labels in self._read())

    def batches(
        self,
        index_batches: Sequence[Indices],
        preparation: Preparation,
        seed: int | None,  # noqa: ARG002
        workers: int = 0,  # noqa: ARG002 - the loader has its own
    ) -> Iterator[Labelled]:
        require_unprepared(self.name, preparation)
        source = self._read()
        images, labels, start = torch.empty(0), torch.empty(0, dtype=torch.int64), 0
        for indices in index_batches:
            while start + len(labels) <= indices[-1]:
                more = next(source, None)
                if more is None:
                    return
                passed = min(len(labels), max(0, int(indices[0]) - start))  # they are not asked for again
                images = torch.cat([images[passed:], more[0]]) if passed < len(labels) else more[0]
                labels, start = torch.cat([labels[passed:], more[1]]), start + passed
            places = torch.from_numpy(indices - start)
            yield images[places], labels[places]

    def _content(self) -> Iterable[str]:
        return ()  # it would have to be read

    def _read(self) -> Iterator[Labelled]:
        for batch in self._loader:
            images, labels = _pair(f"a batch of {self.name}", batch)
            self.largest_label = max(self.largest_label, int(labels.max()))
            yield images, labels.to(torch.int64)


def _read_example(name: str, dataset: Any, index: int) -> tuple[Any, Any]:
    try:
        example = dataset[index]
    except Exception as error:  # whatever the user's code raises
        raise DataError(f"example {index} of {name} cannot be read: {first_line(error)}") from error
    return _pair(f"example {index} of {name}", example)


class _Examples(Dataset[Any]):
    """Reads examples for the DataLoader. Errors are returned, as workers can only raise them with their traceback."""

    def __init__(self, read: Callable[[int], tuple[Any, Any]], seed: int) -> None:
        self._read, self._seed = read, seed

    def __getitem__(self, index: int) -> Any:
        with random_state(self._seed, index):
            try:
                return self._read(index)
            except DataError as error:
                return error


def _collated(collate: Collate, name: str, examples: list[Any]) -> Any:
    """A batch, or why there is none."""
    failed = next((example for example in examples if isinstance(example, DataError)), None)
    if failed is not None:
        return failed
    try:
        return collate(examples)
    except Exception as error:  # of images that differ in shape, or are not tensors
        return DataError(
            f"a batch of {name} cannot be made of its examples: {first_line(error)}; give tensors of one shape"
        )


@contextmanager
def random_state(seed: int, index: int) -> Iterator[None]:
    """Everything that transforms draw from is seeded, and afterwards as it was."""
    before = random.getstate(), np.random.get_state(), torch.get_rng_state()
    state = np.random.SeedSequence((seed, index)).generate_state(3)
    random.seed(int(state[0]))
    np.random.seed(state[1])
    torch.default_generator.manual_seed(int(state[2]))
    try:
        yield
    finally:
        random.setstate(before[0])
        np.random.set_state(before[1])
        torch.set_rng_state(before[2])


def _labels_of(name: str, dataset: Any) -> Any:
    """Where datasets usually keep labels; else every example is read once."""
    if not hasattr(dataset, "__getitem__") or not hasattr(dataset, "__len__"):
        raise DataError(f"{name} has no length or cannot be indexed; give a map-style Dataset, or a DataLoader of it")
    for attribute in ("targets", "labels"):
        labels = getattr(dataset, attribute, None)
        if labels is not None and len(labels) == len(dataset) and not getattr(dataset, "target_transform", None):
            return labels
    found = []
    for index in range(len(dataset)):
        with random_state(0, index):
            found.append(int(_read_example(name, dataset, index)[1]))
    return found


def _pair(name: str, given: Any) -> tuple[Any, Any]:
    if isinstance(given, (tuple, list)) and len(given) == 2:
        return given[0], given[1]
    raise DataError(f"{name} is a {type(given).__name__}, not a pair of image and label")


def require_unprepared(name: str, preparation: Preparation) -> None:
    """Raises where images that a user's own code prepares would have to be prepared again."""
    if preparation != Preparation():
        raise DataError(f"{name} prepares its images itself; put augmentation and normalisation into its transforms")
