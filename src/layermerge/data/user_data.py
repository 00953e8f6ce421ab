"""What a user may pass as training or test data, and how it becomes Images: arrays, a Dataset, a DataLoader."""

from __future__ import annotations

from typing import Any, TypeAlias

from torch.utils.data import DataLoader, Dataset, IterableDataset

from layermerge.data.images import ArrayImages, Images
from layermerge.data.loaded import DatasetImages
from layermerge.data.streams import Stream
from layermerge.errors import DataError

Data: TypeAlias = Images | Dataset[Any] | DataLoader[Any] | tuple[Any, Any]
"""Images, a pair (images, labels) of arrays or tensors, a map-style Dataset of such pairs, or a DataLoader."""


def as_images(data: Data, part: str) -> Images | Stream:
    """`part` is what messages call it: train, test, held_out."""
    if isinstance(data, Images):
        return data
    if isinstance(data, DataLoader):
        name = f"the {part} loader"
        if isinstance(data.dataset, IterableDataset):
            return Stream(data, name)
        return DatasetImages(data.dataset, name=name, collate=data.collate_fn, workers=data.num_workers)
    if isinstance(data, IterableDataset):
        return Stream(DataLoader(data, batch_size=64), f"the {part} dataset")
    if isinstance(data, (tuple, list)) and len(data) == 2:
        return ArrayImages(f"the {part} arrays", data[0], data[1])
    if hasattr(data, "__getitem__") and hasattr(data, "__len__") and not isinstance(data, (tuple, list, dict, str)):
        return DatasetImages(data, name=f"the {part} dataset")
    raise DataError(
        f"{part} data is a {type(data).__name__}; give images, a pair (images, labels), a map-style Dataset or a DataLoader"
    )
