"""Image folders: PATH/train/CLASS/*.jpg and PATH/val/CLASS/*.jpg, or images alone in any nesting. Out: FolderImages; files are
opened only when read.

Images have 8 bits per channel when they are read; 16 bits of grey are scaled to 8. A warning says what is skipped.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from layermerge.data.datasets import LoadedImages
from layermerge.data.images import Images, Labels
from layermerge.data.preparation import Preparation, Variation
from layermerge.errors import DataError, first_line, require_package
from layermerge.files import digest

SUFFIXES = (".bmp", ".jpeg", ".jpg", ".png", ".webp")
TEST_FOLDERS = ("val", "validation", "test")
MOST_PIXELS = 89_478_485  # above this Pillow warns of a decompression bomb; decoded, they take 268 MB
_SAMPLED_FILES, _SAMPLED_BYTES = 2048, 1 << 16
_GREY_MODES = {"1", "L", "LA"}
_COLOUR_MODES = {"RGB", "RGBA", "RGBX", "P", "PA", "CMYK", "YCbCr", "HSV", "LAB"}


def read_image_folder(path: Path) -> tuple[Images, Images]:
    """Training images, and those of the first folder there is of val, validation and test."""
    found = next((path / name for name in TEST_FOLDERS if (path / name).is_dir()), None)
    if not (path / "train").is_dir() or found is None:
        lacking = "no folder 'train'" if found else "no folder 'val', 'validation' or 'test'"
        raise DataError(f"'{path}' has {lacking}; it needs train/CLASS/*.jpg and val/CLASS/*.jpg")
    skipped: Counter[str] = Counter()
    train, test = (_read_part(part, skipped) for part in (path / "train", found))
    _warn_of(path, skipped)
    if train.classes != test.classes:
        other = min(set(train.classes) ^ set(test.classes))
        place, lacks = (train, test) if other in train.classes else (test, train)
        raise DataError(f"class '{other}' is in '{place.root}' but not in '{lacks.root}'; both need the same classes")
    for part in (train, test):
        empty = np.flatnonzero(np.bincount(part.labels, minlength=len(part.classes)) == 0)
        if len(empty) and part is train:
            folder = part.root / part.classes[empty[0]]
            raise DataError(f"class folder '{folder}' has no images ({', '.join(SUFFIXES)}); fill or remove it")
        if len(empty):
            warnings.warn(
                f"'{part.root}': {len(empty)} of {len(part.classes)} classes have no images, such as "
                f"'{part.classes[empty[0]]}'; the score says nothing about them",
                stacklevel=2,
            )
    return train, test


def read_images(path: Path) -> FolderImages:
    """All images in a folder and below it, without labels."""
    if not path.is_dir():
        raise DataError(f"'{path}' {'is not a folder' if path.exists() else 'does not exist'}; give a folder of images")
    found = sorted(file for file in path.rglob("*") if file.is_file() and not _hidden(file.relative_to(path)))
    images = [file for file in found if file.suffix.lower() in SUFFIXES]
    if not images:
        raise DataError(f"'{path}' has no images, and neither do the folders in it; they end in {', '.join(SUFFIXES)}")
    others = (file for file in found if file.suffix.lower() not in SUFFIXES)
    _warn_of(path, Counter(file.suffix.lower() or "without a suffix" for file in others))
    return FolderImages(path.resolve().name, path, images, np.zeros(len(images), np.int64), ("images",))


def _hidden(relative: Path) -> bool:
    return any(part.startswith(".") for part in relative.parts)


def _warn_of(path: Path, skipped: Counter[str]) -> None:
    if not skipped:
        return
    counts = ", ".join(f"{count} {suffix}" for suffix, count in skipped.most_common(5))
    warnings.warn(
        f"'{path}': {skipped.total()} files are skipped ({counts}); images end in {', '.join(SUFFIXES)}", stacklevel=3
    )


def _read_part(root: Path, skipped: Counter[str]) -> FolderImages:
    folders = sorted(entry for entry in root.iterdir() if entry.is_dir() and not entry.name.startswith("."))
    if not folders:
        raise DataError(f"'{root}' has no class folders; put images into one folder per class")
    files: list[Path] = []
    labels: list[int] = []
    for label, folder in enumerate(folders):
        entries = sorted(folder.iterdir())
        images = [entry for entry in entries if entry.suffix.lower() in SUFFIXES]
        others = (entry for entry in entries if entry.suffix.lower() not in SUFFIXES and not entry.name.startswith("."))
        skipped.update(entry.suffix.lower() or "without a suffix" for entry in others)
        files += images
        labels += [label] * len(images)
    return FolderImages(f"{root.parent.name}/{root.name}", root, files, labels, [folder.name for folder in folders])


class FolderImages(LoadedImages):
    """Image files, decoded to RGB when they are read."""

    def __init__(self, name: str, root: Path, files: Sequence[Path], labels: Any, classes: Sequence[str]) -> None:
        super().__init__(name, labels, classes)
        self.root, self.files = root, tuple(files)

    def reader(self, preparation: Preparation, seed: int | None) -> Callable[[int], tuple[Any, Any]]:
        import_pillow()  # here, so that what is missing is said once and by this process
        varied = preparation if seed is not None else preparation.without_augment()
        return partial(_read_example, self.files, self.labels, varied.image_transform())

    def finisher(self, preparation: Preparation, seed: int | None) -> Callable[[Tensor, Tensor], Tensor]:
        vary = None if seed is None else Variation(preparation, len(self), seed)
        return lambda images, indices: preparation.finish(images if vary is None else vary(images, indices))

    def _content(self) -> Iterable[str]:
        """Name and size of every file, and what is in some of them: enough to tell data sets apart, cheap for a million."""
        apart = -(-len(self.files) // _SAMPLED_FILES)
        for index, file in enumerate(self.files):
            try:
                size = file.stat().st_size
                content = _ends(file, size) if index % apart == 0 else ""
            except OSError as error:
                raise _unreadable(file, error) from None
            yield f"{file.relative_to(self.root).as_posix()} {size} {content}\n"


def _read_example(
    files: Sequence[Path], labels: Labels, transform: Callable[[Any], Any], index: int
) -> tuple[Any, int]:
    return torch.as_tensor(transform(decode(files[index]).convert("RGB"))), int(labels[index])


def decode(file: Path) -> Any:
    """A file as a Pillow image, grey (L) or RGB."""
    pillow = import_pillow()
    try:
        with pillow.open(file) as image:
            mode, pixels = image.mode, image.width * image.height
            if pixels <= MOST_PIXELS and mode in _GREY_MODES | _COLOUR_MODES:
                return image.convert("L" if mode in _GREY_MODES else "RGB")
            if pixels <= MOST_PIXELS and mode == "I;16":  # Pillow's own conversion cuts values off at 255
                return pillow.fromarray(np.rint(np.asarray(image) / 257).astype(np.uint8))
    except Exception as error:  # decoders raise whatever they like at a truncated file
        raise _unreadable(file, error) from None
    if pixels > MOST_PIXELS:
        raise DataError(f"image '{file}' has {pixels:,} pixels; at most {MOST_PIXELS:,} are read: scale it down")
    raise DataError(f"image '{file}' has pixels of kind {mode}; give 8 bits per channel, grey or RGB")


def _ends(file: Path, size: int) -> str:
    """Names the first and last bytes of a file; of a small one, all."""
    with file.open("rb") as stream:
        first = stream.read(_SAMPLED_BYTES // 2)
        stream.seek(max(len(first), size - _SAMPLED_BYTES // 2))
        return digest(first, stream.read(_SAMPLED_BYTES // 2))


def _unreadable(file: Path, error: Exception) -> DataError:
    reason = getattr(error, "strerror", None) or first_line(error)
    return DataError(f"image '{file}' cannot be read ({reason}); repair or remove it")


def import_pillow() -> Any:
    """PIL.Image, which is an optional package."""
    return require_package("PIL.Image", "reading images", "layermerge[models]")
