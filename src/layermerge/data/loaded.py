"""Images that are read one by one: files of a folder, or a user's Dataset. In this process or in DataLoader workers.

Every example is read under random state of its own, made from (seed, index), so the number of workers changes nothing.
What cannot be read is a DataError of one line that names the file or the example, from workers too.
"""

from __future__ import annotations

import random
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, default_collate

from layermerge.data.images import Images, Indices, Variation
from layermerge.data.preparation import Preparation
from layermerge.errors import DataError, first_line

Collate = Callable[[list[Any]], Any]


class LoadedImages(Images):
    """What folders and datasets share: the DataLoader."""

    collate: Collate = staticmethod(default_collate)
    workers = 0

    def batches(
        self, index_batches: Sequence[Indices], preparation: Preparation, seed: int | None, workers: int = 0
    ) -> Iterator[tuple[Tensor, Tensor]]:
        loader: DataLoader[Any] = DataLoader(
            _Examples(self.reader(preparation, seed), seed or 0),
            batch_sampler=[batch.tolist() for batch in index_batches],
            num_workers=workers or self.workers,
            collate_fn=_Collate(self.collate),
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


class FolderImages(LoadedImages):
    """Image files, decoded to RGB when they are read."""

    def __init__(self, name: str, root: Path, files: Sequence[Path], labels: Any, classes: Sequence[str]) -> None:
        super().__init__(name, labels, classes)
        if len(files) != len(self.labels):
            raise DataError(f"{name} has {len(files)} files and {len(self.labels)} labels; give one label per file")
        self.root, self.files = root, tuple(files)

    def reader(self, preparation: Preparation, seed: int | None) -> Callable[[int], tuple[Any, Any]]:
        import_pillow()  # here, so that what is missing is said once and by this process
        varied = preparation if seed is not None else preparation.without_augment()
        return _FileReader(self.files, self.labels.tolist(), varied.image_transform())

    def finisher(self, preparation: Preparation, seed: int | None) -> Callable[[Tensor, Tensor], Tensor]:
        vary = None if seed is None else Variation(preparation, len(self), seed)
        return lambda images, indices: preparation.finish(images if vary is None else vary(images, indices))

    def _add_content(self, digest: Any) -> None:
        for file in self.files:
            digest.update(f"{file.relative_to(self.root).as_posix()} {file.stat().st_size}\n".encode())


class DatasetImages(LoadedImages):
    """A user's map-style Dataset of (image tensor, label), whose own transforms are all the preparation there is."""

    def __init__(
        self,
        dataset: Dataset[Any],
        *,
        name: str | None = None,
        collate: Collate = default_collate,
        workers: int = 0,
    ) -> None:
        name = name or type(dataset).__name__
        self.dataset: Any = dataset
        self.collate, self.workers = collate, workers
        super().__init__(name, _labels_of(name, dataset), getattr(dataset, "classes", None))

    def reader(self, preparation: Preparation, seed: int | None) -> Callable[[int], tuple[Any, Any]]:  # noqa: ARG002
        return _DatasetReader(self.name, self.dataset)

    def finisher(self, preparation: Preparation, seed: int | None) -> Callable[[Tensor, Tensor], Tensor]:  # noqa: ARG002
        if preparation != Preparation():
            raise DataError(
                f"{self.name} prepares its images itself; put augmentation and normalisation into its transforms"
            )
        return lambda images, _: images

    def _add_content(self, digest: Any) -> None:
        digest.update(f"{type(self.dataset).__qualname__} {len(self)}".encode())


class _FileReader:
    def __init__(self, files: Sequence[Path], labels: Sequence[int], transform: Callable[[Any], Any]) -> None:
        self._files, self._labels, self._transform = files, labels, transform

    def __call__(self, index: int) -> tuple[Any, int]:
        file = self._files[index]
        try:
            with import_pillow().open(file) as image:
                decoded = image.convert("RGB")
        except Exception as error:  # decoders raise whatever they like at a torn file
            raise DataError(f"image '{file}' cannot be read ({first_line(error)}); repair or remove it") from None
        return torch.as_tensor(self._transform(decoded)), self._labels[index]


class _DatasetReader:
    def __init__(self, name: str, dataset: Any) -> None:
        self._name, self._dataset = name, dataset

    def __call__(self, index: int) -> tuple[Any, Any]:
        try:
            return _pair(f"example {index} of {self._name}", self._dataset[index])
        except DataError:
            raise
        except Exception as error:  # whatever the user's code raises
            raise DataError(f"example {index} of {self._name} cannot be read: {first_line(error)}") from error


class _Examples(Dataset[Any]):
    """Reads examples for the DataLoader. Errors are returned, as workers can only raise them with their traceback."""

    def __init__(self, read: Callable[[int], tuple[Any, Any]], seed: int) -> None:
        self._read, self._seed = read, seed

    def __getitem__(self, index: int) -> Any:
        with _random_state(self._seed, index):
            try:
                return self._read(index)
            except DataError as error:
                return error


class _Collate:
    def __init__(self, collate: Collate) -> None:
        self._collate = collate

    def __call__(self, examples: list[Any]) -> Any:
        failed = next((example for example in examples if isinstance(example, DataError)), None)
        return failed or self._collate(examples)


@contextmanager
def _random_state(seed: int, index: int) -> Iterator[None]:
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
    read = _DatasetReader(name, dataset)
    found = []
    for index in range(len(dataset)):
        with _random_state(0, index):
            found.append(int(read(index)[1]))
    return found


def _pair(name: str, given: Any) -> tuple[Any, Any]:
    if isinstance(given, (tuple, list)) and len(given) == 2:
        return given[0], given[1]
    raise DataError(f"{name} is a {type(given).__name__}, not a pair of image and label")


def import_pillow() -> Any:
    """PIL.Image, which is an optional package."""
    try:
        from PIL import Image
    except ImportError as error:
        raise DataError(f"images need Pillow ({error}); try: pip install 'layermerge[models]'") from error
    return Image
