"""A network like a detector, and images without labels: outputs are a dict of lists, boxes in hundreds, scores in [0, 1]."""

from __future__ import annotations

import copy
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

import tiny_runs

SIDE = 12


class Detector(nn.Module):
    """Two levels, each with a head of boxes and one of scores; and counts, which are whole numbers."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.stem, self.first = _conv(3, width), _conv(width, width)
        self.second, self.down = _conv(width, width), _conv(width, width, stride=2)
        self.boxes, self.scores = nn.Conv2d(width, 4, 1), nn.Conv2d(width, 3, 1)

    def forward(self, x: Tensor) -> dict[str, Any]:
        x = torch.relu(self.stem(x))
        x = torch.relu(x + self.second(torch.relu(self.first(x))))
        return {"levels": [self._read(x), self._read(torch.relu(self.down(x)))], "nothing": None}

    def _read(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        scores = self.scores(x).sigmoid()
        return 300 * self.boxes(x).flatten(2).transpose(1, 2), scores, scores.argmax(1)


def _conv(inside: int, outside: int, stride: int = 1) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(inside, outside, 3, stride, 1, bias=False), nn.BatchNorm2d(outside))


def images(count: int = 60) -> Tensor:
    """In [0, 1], as a folder gives them without normalisation."""
    pixels = np.concatenate([tiny_runs.arrays()["x_train"], tiny_runs.arrays()["x_test"]])[:count]
    return torch.from_numpy(pixels).permute(0, 3, 1, 2).contiguous() / 255


@cache
def _settled() -> Detector:
    torch.manual_seed(1)
    net = Detector()
    with torch.no_grad():
        for _ in range(40):
            net.train()(images())  # so that norms know the images
    return net.eval()


def network() -> Detector:
    return copy.deepcopy(_settled())


def network_and_inputs() -> tuple[Detector, Tensor]:
    return network(), images()[:2]


def write_folder(root: Path, count: int = 60) -> None:
    """Images in nested folders that are no classes, a text beside them."""
    for number, pixels in enumerate(tiny_runs.arrays()["x_train"][:count]):
        place = root / f"day{number % 3}" / ("more" if number % 2 else ".")
        place.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(place / f"{number:03}.png")


def unhelpful() -> tuple[nn.Module, Tensor]:
    """Tells classes and nothing that is continuous."""

    class Classes(Detector):
        def forward(self, x: Tensor) -> dict[str, Any]:
            return {"classes": self.scores(self.stem(x)).argmax(1)}

    return Classes(), images()[:2]
