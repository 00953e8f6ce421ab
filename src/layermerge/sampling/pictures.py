"""Pictures: images to and from files.

In: tensors, uint8 or float in [0, 1], N x C x H x W; or the name of a place that holds images. Out: PNG files, written
whole or not at all; or uint8 N x C x H x W. Nothing is unpickled; what cannot be read is a DataError that names the file.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from layermerge.data.folders import FolderImages, decode, import_pillow
from layermerge.data.images import ArrayImages
from layermerge.data.readers import load_images
from layermerge.errors import ArtifactError, DataError
from layermerge.files import write_files

SUFFIXES = (".png", ".jpg", ".jpeg")
_GAP = 2
_WHITE = 255
_AT_ONCE = 1024


def to_pixels(images: Tensor, name: str = "images") -> Tensor:
    """Images in [0, 1] as uint8, rounded; uint8 as they are."""
    if images.dtype == torch.uint8:
        return images
    if not images.is_floating_point():
        raise DataError(f"{name} are {str(images.dtype).removeprefix('torch.')}; give uint8, or float in [0, 1]")
    pixels = torch.empty(images.shape, dtype=torch.uint8)
    for first in range(0, len(images), _AT_ONCE):  # floats of them all would take four times their memory
        part = images[first : first + _AT_ONCE]
        if not bool(((part >= 0) & (part <= 1)).all()):  # also where not a number
            raise DataError(
                f"{name} have float values outside [0, 1], from image {first} on; scale them, or give uint8"
            )
        pixels[first : first + _AT_ONCE] = (part * 255).round().to(torch.uint8)
    return pixels


def write_grid(images: Tensor, path: str | Path, columns: int | None = None) -> Path:
    """Writes images as one PNG, row by row with a thin gap; by default as close to a square as their number allows."""
    target = Path(path)
    require_png(target)
    pixels = _drawable(images)
    if columns is not None and columns < 1:
        raise DataError(f"a grid of {columns} columns has no place for images; give 1 or more")
    across = min(columns or math.ceil(math.sqrt(len(pixels))), len(pixels))
    down = math.ceil(len(pixels) / across)
    height, width = pixels.shape[2] + _GAP, pixels.shape[3] + _GAP
    sheet = torch.full((pixels.shape[1], down * height - _GAP, across * width - _GAP), _WHITE, dtype=torch.uint8)
    for place, image in enumerate(pixels):
        top, left = place // across * height, place % across * width
        sheet[:, top : top + image.shape[1], left : left + image.shape[2]] = image
    write_files({target: _png_writer(sheet)})
    return target


def require_png(path: Path) -> None:
    """Refuses another kind of file; to be called before images are made for it."""
    if path.suffix.lower() != ".png":
        raise DataError(f"cannot write the grid '{path}'; give a name that ends in .png")


def write_images(images: Tensor, directory: str | Path) -> tuple[Path, ...]:
    """Writes every image as a PNG, named 00000.png and so on."""
    place, pixels = Path(directory), _drawable(images)
    require_free(place, len(pixels))
    files = {place / _file_name(index): _png_writer(image) for index, image in enumerate(pixels)}
    try:
        write_files(files)
    except ArtifactError as error:  # its own words would name every file
        cause = error.__cause__
        raise ArtifactError(f"cannot write images to '{place}': {getattr(cause, 'strerror', None) or cause}") from error
    return tuple(files)


def require_free(directory: Path, count: int) -> None:
    """Refuses a folder with images that `count` new ones would not replace; to be called before these are made."""
    names = {_file_name(index) for index in range(count)}
    # Images of an earlier, larger set would be taken for some of the new one.
    other = next((file for file in _image_files(directory) if file.parent != directory or file.name not in names), None)
    if other is not None:
        raise DataError(
            f"'{directory}' holds other images, such as '{other}'; remove them, or write to an empty folder"
        )


def _file_name(index: int) -> str:
    return f"{index:05}.png"


def read_images(place: str | Path) -> Tensor:
    """Images of a folder of files, of an .npy or .npz array, or of the training part of a source such as `embedded`."""
    path = Path(place).expanduser()
    if path.is_dir():
        files = _image_files(path)
        if not files:
            raise DataError(f"folder '{path}' has no images ({', '.join(SUFFIXES)}), at any depth")
        return _read_files(files)
    if path.suffix in (".npy", ".npz") and ":" not in str(place):
        return _read_array(path)
    if not (":" in str(place) or str(place) == "embedded"):
        raise DataError(
            f"'{place}' is not a place of images; give a folder, an .npy or .npz file, or a source such as cifar10:PATH"
        )
    images, _ = load_images(str(place))
    if isinstance(images, FolderImages):
        return _read_files(images.files)  # at their own size, not as prepared for a classifier
    if not isinstance(images, ArrayImages):
        raise DataError(f"'{place}' holds {type(images).__name__}, which are not read here; give a folder or an array")
    return to_pixels(images.pixels, f"images of {images.name}")


def _image_files(directory: Path) -> list[Path]:
    found = (file for file in directory.rglob("*") if file.suffix.lower() in SUFFIXES and file.is_file())
    return sorted(file for file in found if not any(part.startswith(".") for part in file.relative_to(directory).parts))


def _read_files(files: Sequence[Path]) -> Tensor:
    decoded: list[Tensor] = []
    for file in files:
        image = _decode(file)
        if decoded and image.shape[1:] != decoded[0].shape[1:]:
            sizes = ["x".join(map(str, shape.shape[1:])) for shape in (image, decoded[0])]
            raise DataError(f"image '{file}' is {sizes[0]}, but '{files[0]}' is {sizes[1]}; resize them to one size")
        decoded.append(image)
    channels = max(len(image) for image in decoded)  # grey ones among coloured ones become coloured
    return torch.stack([image.expand(channels, -1, -1) for image in decoded])


def _decode(file: Path) -> Tensor:
    pixels = np.array(decode(file))
    return torch.from_numpy(pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1).copy())


def _read_array(path: Path) -> Tensor:
    try:
        with path.open("rb") as stream:  # opened here, as numpy leaves a truncated file open
            held = np.load(stream, allow_pickle=False)
            array = held if path.suffix == ".npy" else _only_array(path, held)
        given = torch.from_numpy(np.ascontiguousarray(array))
    except FileNotFoundError:
        raise DataError(f"'{path}' does not exist; give the file of the images") from None
    except DataError:
        raise
    except Exception:  # numpy's own words advise to unpickle, which is never right here
        raise DataError(
            f"'{path}' is truncated or not an {path.suffix} file of plain numbers; write it with numpy.save"
        ) from None
    return to_pixels(_channels_first(path, given), f"images of '{path}'")


def _only_array(path: Path, held: Any) -> Any:
    names = list(held)
    name = next((known for known in ("images", "arr_0") if known in names), names[0] if len(names) == 1 else None)
    if name is None:
        raise DataError(f"'{path}' holds {', '.join(names) or 'nothing'}; name one array 'images', or use npz:{path}")
    return held[name]


def _channels_first(path: Path, given: Tensor) -> Tensor:
    if given.ndim == 3 and len(given):
        return given.unsqueeze(1)
    if given.ndim == 4 and len(given) and given.shape[3] in (1, 3):
        return given.permute(0, 3, 1, 2).contiguous()
    if given.ndim == 4 and len(given) and given.shape[1] in (1, 3):
        return given
    raise DataError(
        f"'{path}' is of shape {tuple(given.shape)}; give images as N x H x W x C, N x C x H x W or N x H x W, "
        "of 1 or 3 channels"
    )


def _drawable(images: Tensor) -> Tensor:
    if images.ndim != 4 or images.shape[1] not in (1, 3) or not images.numel():
        raise DataError(
            f"cannot write images of shape {tuple(images.shape)} as PNG; give N x C x H x W of 1 or 3 channels"
        )
    return to_pixels(images.detach().cpu())


def _png_writer(image: Tensor) -> Callable[[Path], None]:
    array = image.permute(1, 2, 0).numpy()
    picture = import_pillow().fromarray(array[:, :, 0] if array.shape[2] == 1 else np.ascontiguousarray(array))

    def write(path: Path) -> None:
        picture.save(path, format="PNG")

    return write
