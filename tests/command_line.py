"""The command line as a user calls it: what a call returned, and small models, data and recipes to call it with."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from PIL import Image

import tiny_runs

TINY = """
import torch
from torch import nn

def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 4, 3, padding=1), nn.ReLU(),
                         nn.Conv2d(4, 4, 3, padding=1))

def net_and_inputs():
    return net(), torch.randn(2, 3, 8, 8)

def broken():
    raise RuntimeError("no such luck")

def number():
    return 3

value = 4
"""


DENOISER = """
import torch
from torch import nn

class Denoiser(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(5)
        self.body = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 4, 3, padding=1), nn.ReLU(),
                                  nn.Conv2d(4, 3, 3, padding=1))

    def forward(self, images, times):
        return self.body(images) * (1 + times.view(-1, 1, 1, 1) / 1000)

def net():
    return Denoiser(), (torch.randn(2, 3, 8, 8), torch.tensor([10, 500]))

def quiet():
    return Denoiser()

def conditional():
    return Denoiser(), (torch.randn(2, 3, 8, 8), torch.tensor([10, 500]), torch.randn(2, 4))

def of_vectors():
    return nn.Linear(3, 3), torch.randn(2, 3)
"""


MODEL = ("--model", "python:tiny_runs:network")


SETTINGS = {
    "importance": {"steps": 2, "batch_size": 16, "lr": 0.01},
    "finetune": {"steps": 4, "batch_size": 16, "lr": 0.02},
    "runtime": "priced",
    "budgets": ["70%"],
}


DATA = {"source": "npz:data.npz", "normalise": {"mean": list(tiny_runs.MEAN), "std": list(tiny_runs.STD)}}


@dataclass(frozen=True)
class Result:
    code: int
    out: str
    err: str


Run = Callable[..., Result]


def document(result: Result) -> dict[str, Any]:
    assert result.code == 0, result.err
    loaded: dict[str, Any] = json.loads(result.out)
    return loaded


def one_line(result: Result, code: int = 2) -> str:
    assert result.code == code, result
    assert result.out == ""
    lines = result.err.splitlines()
    assert len(lines) == 1, lines
    assert "Traceback" not in result.err
    return lines[0]


SCRIPT = str(Path(sys.executable).with_name("layermerge"))


def program(*command: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, cwd=cwd)


def write_data(data: dict[str, Any]) -> None:
    np.savez("data.npz", **data)


def write_recipe(path: Path, **changes: Any) -> None:
    facts = {"model": "python:tiny_runs:network", "data": DATA, **SETTINGS} | changes
    path.write_text(yaml.safe_dump(facts), encoding="utf-8")


def folder(root: Path) -> Callable[[str], Path]:
    """An image folder of the three classes, and where a class keeps its training images."""
    data = tiny_runs.arrays()
    for part, images, labels in (("train", "x_train", "y_train"), ("val", "x_test", "y_test")):
        for number, (image, label) in enumerate(zip(data[images][:60], data[labels][:60], strict=True)):
            place = root / part / f"class{label}"
            place.mkdir(parents=True, exist_ok=True)
            Image.fromarray(image).save(place / f"{number:03}.png")
    return lambda name: root / "train" / name


FOLDER = ("--data", "imagefolder:images", "--set", "data.size=12", "--set", "data.crop_pct=1.0")
