"""Preparation: statistics by name, what a timm model says of itself, and what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from layermerge.data.images import ArrayImages
from layermerge.data.preparation import STATISTICS, Preparation, Statistics
from layermerge.errors import DataError
from layermerge.models import import_torchvision


def test_preparations_that_are_refused() -> None:
    unknown: Any = "mixup"
    with pytest.raises(DataError, match="augment is 'mixup'; give 'none' or 'flip' or 'crop_flip' or 'imagenet'"):
        Preparation(augment=unknown)
    with pytest.raises(DataError, match="interpolation is 'mixup'; give 'nearest' or"):
        Preparation(interpolation=unknown)
    with pytest.raises(DataError, match="needs pad >= 0"):
        Preparation(pad=-1)
    with pytest.raises(DataError, match="one number per channel, std above 0"):
        Statistics((0.5,), (0.0,))
    images = ArrayImages("set", np.zeros((2, 6, 5, 1), np.uint8), [0, 1])
    with pytest.raises(DataError, match="images of 1 channels cannot be normalised by 3 means"):
        next(images.batches([np.array([0])], Preparation(STATISTICS["imagenet"]), None))
    with pytest.raises(DataError, match="augment 'imagenet' is for image folders; set is arrays: try crop_flip"):
        next(images.batches([np.array([0])], Preparation(augment="imagenet"), 0))


def test_statistics_by_the_name_of_a_data_set() -> None:
    x = Preparation.for_data_set("fashion-mnist").finish(torch.full((1, 1, 2, 2), 51, dtype=torch.uint8))
    assert torch.allclose(x, torch.full((1, 1, 2, 2), (0.2 - 0.2860) / 0.3530))
    with pytest.raises(
        DataError, match="does not know the data set 'mnits'; it knows imagenet, cifar10, fashion-mnist, none, bytes"
    ):
        Preparation.for_data_set("mnits")


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
