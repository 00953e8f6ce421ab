"""Image folders: PATH/train/CLASS/*.jpg and PATH/val/CLASS/*.jpg. Out: FolderImages; files are opened only when read."""

from __future__ import annotations

from pathlib import Path

from layermerge.data.array_files import Pair
from layermerge.data.loaded import FolderImages
from layermerge.errors import DataError

SUFFIXES = {".jpg", ".jpeg", ".png", ".bmp", ".webp"}
TEST_FOLDERS = ("val", "validation", "test")


def read_image_folder(path: Path) -> Pair:
    """Training images, and those of the first folder there is of val, validation and test."""
    found = next((path / name for name in TEST_FOLDERS if (path / name).is_dir()), None)
    if not (path / "train").is_dir() or found is None:
        lacking = "no folder 'train'" if found else "no folder 'val', 'validation' or 'test'"
        raise DataError(f"'{path}' has {lacking}; it needs train/CLASS/*.jpg and val/CLASS/*.jpg")
    train, test = _read_part(path / "train"), _read_part(found)
    if train.classes != test.classes:
        other = min(set(train.classes) ^ set(test.classes))
        place, lacks = (train, test) if other in train.classes else (test, train)
        raise DataError(f"class '{other}' is in '{place.root}' but not in '{lacks.root}'; both need the same classes")
    return train, test


def _read_part(root: Path) -> FolderImages:
    folders = sorted(entry for entry in root.iterdir() if entry.is_dir() and not entry.name.startswith("."))
    if not folders:
        raise DataError(f"'{root}' has no class folders; put images into one folder per class")
    files: list[Path] = []
    labels: list[int] = []
    for label, folder in enumerate(folders):
        images = sorted(file for file in folder.iterdir() if file.suffix.lower() in SUFFIXES)
        if not images:
            raise DataError(f"class folder '{folder}' has no images ({', '.join(sorted(SUFFIXES))}); fill or remove it")
        files += images
        labels += [label] * len(images)
    return FolderImages(f"{root.parent.name}/{root.name}", root, files, labels, [folder.name for folder in folders])
