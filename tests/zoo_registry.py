"""The registry of the synthetic zoo: how its networks are named, built and traced."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from layermerge.tracing.trace import Trace
from observed import MakeInputs, Observed, observe


@dataclass(frozen=True)
class Specimen:
    """A network of the zoo, and how to make inputs for it at a batch size."""

    build: Callable[[], nn.Module]
    inputs: MakeInputs


ZOO: dict[str, Specimen] = {}
Build = Callable[[], nn.Module]


def random_tensor(*shape: int, seed: int = 3) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def image(channels: int = 3, height: int = 16, width: int = 16) -> MakeInputs:
    return lambda batch: random_tensor(batch, channels, height, width)


def specimen(name: str, inputs: MakeInputs | None = None) -> Callable[[Build], Build]:
    def register(build: Build) -> Build:
        ZOO[name] = Specimen(build, inputs or image())
        return build

    return register


def build(name: str) -> nn.Module:
    """The network with seeded weights, and norms that are not the identity."""
    torch.manual_seed(11)
    model = ZOO[name].build()
    for module in model.modules():
        norms = (nn.BatchNorm1d, nn.BatchNorm2d, nn.GroupNorm, nn.LayerNorm)
        if isinstance(module, norms) and module.weight is not None:
            nn.init.uniform_(module.weight, 0.5, 1.5)
            nn.init.normal_(module.bias, std=0.2)
        if isinstance(module, (nn.BatchNorm1d, nn.BatchNorm2d)) and module.running_mean is not None:
            assert module.running_var is not None
            nn.init.normal_(module.running_mean, std=0.2)
            nn.init.uniform_(module.running_var, 0.5, 1.5)
    return model


@cache
def observed(name: str) -> Observed:
    """A zoo network with its trace; shared, so nothing may change it."""
    return observe(build(name), ZOO[name].inputs)


def traced(name: str) -> Trace:
    """The trace of a zoo network; shared, so nothing may change it."""
    return observed(name).trace


def conv(ins: int, outs: int, kernel: int = 3, stride: int = 1, **more: Any) -> nn.Conv2d:
    return nn.Conv2d(ins, outs, kernel, stride, kernel // 2, **more)
