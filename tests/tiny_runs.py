"""A network, a task and a runtime so small and so predictable that whole runs take seconds and always choose the same.

The runtime prices modules and files instead of timing them: a millisecond for every conv and one for every 500 weights.
What is served is run by onnxruntime all the same.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime
import pytest
import torch
from torch import Tensor, nn

from layermerge.data.preparation import Preparation, Statistics
from layermerge.runs.recipe import Settings
from layermerge.runtimes.base import Pass, RuntimeSettings
from layermerge.runtimes.onnx_runtime import OnnxRuntime
from layermerge.runtimes.registry import RUNTIMES
from layermerge.runtimes.torch_eager import TorchEager
from layermerge.tasks.base import Batch, Draw
from layermerge.tasks.classification import Classification
from layermerge.tracing.inputs import Inputs
from layermerge.tuning.recipe import Recipe

Array = npt.NDArray[Any]
MEAN, STD = (0.45, 0.5, 0.55), (0.2, 0.25, 0.3)
CLASSES = 3


class TinyNet(nn.Module):
    """Five convs with norms: a stem, a residual block, a strided conv and one more."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.stem, self.first, self.second = _conv(3, width), _conv(width, width), _conv(width, width)
        self.down, self.last = _conv(width, width, stride=2), _conv(width, width)
        self.relu, self.head = nn.ReLU(), nn.Linear(width, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.relu(self.stem(x))
        x = self.relu(x + self.second(self.relu(self.first(x))))
        x = self.relu(self.last(self.relu(self.down(x))))
        logits: Tensor = self.head(x.mean((2, 3)))
        return logits


def _conv(inside: int, outside: int, stride: int = 1) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(inside, outside, 3, stride, 1, bias=False), nn.BatchNorm2d(outside))


@cache
def arrays(seed: int = 5) -> dict[str, Array]:
    """Images whose class is the colour of a patch somewhere, under so much noise that not all of them can be told."""
    generator = np.random.default_rng(seed)

    def images(count: int) -> tuple[Array, Array]:
        labels = generator.integers(0, CLASSES, count)
        pixels = generator.normal(110, 45, (count, 12, 12, 3))
        for image, label, (top, left) in zip(pixels, labels, generator.integers(0, 7, (count, 2)), strict=True):
            image[top : top + 5, left : left + 5, label] += 55
        return pixels.clip(0, 255).astype(np.uint8), labels

    (x_train, y_train), (x_test, y_test) = images(160), images(90)
    return {"x_train": x_train, "y_train": y_train, "x_test": x_test, "y_test": y_test}


class CountingTask(Classification):
    """Counts what is drawn for training and how often it scores."""

    drawn = scored = 0

    def train_batches(self, draw: Draw) -> Iterator[Batch]:
        for batch in super().train_batches(draw):
            self.drawn += 1
            yield batch

    def _right(self, *given: Any) -> Tensor:
        self.scored += 1
        return super()._right(*given)


def task(seed: int = 5) -> CountingTask:
    data = arrays(seed)
    return CountingTask(
        (data["x_train"], data["y_train"]),
        (data["x_test"], data["y_test"]),
        preparation=Preparation(Statistics(MEAN, STD), augment="flip"),
        held_out=40,
        eval_batch_size=32,
    )


def normalised(pixels: Array) -> Array:
    """The oracle: what a network has to be given, from raw pixels, without any of our code."""
    scaled = (pixels.astype(np.float64) / 255 - np.array(MEAN)) / np.array(STD)
    return np.ascontiguousarray(scaled.transpose(0, 3, 1, 2), dtype=np.float32)


def session(path: Path) -> onnxruntime.InferenceSession:
    return onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])


def served_logits(path: Path, images: Array) -> Array:
    """Image by image, as somebody else would run the file."""
    own = session(path)
    (name,) = [given.name for given in own.get_inputs()]
    logits: Array = np.concatenate([own.run(None, {name: images[at : at + 1]})[0] for at in range(len(images))])
    return logits


def accuracy_of(logits: Array, labels: Array) -> float:
    return float((logits.argmax(1) == labels).mean())


@cache
def _trained(width: int) -> TinyNet:
    torch.manual_seed(3)
    net = TinyNet(width)
    data = arrays()
    images, labels = torch.from_numpy(normalised(data["x_train"])), torch.from_numpy(data["y_train"])
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    for step in range(60):
        at = torch.arange(step * 32, step * 32 + 32) % len(images)
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(images[at]), labels[at]).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    return net.eval()


def network(width: int = 8) -> TinyNet:
    """A fresh copy of a network that was trained a little, by a loop of this file."""
    return copy.deepcopy(_trained(width))


# -- the runtime


def _price(sizes: list[int]) -> float:
    return 0.25 + sum(1 + size / 500 for size in sorted(sizes))  # in one order, for the same last bit


class Priced(OnnxRuntime):
    """Runs files as onnxruntime does, but says by itself how long a pass took."""

    name = "priced"

    def prepare(self, module: nn.Module, inputs: Inputs, *, small: bool = False) -> Pass:
        del inputs, small
        price = _price([part.weight.numel() for part in module.modules() if isinstance(part, nn.Conv2d)])
        return lambda: price

    def record(self, module: nn.Module, inputs: Inputs, *, small: bool = False) -> None:
        """It tells nothing of single operators."""

    def recorded(self, path: Path, inputs: Inputs) -> None:
        """Nor of those of a file."""

    def prepare_file(self, path: Path, inputs: Inputs) -> Pass:
        del inputs
        graph = onnx.load(str(path)).graph
        sizes = {tensor.name: int(np.prod(tensor.dims)) for tensor in graph.initializer}
        behind = {node.output[0]: node.input[0] for node in graph.node if node.op_type == "DequantizeLinear"}
        weights = [behind.get(node.input[1], node.input[1]) for node in graph.node if node.op_type == "Conv"]
        price = _price([sizes[weight] for weight in weights]) / (2 if behind else 1)  # integers take half as long
        return lambda: price


class PricedModules(TorchEager):
    """The same prices where modules are served as they are, without a file."""

    name = "priced-modules"

    def record(self, module: nn.Module, inputs: Inputs, *, small: bool = False) -> None:
        """It tells nothing of single operators."""

    def prepare(self, module: nn.Module, inputs: Inputs, *, small: bool = False) -> Pass:
        return Priced(RuntimeSettings()).prepare(module, inputs, small=small)


@contextmanager
def priced_runtimes() -> Iterator[None]:
    """Both are known by name for as long as this lasts."""
    with pytest.MonkeyPatch.context() as patch:
        for kind in (Priced, PricedModules):
            patch.setitem(RUNTIMES, kind.name, kind)
        yield


IMPORTANCE = Recipe(steps=2, batch_size=16, lr=0.01)
FINETUNE = Recipe(epochs=2, batch_size=16, lr=0.02, checkpoint_steps=1)


def settings(**changes: Any) -> Settings:
    given: dict[str, Any] = {"runtime": Priced.name, "importance": IMPORTANCE, "calibrate": 0, "finetune": FINETUNE}
    return Settings(**given | changes)


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def only_learned(before: dict[str, bytes], after: dict[str, bytes]) -> bool:
    """Whether all files are as they were, but for rows that a loop has added to the latency table; others may have come."""
    table = "latency.jsonl"
    added = after[table].removeprefix(before[table]).splitlines()
    learned = after[table].startswith(before[table]) and all(json.loads(line)["loop"] for line in added)
    return learned and {**before, table: b""}.items() <= {**after, table: b""}.items()


def same_weights(one: nn.Module, other: nn.Module) -> bool:
    mine, theirs = one.state_dict(), other.state_dict()
    return mine.keys() == theirs.keys() and all(torch.equal(mine[name], theirs[name]) for name in mine)
