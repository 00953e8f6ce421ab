"""Fashion-MNIST: idx files from disk, and a part of it that comes with the package. Out: ArrayImages, one channel.

The images are Zalando Research's, under the MIT licence; see embedded/LICENSE.
"""

from __future__ import annotations

import gzip
import math
import zlib
from pathlib import Path

import numpy as np
import numpy.typing as npt

from layermerge.data.array_files import Pair, read_npz
from layermerge.data.images import ArrayImages
from layermerge.errors import DataError, first_line

NAME = "fashion-mnist"
CLASSES = ("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot")
EMBEDDED = Path(__file__).parent / "embedded" / "fashion_mnist.npz"


def read_embedded() -> Pair:
    """The part in the package: enough to try everything out, not enough to claim anything."""
    return read_npz(EMBEDDED, f"embedded {NAME}", CLASSES)


def read_fashion_mnist(path: Path) -> Pair:
    """The whole, from the directory of its four files, compressed or not."""
    return _read_part(path, "train", "train"), _read_part(path, "t10k", "test")


def _read_part(path: Path, prefix: str, part: str) -> ArrayImages:
    pixels = read_idx(path / f"{prefix}-images-idx3-ubyte", 3)
    labels = read_idx(path / f"{prefix}-labels-idx1-ubyte", 1)
    return ArrayImages(f"{NAME} {part}", pixels[..., None], labels, CLASSES)


def read_idx(path: Path, dimensions: int) -> npt.NDArray[np.uint8]:
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
        raise DataError(f"'{file}' is torn or no idx file of {dimensions} dimensions; fetch it again")
    return np.frombuffer(content, np.uint8, offset=start).reshape(sizes)
