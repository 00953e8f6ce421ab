"""CIFAR-10 from disk, in one of three layouts: binary records, sheets of pixels, or one .npz. Out: ArrayImages.

The python version is pickled and therefore refused.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from layermerge.data.array_files import Pair, read_npz
from layermerge.data.images import ArrayImages
from layermerge.data.loaded import import_pillow
from layermerge.errors import DataError, first_line

NAME = "cifar10"
CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
TRAIN_FILES, TEST_FILES = tuple(f"data_batch_{number}" for number in range(1, 6)), ("test_batch",)
SIDE = 32
RECORD = 1 + 3 * SIDE * SIDE

Pixels = npt.NDArray[np.uint8]


def read_cifar10(path: Path) -> Pair:
    """Whichever layout is found at the path."""
    if path.suffix == ".npz":
        return read_npz(path, NAME, CLASSES)
    for folder in (path, path / "cifar-10-batches-bin"):
        if (folder / "data_batch_1.bin").is_file():
            return _read_records(folder, "train", TRAIN_FILES), _read_records(folder, "test", TEST_FILES)
        if (folder / "data_batch_1.png").is_file():
            return _read_sheets(folder, "train", TRAIN_FILES), _read_sheets(folder, "test", TEST_FILES)
    for folder in (path, path / "cifar-10-batches-py"):
        if (folder / "data_batch_1").is_file():
            raise DataError(f"'{folder}' is the pickled python version of CIFAR-10; take the binary version instead")
    raise DataError(f"'{path}' holds no CIFAR-10; it needs data_batch_1.bin to _5.bin and test_batch.bin, or an .npz")


def _read_records(folder: Path, part: str, names: tuple[str, ...]) -> ArrayImages:
    """The binary version: a label and the three colour planes of each image."""
    parts: list[Pixels] = []
    for name in names:
        file = folder / f"{name}.bin"
        content = _content(file)
        if not content or len(content) % RECORD:
            raise DataError(
                f"'{file}' has {len(content)} bytes, not a multiple of {RECORD}; it is torn: fetch it again"
            )
        parts.append(np.frombuffer(content, np.uint8).reshape(-1, RECORD))
    records = np.concatenate(parts)
    pixels = records[:, 1:].reshape(-1, 3, SIDE, SIDE).transpose(0, 2, 3, 1)
    return ArrayImages(f"{NAME} {part}", pixels, records[:, 0], CLASSES)


def _read_sheets(folder: Path, part: str, names: tuple[str, ...]) -> ArrayImages:
    """Sheets: one image per row, its pixels in reading order; labels of all sheets in one list."""
    file = folder / f"{part}_lables.json"  # spelled so where these sheets are published
    try:
        labels: Any = json.loads(_content(file))
    except ValueError as error:
        raise DataError(f"'{file}' is no list of labels ({first_line(error)}); fetch it again") from None
    pixels = np.concatenate([_read_sheet(folder / f"{name}.png") for name in names])
    return ArrayImages(f"{NAME} {part}", pixels, labels, CLASSES)


def _read_sheet(file: Path) -> Pixels:
    pillow = import_pillow()
    _content(file, 1)
    allowed = pillow.MAX_IMAGE_PIXELS
    pillow.MAX_IMAGE_PIXELS = None  # a sheet is larger than Pillow takes a picture to be
    try:
        with pillow.open(file) as sheet:
            pixels = np.asarray(sheet.convert("RGB"))
    except Exception as error:  # decoders raise whatever they like at a torn file
        raise DataError(f"'{file}' cannot be read ({first_line(error)}); fetch it again") from None
    finally:
        pillow.MAX_IMAGE_PIXELS = allowed
    if pixels.shape[1] != SIDE * SIDE:
        raise DataError(f"'{file}' is {pixels.shape[1]} pixels wide, not {SIDE * SIDE}: one image per row")
    return pixels.reshape(-1, SIDE, SIDE, 3)


def _content(file: Path, size: int = -1) -> bytes:
    try:
        with file.open("rb") as stream:
            return stream.read(size)
    except OSError as error:
        raise DataError(f"'{file}' cannot be read ({error.strerror}); CIFAR-10 needs it") from None
