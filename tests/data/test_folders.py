"""Image folders: pixels against PIL and timm's own transform, workers that change nothing, and folders that are refused."""

from __future__ import annotations

import random
import struct
import sys
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from layermerge.data import folders
from layermerge.data.folders import FolderImages, decode
from layermerge.data.preparation import STATISTICS
from layermerge.errors import DataError, MissingPackage
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
            (folder / ".notes").write_text("no image")
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
def test_a_truncated_image_is_named_in_one_line(tmp_path: Path, workers: int) -> None:
    truncated = make_folder(tmp_path) / "train" / "dog" / "2.jpeg"
    truncated.write_bytes(truncated.read_bytes()[:200])
    task = Classification(*load_images(f"imagefolder:{tmp_path}"), preparation=SMALL, held_out=2, workers=workers)
    # Skipped batches are not decoded, so a truncated image in them goes unseen.
    assert len(list(task.train_batches(Draw(0, 1, first=99)))) == 0
    with pytest.raises(DataError) as raised:
        list(train_images(tmp_path).batches([np.arange(8)], SMALL, 0, workers))
    message = str(raised.value)
    assert message.startswith(f"image '{truncated}' cannot be read (")
    assert message.endswith("); repair or remove it")
    assert "\n" not in message


def test_a_missing_timm_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    images = train_images(make_folder(tmp_path))
    monkeypatch.setitem(sys.modules, "timm.data", None)
    with pytest.raises(
        MissingPackage, match=r"an image folder needs timm.data, .*; try: pip install 'layermerge\[models\]'"
    ):
        read(images, SMALL, None)


# -- the fingerprint


def changed(name: str, content: bytes) -> bytes:
    """Other content of the same length, as `name` says."""
    if name == "one bit in the middle":
        middle = len(content) // 2
        return content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]
    return content + b"more" if name == "longer" else content[::-1]


@pytest.mark.parametrize("change", ["one bit in the middle", "longer", "other pixels"])
def test_the_fingerprint_names_content_not_where_it_is(tmp_path: Path, change: str) -> None:
    first, second = (train_images(make_folder(tmp_path / name)) for name in ("a", "b"))
    assert first.fingerprint() == second.fingerprint()
    second.files[0].write_bytes(changed(change, second.files[0].read_bytes()))
    assert first.fingerprint() != second.fingerprint()


def test_of_many_large_files_the_ends_of_some_are_fingerprinted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bounded, so that a million images do not have to be read; every file's size still counts."""
    monkeypatch.setattr(folders, "_SAMPLED_FILES", 4)
    monkeypatch.setattr(folders, "_SAMPLED_BYTES", 64)
    images = train_images(make_folder(tmp_path))
    fingerprints = [images.fingerprint()]
    for index, place, seen in ((0, 0, True), (0, 100, False), (0, -1, True), (1, 0, False), (6, 0, True)):
        content = bytearray(images.files[index].read_bytes())
        content[place] ^= 1
        images.files[index].write_bytes(content)
        fingerprints.append(images.fingerprint())
        assert (fingerprints[-1] != fingerprints[-2]) == seen
    with images.files[1].open("ab") as file:
        file.write(b"more")
    assert images.fingerprint() not in fingerprints


def test_a_broken_link_is_one_line_wherever_it_is_met(tmp_path: Path) -> None:
    link = make_folder(tmp_path) / "train" / "cat" / "9.png"
    link.symlink_to(tmp_path / "nowhere.png")
    images = train_images(tmp_path)
    for meet in (images.fingerprint, lambda: list(images.batches([np.arange(9)], SMALL, None))):
        with pytest.raises(DataError) as raised:
            meet()
        assert str(raised.value) == f"image '{link}' cannot be read (No such file or directory); repair or remove it"


# -- what files hold


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGB", "RGBA", "CMYK"])
def test_eight_bits_a_channel_are_read_as_pillow_does(tmp_path: Path, mode: str) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (9, 7, 3), dtype=np.uint8)
    file = tmp_path / ("a.jpg" if mode == "CMYK" else "a.png")
    Image.fromarray(pixels).convert(mode).save(file)
    assert decode(file).mode == ("L" if mode in ("1", "L", "LA") else "RGB")
    assert np.array_equal(np.asarray(decode(file).convert("RGB")), np.asarray(Image.open(file).convert("RGB")))


def test_sixteen_bits_of_grey_are_scaled(tmp_path: Path) -> None:
    values = np.linspace(0, 65535, 2000).round().astype(np.uint16).reshape(40, 50)
    Image.fromarray(values).save(tmp_path / "a.png")
    decoded = np.asarray(decode(tmp_path / "a.png"), dtype=np.float64)
    assert np.abs(decoded / 255 - values / 65535).max() <= 0.5 / 255 + 1e-9
    assert (decoded.min(), decoded.max()) == (0, 255)


def test_sixteen_bits_of_grey_are_trained_on_as_they_look(tmp_path: Path) -> None:
    root = make_folder(tmp_path)
    dark = np.full((24, 24), round(0.227 * 65535), np.uint16)
    Image.fromarray(dark).save(root / "train" / "cat" / "0.png")
    ((images, _),) = train_images(root).batches([np.array([0])], Preparation(size=16), None)
    assert float(images.mean()) == pytest.approx(0.227, abs=0.5 / 255)


def test_other_kinds_of_pixels_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "a.png"
    Image.fromarray(np.ones((4, 4), np.float32)).save(file, format="TIFF")
    with pytest.raises(DataError) as raised:
        decode(file)
    assert str(raised.value) == f"image '{file}' has pixels of kind F; give 8 bits per channel, grey or RGB"


@pytest.mark.filterwarnings("ignore:Image size:PIL.Image.DecompressionBombWarning")
@pytest.mark.parametrize(
    ("side", "message"),
    [(13_000, "has 169,000,000 pixels; at most 89,478,485 are read: scale it down"), (20_000, "Image size (400000000")],
)
def test_huge_images_are_refused_before_they_are_decoded(tmp_path: Path, side: int, message: str) -> None:
    file = tmp_path / "a.png"
    header = b"IHDR" + struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
    data = b"IDAT"
    chunks = (
        struct.pack(">I", len(chunk) - 4) + chunk + struct.pack(">I", zlib.crc32(chunk)) for chunk in (header, data)
    )
    file.write_bytes(b"\x89PNG\r\n\x1a\n" + b"".join(chunks))
    with pytest.raises(DataError) as raised:
        decode(file)
    assert str(raised.value).startswith(f"image '{file}' ")
    assert message in str(raised.value)


# -- what is skipped and what is refused


def test_skipped_files_are_counted_in_one_warning(tmp_path: Path) -> None:
    root = make_folder(tmp_path / "set")
    for place in ("train/cat/a.tif", "train/dog/b.TIF", "val/cat/c.tif", "val/dog/notes.txt", "train/cat/README"):
        (root / place).write_bytes(b"")
    message = (
        f"'{root}': 5 files are skipped (3 .tif, 1 without a suffix, 1 .txt); "
        "images end in .bmp, .jpeg, .jpg, .png, .webp"
    )
    with pytest.warns(UserWarning, match="files are skipped") as warned:
        train, _ = load_images(f"imagefolder:{root}")
    assert [str(warning.message) for warning in warned] == [message]
    assert Path(warned[0].filename).is_relative_to(Path(folders.__file__).parents[1])  # so the command line shows it
    assert len(train) == 8


def test_a_class_without_test_images_is_a_warning(tmp_path: Path) -> None:
    root = make_folder(tmp_path)
    for file in (root / "val" / "dog").iterdir():
        file.unlink()
    with pytest.warns(UserWarning, match="have no images") as warned:
        load_images(f"imagefolder:{root}")
    assert [str(warning.message) for warning in warned] == [
        f"'{root}/val': 1 of 2 classes have no images, such as 'dog'; the score says nothing about them"
    ]


def test_folders_that_are_refused(tmp_path: Path) -> None:
    root = make_folder(tmp_path / "set")

    def refused(message: str) -> None:
        with pytest.raises(DataError) as raised:
            load_images(f"imagefolder:{root}")
        assert message in str(raised.value)
        assert "\n" not in str(raised.value)

    (root / "val" / "bird").mkdir()
    refused(f"class 'bird' is in '{root}/val' but not in '{root}/train'; both need the same classes")
    (root / "train" / "bird").mkdir()
    (root / "val" / "bird" / "a.PNG").write_bytes(b"")
    refused(f"class folder '{root}/train/bird' has no images (.bmp, .jpeg, .jpg, .png, .webp); fill or remove it")
    (root / "val").rename(root / "other")
    refused(f"'{root}' has no folder 'val', 'validation' or 'test'; it needs train/CLASS/*.jpg")
    (root / "test").mkdir()
    refused(f"'{root}/test' has no class folders; put images into one folder per class")
    (root / "train").rename(root / "training")
    refused(f"'{root}' has no folder 'train'")
