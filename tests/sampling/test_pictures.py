"""Images to and from files: exactly what was written comes back, and every mistake is one line that names the file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from layermerge.data.readers import load_images
from layermerge.errors import ArtifactError, DataError
from layermerge.sampling.pictures import read_images, to_pixels, write_grid, write_images


def pixels(count: int = 5, channels: int = 3, height: int = 6, width: int = 8) -> Tensor:
    shape = (count, channels, height, width)
    return torch.randint(0, 256, shape, dtype=torch.uint8, generator=torch.Generator().manual_seed(count))


def refused(place: Any) -> str:
    with pytest.raises(DataError) as raised:
        read_images(place)
    assert "\n" not in str(raised.value)
    return str(raised.value)


# -- writing


@pytest.mark.parametrize("channels", [1, 3])
def test_written_images_come_back(tmp_path: Path, channels: int) -> None:
    images = pixels(12, channels)
    files = write_images(images, tmp_path / "made")
    assert [file.name for file in files[:2]] == ["00000.png", "00001.png"]
    assert torch.equal(read_images(tmp_path / "made"), images)
    write_images(images.flip(0).float() / 255, tmp_path / "made")  # again, in the same place
    assert torch.equal(read_images(str(tmp_path / "made")), images.flip(0))


def test_floats_are_rounded() -> None:
    assert to_pixels(torch.tensor([0.0, 0.4999 / 255, 0.5001 / 255, 0.5, 1.0])).tolist() == [0, 0, 1, 128, 255]
    every = torch.arange(256, dtype=torch.uint8)
    assert torch.equal(to_pixels(every.float() / 255), every)


def test_images_of_an_earlier_larger_set_are_not_mixed_in(tmp_path: Path) -> None:
    write_images(pixels(5), tmp_path)
    with pytest.raises(DataError, match=r"holds other images, such as '.*00003.png'; remove them"):
        write_images(pixels(3), tmp_path)
    assert torch.equal(read_images(tmp_path), pixels(5))


def test_a_place_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("here")
    with pytest.raises(ArtifactError) as raised:
        write_images(pixels(200), tmp_path / "file")
    assert len(str(raised.value)) < 300


@pytest.mark.parametrize("channels", [1, 3])
def test_grid_has_every_image_at_its_place(tmp_path: Path, channels: int) -> None:
    images = pixels(5, channels)
    read = np.asarray(Image.open(write_grid(images, tmp_path / "grids" / "all.png", columns=2)))
    assert read.shape == (3 * 6 + 2 * 2, 2 * 8 + 2) + ((3,) if channels == 3 else ())
    expected = images.permute(0, 2, 3, 1).numpy().reshape(5, *read[:6, :8].shape)
    for place, (top, left) in enumerate([(0, 0), (0, 10), (8, 0), (8, 10), (16, 0)]):
        assert np.array_equal(read[top : top + 6, left : left + 8], expected[place])
    assert (read[6:8] == 255).all()
    assert (read[16:, 10:] == 255).all()


@pytest.mark.parametrize(("count", "size"), [(1, (8, 6)), (4, (18, 14)), (5, (28, 14)), (64, (78, 62))])
def test_grids_are_nearly_square(tmp_path: Path, count: int, size: tuple[int, int]) -> None:
    with Image.open(write_grid(pixels(count), tmp_path / "grid.png")) as grid:
        assert grid.size == size


@pytest.mark.parametrize(
    ("images", "message"),
    [
        (torch.zeros(2, 2, 4, 4), "1 or 3 channels"),
        (torch.zeros(3, 4, 4), "N x C x H x W"),
        (torch.zeros(0, 3, 4, 4), "cannot write images of shape"),
        (torch.full((1, 3, 4, 4), 1.5), "outside"),
        (torch.full((1, 3, 4, 4), float("nan")), "outside"),
        (torch.zeros(1, 3, 4, 4, dtype=torch.int64), "are int64; give uint8"),
    ],
)
def test_what_is_no_picture(tmp_path: Path, images: Tensor, message: str) -> None:
    for write in (lambda: write_grid(images, tmp_path / "grid.png"), lambda: write_images(images, tmp_path)):
        with pytest.raises(DataError, match=message):
            write()
    assert list(tmp_path.iterdir()) == []


def test_grids_are_png(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"cannot write the grid '.*grid.jpg'; give a name that ends in .png"):
        write_grid(pixels(), tmp_path / "grid.jpg")
    with pytest.raises(DataError, match="grid of 0 columns"):
        write_grid(pixels(), tmp_path / "grid.png", columns=0)


# -- folders


def test_folders_are_read_in_order_at_any_depth(tmp_path: Path) -> None:
    images = pixels(3)
    for name, image in zip(["b.PNG", "a/2.png", "a/1.png"], images, strict=True):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        Image.fromarray(image.permute(1, 2, 0).numpy()).save(tmp_path / name, format="PNG")
    (tmp_path / "notes.txt").write_text("no image")
    (tmp_path / "._b.png").write_text("what some systems leave behind")
    (tmp_path / ".unfinished").mkdir()
    (tmp_path / ".unfinished" / "c.png").write_text("what a killed process leaves behind")
    assert torch.equal(read_images(tmp_path), images.flip(0))


def test_jpegs_are_read(tmp_path: Path) -> None:
    Image.new("RGB", (8, 6), (200, 100, 50)).save(tmp_path / "a.jpg")
    Image.new("RGB", (8, 6), (200, 100, 50)).save(tmp_path / "b.JPEG")
    read = read_images(tmp_path)
    assert read.shape == (2, 3, 6, 8)
    assert (read[1, :, 0, 0].int() - torch.tensor([200, 100, 50])).abs().max() <= 3


def test_grey_among_coloured_becomes_coloured(tmp_path: Path) -> None:
    Image.new("L", (2, 2), 7).save(tmp_path / "a.png")
    Image.new("RGBA", (2, 2), (1, 2, 3, 255)).save(tmp_path / "b.png")
    Image.new("P", (2, 2)).save(tmp_path / "c.png")
    read = read_images(tmp_path)
    assert read[:, :, 0, 0].tolist() == [[7, 7, 7], [1, 2, 3], [0, 0, 0]]


def test_truncated_images_are_named(tmp_path: Path) -> None:
    write_images(pixels(2), tmp_path)
    whole = (tmp_path / "00001.png").read_bytes()
    (tmp_path / "00001.png").write_bytes(whole[: len(whole) // 2])
    assert refused(tmp_path).startswith(f"image '{tmp_path / '00001.png'}' cannot be read (")
    (tmp_path / "00001.png").write_text("nothing like it")
    assert "00001.png' cannot be read" in refused(tmp_path)


def test_mixed_sizes_are_named(tmp_path: Path) -> None:
    write_images(pixels(2), tmp_path)
    Image.new("RGB", (4, 4)).save(tmp_path / "x.png")
    message = refused(tmp_path)
    assert "x.png' is 4x4, but" in message
    assert "00000.png' is 6x8; resize them to one size" in message


def test_deep_pixels_are_scaled(tmp_path: Path) -> None:
    Image.fromarray(np.array([[0, 1000], [32768, 65535]], np.uint16)).save(tmp_path / "deep.png")
    assert read_images(tmp_path).flatten().tolist() == [0, 4, 128, 255]  # of 255 what they are of 65,535


def test_an_empty_folder(tmp_path: Path) -> None:
    assert refused(tmp_path) == f"folder '{tmp_path}' has no images (.png, .jpg, .jpeg), at any depth"


# -- arrays


@pytest.mark.parametrize("suffix", [".npy", ".npz"])
@pytest.mark.parametrize("channels", [1, 3])
def test_layouts_of_arrays(tmp_path: Path, suffix: str, channels: int) -> None:
    images = pixels(4, channels)
    path = tmp_path / f"images{suffix}"
    layouts = [images, images.permute(0, 2, 3, 1), images.float() / 255, images.permute(0, 2, 3, 1).double() / 255]
    for array in layouts if channels == 3 else [*layouts, images[:, 0]]:
        if suffix == ".npy":
            np.save(path, array.numpy())
        else:
            np.savez(path, array.numpy())
        assert torch.equal(read_images(path), images)


def test_one_array_of_several(tmp_path: Path) -> None:
    images = pixels(4).numpy()
    np.savez(tmp_path / "named.npz", images=images, labels=np.zeros(4))
    assert torch.equal(read_images(tmp_path / "named.npz"), pixels(4))
    np.savez(tmp_path / "other.npz", left=images, right=images)
    assert "other.npz' holds left, right; name one array 'images'" in refused(tmp_path / "other.npz")


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (np.zeros((4, 4), np.uint8), r"is of shape (4, 4); give images"),
        (np.zeros((2, 5, 4, 4), np.uint8), "1 or 3 channels"),
        (np.zeros((0, 3, 4, 4), np.uint8), r"is of shape (0, 3, 4, 4)"),
        (np.full((2, 3, 4, 4), 255.0), "float values outside [0, 1]"),
        (np.full((2, 3, 4, 4), np.nan), "float values outside [0, 1]"),
        (np.zeros((2, 3, 4, 4), np.int32), "are int32; give uint8"),
        (np.array([["text"]]), "is truncated or not an .npy file of plain numbers"),
        (np.array([{}], dtype=object), "is truncated or not an .npy file of plain numbers"),
    ],
)
def test_arrays_that_are_no_images(tmp_path: Path, array: Any, message: str) -> None:
    np.save(tmp_path / "array.npy", array, allow_pickle=True)
    assert message in refused(tmp_path / "array.npy")
    assert "array.npy" in refused(tmp_path / "array.npy")


@pytest.mark.parametrize("name", ["cut.npy", "cut.npz"])
def test_truncated_and_missing_arrays(tmp_path: Path, name: str) -> None:
    assert refused(tmp_path / name) == f"'{tmp_path / name}' does not exist; give the file of the images"
    save: Any = np.save if name.endswith("y") else np.savez
    save(tmp_path / name, pixels(20).numpy())
    whole = (tmp_path / name).read_bytes()
    for content in (whole[: len(whole) // 2], b"", b"nothing like it"):
        (tmp_path / name).write_bytes(content)
        assert "is truncated or not an" in refused(tmp_path / name)


# -- sources


def test_sources_are_read_by_their_training_part(tmp_path: Path) -> None:
    train, test = pixels(6), pixels(3)
    arrays: dict[str, Any] = {"x_train": train.permute(0, 2, 3, 1).numpy(), "y_train": np.arange(6) % 2}
    np.savez(tmp_path / "set.npz", **arrays, x_test=test.permute(0, 2, 3, 1).numpy(), y_test=np.arange(3) % 2)
    assert torch.equal(read_images(f"npz:{tmp_path / 'set.npz'}"), train)
    float_arrays: dict[str, Any] = {"x_train": train.float().numpy() / 255, "y_train": np.arange(6) % 2}
    np.savez(tmp_path / "set.npz", **float_arrays, x_test=np.zeros((1, 3, 6, 8), np.float32), y_test=np.zeros(1, int))
    assert torch.equal(read_images(f"npz:{tmp_path / 'set.npz'}"), train)


def test_embedded_images() -> None:
    read: Any = load_images("embedded")[0]
    assert torch.equal(read_images("embedded"), read.pixels)


def test_image_folders_keep_their_size(tmp_path: Path) -> None:
    for part in ("train", "val"):
        for name in ("cat", "dog"):
            write_images(pixels(2), tmp_path / part / name)
    assert torch.equal(read_images(f"imagefolder:{tmp_path}"), torch.cat([pixels(2), pixels(2)]))


def test_places_that_are_none(tmp_path: Path) -> None:
    assert "is not a place of images; give a folder" in refused(tmp_path / "absent")
    assert "does not name a source of images" in refused("nothing:here")
    assert "does not exist" in refused(f"npz:{tmp_path}/absent.npz")
