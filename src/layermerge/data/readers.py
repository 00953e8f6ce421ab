"""Readers: data sets by name, `kind:path`. In: the text. Out: training and test Images.

Nothing is unpickled. What is missing, truncated or inconsistent is a DataError of one line that names the file or the key.
The embedded images are a part of Fashion-MNIST: Zalando Research's, under the MIT licence; see embedded/LICENSE.
"""

from __future__ import annotations

import gzip
import json
import lzma
import math
import zipfile
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from layermerge.arguments import checked
from layermerge.data.folders import decode, read_image_folder
from layermerge.data.images import ArrayImages, Images
from layermerge.errors import DataError, first_line

Pair = tuple[Images, Images]
Pixels = npt.NDArray[np.uint8]

ARRAYS = ("x_train", "y_train", "x_test", "y_test")
EMBEDDED = Path(__file__).parent / "embedded" / "fashion_mnist.npz"
CLOTHES = ("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot")
CIFAR10 = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
CIFAR10_SIDE = 32
CIFAR10_FILES = {"train": tuple(f"data_batch_{number}" for number in range(1, 6)), "test": ("test_batch",)}


@checked(DataError)
def load_images(spec: str) -> Pair:
    """(training images, test images) of imagefolder:PATH, cifar10:PATH, fashion-mnist:PATH, npz:PATH or `embedded`.

    >>> train, test = load_images("embedded")
    >>> len(train), len(test)
    (11000, 1500)
    """
    if spec == "embedded":
        return read_npz(EMBEDDED, "embedded fashion-mnist", CLOTHES)
    kind, _, place = spec.partition(":")
    if kind not in _READERS or not place:
        known = ", ".join(f"{name}:PATH" for name in _READERS)
        raise DataError(f"'{spec}' does not name a source of images; give {known} or embedded")
    path = Path(place).expanduser()
    if not path.exists():
        raise DataError(f"'{path}' does not exist; {kind}: needs the place of the images")
    return _READERS[kind](path)


# -- arrays in one .npz


def read_npz(path: Path, name: str | None = None, classes: Sequence[str] | None = None) -> Pair:
    """Object arrays are pickled, so refused."""
    try:
        # Opened here, as numpy leaves a truncated file open.
        with path.open("rb") as stream, np.load(stream, allow_pickle=False) as file:
            missing = [key for key in ARRAYS if key not in file]
            if missing:
                raise DataError(f"'{path}' has no array '{missing[0]}'; it needs {', '.join(ARRAYS)}")
            x_train, y_train, x_test, y_test = (file[key] for key in ARRAYS)
    except (OSError, ValueError, TypeError, AttributeError, EOFError, zipfile.BadZipFile, zlib.error, lzma.LZMAError):
        # numpy's own words advise to unpickle, which is never right here
        raise DataError(f"'{path}' is truncated or not an .npz of plain arrays; write it with numpy.savez") from None
    train = ArrayImages(f"{name or path.name} train", x_train, y_train, classes)
    return train, ArrayImages(f"{name or path.name} test", x_test, y_test, classes)


# -- CIFAR-10, in one of three layouts; the python version is pickled and therefore refused


def read_cifar10(path: Path) -> Pair:
    """Binary records, sheets of pixels or one .npz: whichever is found at the path."""
    if path.suffix == ".npz":
        return read_npz(path, "cifar10", CIFAR10)
    for folder in (path, path / "cifar-10-batches-bin"):
        for suffix, read in ((".bin", _read_records), (".png", _read_sheets)):
            if (folder / f"data_batch_1{suffix}").is_file():
                return read(folder, "train"), read(folder, "test")
    for folder in (path, path / "cifar-10-batches-py"):
        if (folder / "data_batch_1").is_file():
            raise DataError(f"'{folder}' is the pickled python version of CIFAR-10; take the binary version instead")
    raise DataError(
        f"'{path}' does not hold CIFAR-10; it needs data_batch_1.bin to _5.bin and test_batch.bin, or an .npz"
    )


def _read_records(folder: Path, part: str) -> ArrayImages:
    """The binary version: a label and the three colour planes of each image."""
    parts: list[Pixels] = []
    record = 1 + 3 * CIFAR10_SIDE**2
    for name in CIFAR10_FILES[part]:
        file = folder / f"{name}.bin"
        content = _content(file)
        if not content or len(content) % record:
            raise DataError(f"'{file}' is truncated: {len(content)} bytes, not a multiple of {record}; fetch it again")
        parts.append(np.frombuffer(content, np.uint8).reshape(-1, record))
    records = np.concatenate(parts)
    pixels = records[:, 1:].reshape(-1, 3, CIFAR10_SIDE, CIFAR10_SIDE).transpose(0, 2, 3, 1)
    return ArrayImages(f"cifar10 {part}", pixels, records[:, 0], CIFAR10)


def _read_sheets(folder: Path, part: str) -> ArrayImages:
    """Sheets: one image per row, its pixels in reading order; labels of all sheets in one list."""
    file = folder / f"{part}_lables.json"  # spelled so where these sheets are published
    try:
        labels: Any = json.loads(_content(file))
    except (ValueError, RecursionError) as error:
        raise DataError(f"'{file}' is not a list of labels ({first_line(error)}); fetch it again") from None
    sheets = [_read_sheet(folder / f"{name}.png") for name in CIFAR10_FILES[part]]
    return ArrayImages(f"cifar10 {part}", np.concatenate(sheets), labels, CIFAR10)


def _read_sheet(file: Path) -> Pixels:
    pixels = np.asarray(decode(file).convert("RGB"))
    if pixels.shape[1] != CIFAR10_SIDE**2:
        raise DataError(f"'{file}' is {pixels.shape[1]} pixels wide, not {CIFAR10_SIDE**2}: one image per row")
    return pixels.reshape(-1, CIFAR10_SIDE, CIFAR10_SIDE, 3)


def _content(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise DataError(f"'{file}' cannot be read ({error.strerror}); CIFAR-10 needs it") from None


# -- Fashion-MNIST


def read_fashion_mnist(path: Path) -> Pair:
    """From the directory of its four idx files, compressed or not."""
    return _read_clothes(path, "train", "train"), _read_clothes(path, "t10k", "test")


def _read_clothes(path: Path, prefix: str, part: str) -> ArrayImages:
    pixels = read_idx(path / f"{prefix}-images-idx3-ubyte", 3)
    labels = read_idx(path / f"{prefix}-labels-idx1-ubyte", 1)
    return ArrayImages(f"fashion-mnist {part}", pixels[..., None], labels, CLOTHES)


def read_idx(path: Path, dimensions: int) -> Pixels:
    """An idx file of bytes: 0, 0, 8, the number of dimensions, their sizes (4 bytes, big end first), then the values."""
    file = path if path.is_file() else path.with_name(f"{path.name}.gz")
    try:
        content = file.read_bytes() if file is path else gzip.decompress(file.read_bytes())
    except FileNotFoundError:
        raise DataError(
            f"'{path}' does not exist, nor with .gz; fashion-mnist: needs the directory of its files"
        ) from None
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"'{file}' cannot be read ({first_line(error)}); fetch it again") from None
    start = 4 + 4 * dimensions
    sizes = np.frombuffer(content[4:start], ">u4").tolist() if len(content) >= start else []
    if content[:4] != bytes([0, 0, 8, dimensions]) or len(content) != start + math.prod(sizes):
        raise DataError(f"'{file}' is truncated or not an idx file of {dimensions} dimensions; fetch it again")
    return np.frombuffer(content, np.uint8, offset=start).reshape(sizes)


_READERS: dict[str, Callable[[Path], Pair]] = {
    "imagefolder": read_image_folder,
    "cifar10": read_cifar10,
    "fashion-mnist": read_fashion_mnist,
    "npz": read_npz,
}
