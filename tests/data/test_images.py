"""Images in memory: crops and flips against numpy slices, normalisation by hand, and what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from layermerge.data.images import ArrayImages
from layermerge.data.preparation import STATISTICS, Preparation, Statistics
from layermerge.errors import DataError

CROP_FLIP = Preparation(augment="crop_flip", pad=2)


def pictures(count: int = 40, channels: int = 3) -> Any:
    return np.random.default_rng(3).integers(1, 256, (count, 6, 5, channels), dtype=np.uint8)


def read(images: ArrayImages, indices: list[int], preparation: Preparation, seed: int | None) -> torch.Tensor:
    ((pixels, labels),) = images.batches([np.array(indices)], preparation, seed)
    assert labels.tolist() == images.labels[indices].tolist()
    return pixels


def possible_views(picture: Any, pad: int) -> list[Any]:
    """Every crop of the padded picture and its mirror image, by slicing."""
    height, width, _ = picture.shape
    padded = np.pad(picture, ((pad, pad), (pad, pad), (0, 0)))
    crops = [
        padded[top : top + height, left : left + width] for top in range(2 * pad + 1) for left in range(2 * pad + 1)
    ]
    return crops + [crop[:, ::-1] for crop in crops]


@pytest.mark.parametrize("channels", [1, 3])
def test_crops_and_flips_are_slices(channels: int) -> None:
    pixels = pictures(400, channels)
    images = ArrayImages("set", pixels, np.arange(400) % 7)
    out = read(images, list(range(400)), CROP_FLIP, 5)
    seen = set()
    for picture, varied in zip(pixels, out, strict=True):
        back = (varied * 255).round().to(torch.uint8).permute(1, 2, 0).numpy()
        found = [place for place, view in enumerate(possible_views(picture, 2)) if np.array_equal(view, back)]
        assert len(found) == 1
        seen.add(found[0])
    assert seen == set(range(50))  # 5 x 5 corners, mirrored or not


def test_flip_mirrors_about_half() -> None:
    pixels = pictures(400)
    out = read(ArrayImages("set", pixels, np.zeros(400, int)), list(range(400)), Preparation(augment="flip"), 1)
    plain = torch.from_numpy(pixels).permute(0, 3, 1, 2) / 255
    mirrored = [torch.equal(a, b.flip(2)) for a, b in zip(out, plain, strict=True)]
    assert all(m or torch.equal(a, b) for m, a, b in zip(mirrored, out, plain, strict=True))
    assert 150 < sum(mirrored) < 250


def test_an_example_looks_the_same_in_any_batch() -> None:
    images = ArrayImages("set", pictures(), np.arange(40) % 7)
    whole = read(images, list(range(40)), CROP_FLIP, 9)
    assert torch.equal(read(images, [31, 4], CROP_FLIP, 9), whole[[31, 4]])
    assert not torch.equal(read(images, list(range(40)), CROP_FLIP, 10), whole)


def test_evaluation_varies_nothing_and_normalises() -> None:
    pixels = pictures()
    statistics = Statistics((0.1, 0.2, 0.3), (0.5, 0.6, 0.7))
    out = read(ArrayImages("set", pixels, np.zeros(40, int)), [3, 5], Preparation(statistics, "crop_flip"), None)
    expected = ((pixels[[3, 5]] / 255 - statistics.mean) / statistics.std).transpose(0, 3, 1, 2)
    np.testing.assert_allclose(out.numpy(), expected, atol=1e-6)
    assert out.is_contiguous()


def test_channels_may_come_first_and_floats_are_left_alone() -> None:
    pixels = pictures()
    first = ArrayImages("set", pixels.transpose(0, 3, 1, 2).copy(), np.zeros(40, int))
    assert torch.equal(first.pixels, ArrayImages("set", pixels, np.zeros(40, int)).pixels)
    floats = torch.randn(4, 2, 3, 3)
    images = ArrayImages("set", floats, torch.zeros(4, dtype=torch.int64))
    assert torch.equal(read(images, [2, 0], Preparation(), None), floats[[2, 0]])
    with pytest.raises(
        DataError, match=r"set holds float images, which are already prepared; give uint8, or normalise"
    ):
        read(images, [0], Preparation(STATISTICS["imagenet"]), None)


def test_the_fingerprint_names_pixels_and_labels() -> None:
    def named(change: int, label: int) -> str:
        pixels = pictures()
        pixels[39, 0, 0, 0] = change
        return ArrayImages("set", pixels, [label] + [1] * 39).fingerprint()

    assert named(1, 0) == named(1, 0)
    assert len({named(1, 0), named(2, 0), named(1, 1)}) == 3


@pytest.mark.parametrize(
    ("pixels", "labels", "message"),
    [
        (pictures(3), [0, 1], "set has 3 images and 2 labels; give one label per image"),
        (pictures(2), [0, -1], "set has label -1 at index 1, outside 0..2"),
        (pictures(2), [3, 0], "set has label 3 at index 0, outside 0..2"),
        (pictures(2), [0.5, 1.0], r"labels of set are float64 of shape \(2,\); give one whole number per image"),
        (pictures(2), [[0], [1, 2]], "give one whole number per image"),
        (pictures(0), np.zeros(0, int), "set is empty; give at least one image"),
        (np.zeros((2, 5, 5, 7), np.uint8), [0, 1], r"images of set are uint8 of shape \(2, 5, 5, 7\); give uint8"),
        (np.zeros((2, 5, 5, 3), np.int32), [0, 1], "images of set are int32"),
        (np.array(["a", "b"]), [0, 1], "images of set are not an array of numbers"),
    ],
)
def test_arrays_that_are_refused(pixels: Any, labels: Any, message: str) -> None:
    with pytest.raises(DataError, match=message) as raised:
        ArrayImages("set", pixels, labels, ("a", "b", "c"))
    assert len(str(raised.value).splitlines()) == 1
