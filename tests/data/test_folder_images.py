"""Image folders: pixels against PIL and timm's own transform, workers that change nothing, and folders that are refused."""

from __future__ import annotations

import random
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from layermerge.data.loaded import FolderImages
from layermerge.data.preparation import STATISTICS
from layermerge.errors import DataError, ModelError
from layermerge.models import import_torchvision
from layermerge.tasks import Classification, Draw, Preparation, load_images

SMALL = Preparation(STATISTICS["imagenet"], size=16, interpolation="bicubic", crop_pct=0.8)


def make_folder(root: Path, count: int = 4) -> Path:
    """Two classes, images of several sizes, kinds and modes."""
    generator = np.random.default_rng(0)
    for part, each in (("train", count), ("val", 2)):
        for name in ("cat", "dog"):
            folder = root / part / name
            folder.mkdir(parents=True)
            for number in range(each):
                shape = (20 + number, 30, 3) if number % 2 else (24, 20 + number)
                pixels = generator.integers(0, 256, shape, dtype=np.uint8)
                Image.fromarray(pixels).save(folder / f"{number}.{('png', 'bmp', 'jpeg', 'webp')[number % 4]}")
            (folder / "notes.txt").write_text("no image")
    return root


def train_images(root: Path) -> FolderImages:
    images = load_images(f"imagefolder:{root}")[0]
    assert isinstance(images, FolderImages)
    return images


def read(images: Any, preparation: Preparation, seed: int | None, workers: int = 0) -> torch.Tensor:
    cut = [np.array([0, 5, 2]), np.array([7, 1])]
    return torch.cat([pixels for pixels, _ in images.batches(cut, preparation, seed, workers)])


def global_state() -> Any:
    numpys: Any = np.random.get_state()
    return random.getstate(), numpys[1].tolist(), torch.get_rng_state().tolist()


def test_folders_are_found_and_named(tmp_path: Path) -> None:
    train, test = load_images(f"imagefolder:{make_folder(tmp_path / 'pets')}")
    assert (train.name, test.name) == ("pets/train", "pets/val")
    assert train.classes == test.classes == ("cat", "dog")
    assert train.labels.tolist() == [0] * 4 + [1] * 4
    assert len(test) == 4


def test_evaluation_is_timms(tmp_path: Path) -> None:
    images = train_images(make_folder(tmp_path))
    import_torchvision()
    from timm.data import create_transform

    transform = create_transform(
        16,
        interpolation="bicubic",
        crop_pct=0.8,
        mean=STATISTICS["imagenet"].mean,  # type: ignore[union-attr]
        std=STATISTICS["imagenet"].std,  # type: ignore[union-attr]
    )
    expected = torch.stack([transform(Image.open(images.files[index]).convert("RGB")) for index in (0, 5, 2, 7, 1)])
    torch.testing.assert_close(read(images, SMALL, None), expected, atol=1e-6, rtol=0)
    varied = Preparation(SMALL.normalise, "randaugment", size=16, interpolation="bicubic", crop_pct=0.8)
    assert torch.equal(read(images, varied, None), read(images, SMALL, None))


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize("augment", ["crop_flip", "imagenet", "randaugment"])
def test_workers_change_nothing_nor_does_reading_draw_on_global_state(tmp_path: Path, augment: Any) -> None:
    images = train_images(make_folder(tmp_path))
    preparation = Preparation(augment=augment, size=16)
    before = global_state()
    alone = read(images, preparation, 3)
    assert global_state() == before
    assert torch.equal(alone, read(images, preparation, 3, workers=2))
    assert not torch.equal(alone, read(images, preparation, 4))
    ((last, _),) = images.batches([np.array([1])], preparation, 3)
    assert torch.equal(last[0], alone[-1])


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize("workers", [0, 1])
def test_a_torn_image_is_named_in_one_line(tmp_path: Path, workers: int) -> None:
    torn = make_folder(tmp_path) / "train" / "dog" / "2.jpeg"
    torn.write_bytes(torn.read_bytes()[:200])
    task = Classification(*load_images(f"imagefolder:{tmp_path}"), preparation=SMALL, held_out=2, workers=workers)
    # Skipped batches are not decoded, so a torn image in them goes unseen.
    assert len(list(task.train_batches(Draw(0, 1, first=99)))) == 0
    with pytest.raises(DataError) as raised:
        list(train_images(tmp_path).batches([np.arange(8)], SMALL, 0, workers))
    message = str(raised.value)
    assert message.startswith(f"image '{torn}' cannot be read (")
    assert message.endswith("); repair or remove it")
    assert "\n" not in message


def test_a_timm_model_says_how_it_reads() -> None:
    import_torchvision()
    import timm

    stated = {"input_size": (3, 160, 160), "mean": (0.5, 0.4, 0.3), "interpolation": "bicubic", "crop_pct": 0.9}
    model = timm.create_model("resnet18", pretrained_cfg_overlay=stated)
    assert Preparation.for_timm(model, augment="imagenet").describe() == {
        "mean": "0.5, 0.4, 0.3",
        "std": "0.229, 0.224, 0.225",
        "augment": "imagenet",
        "pad": 4,
        "size": 160,
        "interpolation": "bicubic",
        "crop_pct": 0.9,
    }


def test_a_missing_timm_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    images = train_images(make_folder(tmp_path))
    monkeypatch.setitem(sys.modules, "timm.data", None)
    with pytest.raises(ModelError, match=r"image folders need timm .*; try: pip install 'layermerge\[models\]'"):
        read(images, SMALL, None)


def test_the_fingerprint_names_files_and_sizes_not_where_they_are(tmp_path: Path) -> None:
    first, second = (train_images(make_folder(tmp_path / name)) for name in ("a", "b"))
    assert first.fingerprint() == second.fingerprint()
    with second.files[0].open("ab") as file:
        file.write(b"more")
    assert first.fingerprint() != second.fingerprint()


def test_folders_that_are_refused(tmp_path: Path) -> None:
    root = make_folder(tmp_path / "set")

    def refused(message: str) -> None:
        with pytest.raises(DataError) as raised:
            load_images(f"imagefolder:{root}")
        assert message in str(raised.value)
        assert "\n" not in str(raised.value)

    (root / "val" / "bird").mkdir()
    refused(f"class folder '{root}/val/bird' has no images")
    (root / "val" / "bird" / "a.PNG").write_bytes(b"")
    refused(f"class 'bird' is in '{root}/val' but not in '{root}/train'; both need the same classes")
    (root / "val").rename(root / "other")
    refused(f"'{root}' has no folder 'val', 'validation' or 'test'; it needs train/CLASS/*.jpg")
    (root / "test").mkdir()
    refused(f"'{root}/test' has no class folders; put images into one folder per class")
    (root / "train").rename(root / "training")
    refused(f"'{root}' has no folder 'train'")
