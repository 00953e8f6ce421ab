"""Data sets on disk: every layout gives the images that were written, and every bad file one line that names it."""

from __future__ import annotations

import gzip
import json
import sys
from collections.abc import Callable
from pathlib import Path
from subprocess import run
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from layermerge.data.images import ArrayImages
from layermerge.data.readers import EMBEDDED
from layermerge.errors import DataError
from layermerge.tasks import Classification, Draw, Preparation, load_images

EACH = 3  # images in a file


def cifar_images() -> tuple[Any, Any]:
    """Six files' worth."""
    generator = np.random.default_rng(0)
    return generator.integers(0, 256, (6 * EACH, 32, 32, 3), dtype=np.uint8), generator.integers(0, 10, 6 * EACH)


def write_binary(root: Path) -> None:
    pixels, labels = cifar_images()
    for number, name in enumerate([*(f"data_batch_{k}" for k in range(1, 6)), "test_batch"]):
        part = slice(number * EACH, (number + 1) * EACH)
        records = b"".join(
            bytes([label]) + image.transpose(2, 0, 1).tobytes()
            for image, label in zip(pixels[part], labels[part], strict=True)
        )
        (root / f"{name}.bin").write_bytes(records)


def write_sheets(root: Path) -> None:
    pixels, labels = cifar_images()
    for number, name in enumerate([*(f"data_batch_{k}" for k in range(1, 6)), "test_batch"]):
        sheet = pixels[number * EACH : (number + 1) * EACH].reshape(EACH, 1024, 3)
        if number % 2:
            sheet = np.concatenate([sheet, np.full((EACH, 1024, 1), 255, np.uint8)], 2)
        Image.fromarray(sheet).save(root / f"{name}.png")
    (root / "train_lables.json").write_text(json.dumps(labels[: 5 * EACH].tolist()))
    (root / "test_lables.json").write_text(json.dumps(labels[5 * EACH :].tolist()))


def write_npz(root: Path, **changes: Any) -> Path:
    pixels, labels = cifar_images()
    cut = 5 * EACH
    arrays = {"x_train": pixels[:cut], "y_train": labels[:cut], "x_test": pixels[cut:], "y_test": labels[cut:]}
    arrays = {key: value for key, value in (arrays | changes).items() if value is not None}
    np.savez(root / "set.npz", **arrays)
    return root / "set.npz"


def refused(spec: str) -> str:
    with pytest.raises(DataError) as raised:
        load_images(spec)
    message = str(raised.value)
    assert "\n" not in message
    return message


# -- CIFAR-10


@pytest.mark.parametrize("layout", ["binary", "nested", "sheets", "npz"])
def test_every_layout_of_cifar10_is_the_same(tmp_path: Path, layout: str) -> None:
    place = tmp_path
    if layout == "nested":
        (tmp_path / "cifar-10-batches-bin").mkdir()
        write_binary(tmp_path / "cifar-10-batches-bin")
    elif layout == "npz":
        place = write_npz(tmp_path)
    else:
        (write_binary if layout == "binary" else write_sheets)(tmp_path)
    train, test = load_images(f"cifar10:{place}")
    pixels, labels = cifar_images()
    assert isinstance(train, ArrayImages)
    assert isinstance(test, ArrayImages)
    assert np.array_equal(torch.cat([train.pixels, test.pixels]).permute(0, 2, 3, 1).numpy(), pixels)
    assert [*train.labels.tolist(), *test.labels.tolist()] == labels.tolist()
    assert (train.name, train.classes[3], len(test)) == ("cifar10 train", "cat", EACH)


def cut_short(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-100])


@pytest.mark.parametrize(
    ("write", "name", "change", "message"),
    [
        (
            write_binary,
            "data_batch_2.bin",
            cut_short,
            "is truncated: 9119 bytes, not a multiple of 3073; fetch it again",
        ),
        (
            write_binary,
            "data_batch_3.bin",
            Path.unlink,
            "cannot be read (No such file or directory); CIFAR-10 needs it",
        ),
        (write_sheets, "data_batch_2.png", cut_short, "cannot be read ("),
        (write_sheets, "test_batch.png", Path.unlink, "cannot be read (No such file or directory)"),
        (write_sheets, "train_lables.json", Path.unlink, "cannot be read (No such file or directory)"),
        (write_sheets, "test_lables.json", lambda file: file.write_text("[1,"), "is not a list of labels ("),
        (
            write_sheets,
            "data_batch_1.png",
            lambda file: Image.new("RGB", (32, 32)).save(file),
            "is 32 pixels wide, not 1024: one image per row",
        ),
    ],
)
def test_truncated_cifar10_files_are_named(
    tmp_path: Path, write: Callable[[Path], None], name: str, change: Callable[[Path], Any], message: str
) -> None:
    write(tmp_path)
    change(tmp_path / name)
    assert refused(f"cifar10:{tmp_path}").removeprefix("image ").startswith(f"'{tmp_path / name}' {message}")


def test_cifar10_that_is_refused(tmp_path: Path) -> None:
    assert "does not hold CIFAR-10; it needs data_batch_1.bin" in refused(f"cifar10:{tmp_path}")
    (tmp_path / "cifar-10-batches-py").mkdir()
    (tmp_path / "cifar-10-batches-py" / "data_batch_1").write_bytes(b"\x80\x02}")
    message = refused(f"cifar10:{tmp_path}")
    assert "is the pickled python version of CIFAR-10; take the binary version instead" in message
    write_sheets(tmp_path)
    (tmp_path / "test_lables.json").write_text("[1, 2, 10]")
    assert refused(f"cifar10:{tmp_path}") == "cifar10 test has label 10 at index 2, outside 0..9"
    (tmp_path / "test_lables.json").write_text("[1, 2]")
    assert refused(f"cifar10:{tmp_path}") == "cifar10 test has 3 images and 2 labels; give one label per image"


# -- npz


def test_npz_files_that_are_refused(tmp_path: Path) -> None:
    path = write_npz(tmp_path, y_test=None)
    assert refused(f"npz:{path}") == f"'{path}' has no array 'y_test'; it needs x_train, y_train, x_test, y_test"
    write_npz(tmp_path, y_train=np.array([{}] * 15))
    assert refused(f"npz:{path}") == f"'{path}' is truncated or not an .npz of plain arrays; write it with numpy.savez"
    write_npz(tmp_path)
    cut_short(path)
    assert "is truncated or not an .npz of plain arrays" in refused(f"npz:{path}")
    path.write_bytes(b"\x80\x02}q\x00.")
    assert "is truncated or not an .npz of plain arrays" in refused(f"npz:{path}")
    np.save(tmp_path / "single.npy", np.zeros(3))
    assert "is truncated or not an .npz of plain arrays" in refused(f"npz:{tmp_path / 'single.npy'}")
    write_npz(tmp_path, y_train=np.arange(14))
    assert refused(f"npz:{path}") == "set.npz train has 15 images and 14 labels; give one label per image"
    write_npz(tmp_path, y_train=-np.arange(15))
    assert refused(f"npz:{path}") == "set.npz train has label -14 at index 14, and must not be negative"


def test_npz_gives_what_was_written(tmp_path: Path) -> None:
    train, test = load_images(f"npz:{write_npz(tmp_path)}")
    pixels, _ = cifar_images()
    assert isinstance(train, ArrayImages)
    assert np.array_equal(train.pixels.permute(0, 2, 3, 1).numpy(), pixels[: 5 * EACH])
    assert len(test) == EACH


# -- Fashion-MNIST


def idx(array: Any) -> bytes:
    sizes = b"".join(size.to_bytes(4, "big") for size in array.shape)
    return bytes([0, 0, 8, array.ndim]) + sizes + bytes(array.tobytes())


def write_fashion(root: Path) -> Any:
    generator = np.random.default_rng(1)
    pixels = generator.integers(0, 256, (8, 28, 28), dtype=np.uint8)
    labels = np.array([0, 9, 3, 4, 5, 6, 7, 8], np.uint8)
    (root / "train-images-idx3-ubyte.gz").write_bytes(gzip.compress(idx(pixels[:5])))
    (root / "train-labels-idx1-ubyte").write_bytes(idx(labels[:5]))
    (root / "t10k-images-idx3-ubyte").write_bytes(idx(pixels[5:]))
    (root / "t10k-labels-idx1-ubyte.gz").write_bytes(gzip.compress(idx(labels[5:])))
    return pixels


def test_idx_files_packed_or_not(tmp_path: Path) -> None:
    pixels = write_fashion(tmp_path)
    train, test = load_images(f"fashion-mnist:{tmp_path}")
    assert isinstance(train, ArrayImages)
    assert isinstance(test, ArrayImages)
    assert np.array_equal(torch.cat([train.pixels, test.pixels])[:, 0].numpy(), pixels)
    assert train.labels.tolist() == [0, 9, 3, 4, 5]
    assert train.classes[9] == "Ankle boot"


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("train-images-idx3-ubyte.gz", None, "does not exist, nor with .gz; fashion-mnist: needs the directory"),
        ("train-images-idx3-ubyte.gz", b"no gzip", "cannot be read (Not a gzipped file"),
        ("train-images-idx3-ubyte.gz", gzip.compress(b"x" * 999)[:-9], "cannot be read ("),
        ("t10k-images-idx3-ubyte", b"\0\0\x08\x03", "is truncated or not an idx file of 3 dimensions; fetch it again"),
        ("train-labels-idx1-ubyte", idx(np.zeros(5, np.uint8))[:-1], "is truncated or not an idx file of 1 dimensions"),
    ],
)
def test_truncated_idx_files_are_named(tmp_path: Path, name: str, content: bytes | None, message: str) -> None:
    write_fashion(tmp_path)
    (tmp_path / name).unlink()
    if content is not None:
        (tmp_path / name).write_bytes(content)
    said = refused(f"fashion-mnist:{tmp_path}")
    assert said.startswith(f"'{tmp_path / name.removesuffix('.gz')}")
    assert message in said


# -- the images in the package


def test_the_embedded_images_are_small_and_even() -> None:
    train, test = load_images("embedded")
    assert EMBEDDED.stat().st_size < 4_800_000
    assert "Permission is hereby granted" in (EMBEDDED.parent / "LICENSE").read_text()
    assert np.bincount(train.labels).tolist() == [1100] * 10
    assert np.bincount(test.labels).tolist() == [150] * 10


def test_a_network_learns_the_embedded_images() -> None:
    task = Classification(*load_images("embedded"), preparation=Preparation(augment="flip"))
    model = nn.Sequential(nn.Flatten(), nn.Linear(784, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for batch in task.train_batches(Draw(seed=0, batch_size=32)):
        optimizer.zero_grad()
        loss: Any = task.loss(task.forward(model, batch), batch)
        loss.backward()
        optimizer.step()
    assert task.evaluate(model) > 0.7
    assert task.test(model).value > 0.7


# -- names


@pytest.mark.parametrize("spec", ["imagenet", "mnist:x", "cifar10", "cifar10:", ""])
def test_unknown_sources_list_the_known_ones(spec: str) -> None:
    known = "imagefolder:PATH, cifar10:PATH, fashion-mnist:PATH, npz:PATH or embedded"
    assert refused(spec) == f"'{spec}' does not name a source of images; give {known}"


@pytest.mark.parametrize("kind", ["imagefolder", "cifar10", "fashion-mnist", "npz"])
def test_missing_paths_are_named(tmp_path: Path, kind: str) -> None:
    place = tmp_path / "nowhere"
    assert refused(f"{kind}:{place}") == f"'{place}' does not exist; {kind}: needs the place of the images"


def test_importing_tasks_needs_no_optional_package() -> None:
    code = "import sys, layermerge.tasks; assert not {'timm', 'torchvision', 'PIL'} & set(sys.modules)"
    run([sys.executable, "-c", code], check=True)
