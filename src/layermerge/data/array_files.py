"""Arrays in one .npz file: x_train, y_train, x_test, y_test. Out: ArrayImages. Object arrays are pickled, so refused."""

from __future__ import annotations

import lzma
import zipfile
import zlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from layermerge.data.images import ArrayImages, Images
from layermerge.errors import DataError

Pair = tuple[Images, Images]
KEYS = ("x_train", "y_train", "x_test", "y_test")


def read_npz(path: Path, name: str, classes: Sequence[str] | None = None) -> Pair:
    """Training and test images of a file; `name` is what they are called."""
    try:
        # Opened here, as numpy leaves a torn file open.
        with path.open("rb") as stream, np.load(stream, allow_pickle=False) as file:
            missing = [key for key in KEYS if key not in file]
            if missing:
                raise DataError(f"'{path}' has no array '{missing[0]}'; it needs {', '.join(KEYS)}")
            x_train, y_train, x_test, y_test = (file[key] for key in KEYS)
    except (OSError, ValueError, TypeError, AttributeError, EOFError, zipfile.BadZipFile, zlib.error, lzma.LZMAError):
        # numpy's own words advise to unpickle, which is never right here
        raise DataError(f"'{path}' is torn or no .npz of plain arrays; write it with numpy.savez") from None
    train = ArrayImages(f"{name} train", x_train, y_train, classes)
    return train, ArrayImages(f"{name} test", x_test, y_test, classes)
