"""A small task with synthetic images, whose every batch follows from the draw alone; and networks to train on it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from layermerge.tasks.base import Batch, Draw, Network, Scalar, Score, Task
from layermerge.tuning.recipe import Recipe

CLASSES = 5


class ToyTask(Task):
    """Classifies noise by a fixed linear rule. It notes what it is asked for; it can break off before a given batch."""

    ceiling = 1.0

    def __init__(self, examples: int = 64, dtype: torch.dtype = torch.float32, break_at: int | None = None) -> None:
        generator = torch.Generator().manual_seed(7)
        self.images = torch.randn(examples, 3, 8, 8, generator=generator, dtype=torch.float64)
        rule = torch.randn(3 * 64, CLASSES, generator=generator, dtype=torch.float64)
        self.labels = (self.images.flatten(1) @ rule).argmax(1)
        self.images = self.images.to(dtype)
        self.break_at = break_at
        self.given = 0
        self.evaluations = 0
        self.smoothing: set[float] = set()

    def train_batches(self, draw: Draw) -> Iterator[Batch]:
        count = len(self.images) if draw.subset is None else min(draw.subset, len(self.images))
        generator = torch.Generator().manual_seed(1000 * draw.seed + draw.epoch)
        order = torch.randperm(count, generator=generator)
        rank, processes = draw.share
        size = draw.batch_size // processes
        for number in range(draw.first, self.steps_per_epoch(draw.batch_size, draw.subset)):
            if self.given == self.break_at:
                raise KeyboardInterrupt
            self.given += 1
            chosen = order[number * draw.batch_size :][rank * size : (rank + 1) * size]
            yield self.images[chosen], self.labels[chosen]

    def steps_per_epoch(self, batch_size: int, subset: int | None = None) -> int:
        return max(1, min(subset or len(self.images), len(self.images)) // batch_size)

    def forward(self, network: Network, batch: Batch) -> Any:
        return network(batch[0])

    def loss(self, outputs: Any, batch: Batch, *, label_smoothing: float = 0.0) -> Tensor:
        self.smoothing.add(label_smoothing)
        return F.cross_entropy(outputs, batch[1], label_smoothing=label_smoothing)

    def distance(self, outputs: Any, teacher: Any, temperature: float) -> Tensor:
        return F.mse_loss(outputs / temperature, teacher / temperature)

    def evaluate(self, network: Network) -> float:
        self.evaluations += 1
        torch.rand(1)  # whoever evaluates may use random numbers; training must not notice
        return -float(F.cross_entropy(network(self.images), self.labels))

    def test(self, network: Network) -> Score:
        return Score(
            "accuracy", float((network(self.images).argmax(1) == self.labels).double().mean()), len(self.images)
        )

    def describe(self) -> dict[str, Scalar]:
        return {"data": "noise", "examples": len(self.images)}


def network(*, norm: bool = True, seed: int = 3) -> nn.Sequential:
    """Convs, dropout and a linear end; the same weights for the same seed."""
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(seed)
        return nn.Sequential(
            nn.Conv2d(3, 6, 3, padding=1),
            nn.BatchNorm2d(6) if norm else nn.Identity(),
            nn.ReLU(),
            nn.Conv2d(6, 4, 3, stride=2, bias=False),
            nn.Dropout(0.1) if norm else nn.Identity(),
            nn.Flatten(),
            nn.Linear(36, CLASSES),
        ).eval()


def recipe(**changes: Any) -> Recipe:
    """Two epochs of four steps, unless told otherwise."""
    length = {} if "steps" in changes else {"epochs": 2}
    return Recipe.model_validate({"batch_size": 16, "lr": 0.1, "weight_decay": 0.01} | length | changes)


def weights(net: nn.Module) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in net.state_dict().items()}


def same(one: nn.Module, other: nn.Module) -> bool:
    """Whether two networks hold the same bits, in the same memory formats."""
    ours, theirs = one.state_dict(), other.state_dict()
    assert ours.keys() == theirs.keys()
    return all(torch.equal(ours[name], theirs[name]) and ours[name].stride() == theirs[name].stride() for name in ours)


def run_script(name: str, directory: Path) -> subprocess.CompletedProcess[str]:
    """Runs a script that stands beside this file in a process of its own, where it may fork before threads are started."""
    paths = [str(Path(__file__).resolve().parents[1]), os.environ.get("PYTHONPATH", "")]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(Path(__file__).with_name(name)), str(directory)]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240)
