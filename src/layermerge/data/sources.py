"""Sources: data sets by name, `kind:path`. In: the text. Out: training and test Images.

Nothing is unpickled. What is missing, torn or inconsistent is a DataError of one line that names the file or the key.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from layermerge.data.array_files import Pair, read_npz
from layermerge.data.cifar10 import read_cifar10
from layermerge.data.fashion_mnist import read_embedded, read_fashion_mnist
from layermerge.data.folders import read_image_folder
from layermerge.errors import DataError


def load_images(spec: str) -> Pair:
    """(training images, test images) of imagefolder:PATH, cifar10:PATH, fashion-mnist:PATH, npz:PATH or `embedded`.

    >>> train, test = load_images("embedded")
    >>> len(train), len(test)
    (11000, 1500)
    """
    if spec == "embedded":
        return read_embedded()
    kind, _, place = spec.partition(":")
    if kind not in _READERS or not place:
        known = ", ".join(f"{name}:PATH" for name in _READERS)
        raise DataError(f"'{spec}' names no images; give {known} or embedded")
    path = Path(place).expanduser()
    if not path.exists():
        raise DataError(f"'{path}' does not exist; {kind}: needs the place of the images")
    return _READERS[kind](path)


def _read_npz(path: Path) -> Pair:
    return read_npz(path, path.name)


_READERS: dict[str, Callable[[Path], Pair]] = {
    "imagefolder": read_image_folder,
    "cifar10": read_cifar10,
    "fashion-mnist": read_fashion_mnist,
    "npz": _read_npz,
}
