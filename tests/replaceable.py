"""Small networks with something to replace, and the same with it replaced by hand."""

from __future__ import annotations

import copy

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import layermerge as lm
from zoo_registry import conv, random_tensor

BOTH = lm.Rules(replace=("activations", "gates"))


class Activated(nn.Module):
    """Four convs with a norm and a residual block; every activation is of another kind."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.norm, self.b = conv(3, 6), nn.BatchNorm2d(6), conv(6, 6)
        self.c, self.d = conv(6, 6, 1), conv(6, 4)
        self.first, self.second, self.third, self.fourth = nn.SiLU(), nn.GELU(), nn.Hardswish(), nn.Mish()

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(self.norm(self.a(x)))
        x = self.third(x + self.c(self.second(self.b(x))))
        return self.fourth(self.d(x))  # type: ignore[no-any-return]


ACTIVATIONS = {
    "0-1:3x3g1:activation": "first",
    "1-2:3x3g1:activation": "second",
    "2-3:1x1g1:activation": "third",
    "3-4:3x3g1:activation": "fourth",
}
"""What the candidates that keep a single layer replace."""


def with_relu(model: Activated, *names: str) -> Activated:
    changed = copy.deepcopy(model)
    for name in names:
        setattr(changed, name, nn.ReLU())
    return changed


class Linear(nn.Module):
    """Two convs with an activation between them and none behind them, then another conv."""

    def __init__(self) -> None:
        super().__init__()
        self.e, self.f, self.g = conv(3, 6, 1), conv(6, 6), conv(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.g(self.f(F.silu(self.e(x))))  # type: ignore[no-any-return]


class SqueezeExcite(nn.Module):
    """A gate; `mean`, where it is given, replaces what is computed."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.reduce, self.grow = conv(channels, 4, 1), conv(4, channels, 1)
        self.mean: Tensor | None = None

    def value(self, x: Tensor) -> Tensor:
        return torch.sigmoid(3 * self.grow(F.silu(self.reduce(x.mean((2, 3), keepdim=True)))))

    def forward(self, x: Tensor) -> Tensor:
        return (self.value(x) if self.mean is None else self.mean) * x


class Gates(nn.Module):
    """Gates in three places: before a conv, behind one, and between an activation and pooling."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c, self.d = conv(3, 8), conv(8, 8), conv(8, 8), conv(8, 4)
        self.norm = nn.BatchNorm2d(8)
        self.before, self.behind, self.alone = SqueezeExcite(8), SqueezeExcite(8), SqueezeExcite(8)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.b(self.before(F.silu(self.a(x)))))
        x = x + self.behind(self.norm(self.c(x)))
        return self.d(F.max_pool2d(self.alone(F.silu(x)), 2))  # type: ignore[no-any-return]


GATES = {"1-3:gate": "before", "5-7:gate": "behind", "7-9:gate": "alone"}


def with_means(model: Gates, means: dict[str, Tensor]) -> Gates:
    """The network with constants in place of gates, by the gate's name."""
    changed = copy.deepcopy(model)
    for name, mean in means.items():
        gate = changed.get_submodule(name)
        assert isinstance(gate, SqueezeExcite)
        gate.mean = mean
    return changed


def traced(kind: type[nn.Module], seed: int = 6) -> tuple[nn.Module, lm.Trace]:
    """In float64 and eval mode."""
    torch.manual_seed(seed)
    model = kind().double().eval()
    return model, lm.trace(model, pictures(2))


def pictures(count: int, seed: int = 3) -> Tensor:
    return random_tensor(count, 3, 9, 8, seed=seed).double()
