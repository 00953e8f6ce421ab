"""The torch module of a series-parallel network, as somebody might have written it."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from network_parts import (
    NO_SIDES,
    Activation,
    Barrier,
    Concat,
    Constant,
    Conv,
    Dropout,
    Gate,
    Network,
    Norm,
    Number,
    Pad,
    Part,
    Path,
    Shift,
    Sides,
    StatNorm,
    Sum,
    Tap,
    Twice,
    every_part,
)

TIME_FEATURES = 3

MODULES: dict[str, Callable[[int], nn.Module]] = {
    "relu": lambda _: nn.ReLU(),
    "relu6": lambda _: nn.ReLU6(),
    "silu": lambda _: nn.SiLU(),
    "hardswish": lambda _: nn.Hardswish(),
    "leaky_relu": lambda _: nn.LeakyReLU(0.2),
    "gelu": lambda _: nn.GELU(),
    "tanh": lambda _: nn.Tanh(),
    "sigmoid": lambda _: nn.Sigmoid(),
    "elu": lambda _: nn.ELU(0.7),
    "prelu": lambda channels: nn.PReLU(channels),
}
FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "swish by hand": lambda x: x * torch.sigmoid(x),
    "softsign by hand": lambda x: x / (1 + x.abs()),
    "hardswish by hand": lambda x: x * F.relu6(x + 3) / 6,
    "clamp": lambda x: x.clamp(-0.4, 0.9),
    "abs": torch.abs,
}
_ARITHMETIC: dict[str, Callable[..., Tensor]] = {
    "mul": lambda x, y: x * y,
    "div": lambda x, y: x / y,
    "add": lambda x, y: x + y,
    "sub": lambda x, y: x - y,
    "rsub": lambda x, y: y - x,
    "neg": lambda x, _: -x,
}
_BARRIERS: dict[str, Callable[[Tensor], Tensor]] = {
    "max_pool": lambda x: F.max_pool2d(x, 2, 1),
    "avg_pool": lambda x: F.avg_pool2d(x, 3, 1, 1),
    "upsample": lambda x: F.interpolate(x, scale_factor=2, mode="nearest"),
    "reflect": lambda x: F.pad(x, (1, 1, 1, 1), mode="reflect"),
    "cumsum": lambda x: torch.cumsum(x, 3),
}


def _conv(conv: Conv) -> nn.Module:
    more = {"dilation": conv.dilation, "groups": conv.groups, "bias": conv.bias}
    return nn.Conv2d(conv.ins, conv.outs, conv.kernel, conv.stride, conv.own, **more)  # type: ignore[arg-type]


def _stat_norm(norm: StatNorm) -> nn.Module:
    channels = norm.shape[0]
    match norm.kind:
        case "group":
            return nn.GroupNorm(norm.groups, channels, affine=norm.affine)
        case "instance":
            return nn.InstanceNorm2d(channels, affine=norm.affine)
        case "batch":
            return nn.BatchNorm2d(channels, affine=norm.affine, track_running_stats=False)
        case _:
            return nn.LayerNorm(norm.shape, elementwise_affine=norm.affine)


def by_hand(x: Tensor, sides: Sides) -> Tensor:
    top, bottom, left, right = sides
    return F.pad(x, (left, right, top, bottom))


class SeriesParallel(nn.Module):
    """Its parts are attributes under their names; `forward` follows the description."""

    def __init__(self, network: Network) -> None:
        super().__init__()
        torch.manual_seed(network.seed)
        self.path = network.path
        for part in every_part(network.path):
            self._own(part)
        for module in self.modules():
            _make_unlike_its_defaults(module)

    def _own(self, part: Part) -> None:
        match part:
            case Conv(name):
                self.add_module(name, _conv(part))
            case Twice(conv):
                self.add_module(conv.name, _conv(conv))
            case Norm(name, channels, eps, affine):
                self.add_module(name, nn.BatchNorm2d(channels, eps, affine=affine))
            case Constant(name, _, channels, buffer):
                value = 0.5 + torch.rand(channels, 1, 1)
                if buffer:
                    self.register_buffer(name, value)
                else:
                    self.register_parameter(name, nn.Parameter(value))
            case StatNorm(name):
                self.add_module(name, _stat_norm(part))
            case Activation(kind, str(name), channels) if name not in self._modules:
                self.add_module(name, MODULES[kind](channels))
            case Dropout(name):
                self.add_module(name, nn.Dropout(0.2))
            case Shift(name, channels):
                self.add_module(name, nn.Linear(TIME_FEATURES, channels))

    def forward(self, x: Tensor, time: Tensor) -> list[Tensor]:
        taps: list[Tensor] = []
        last = self._along(self.path, x, time, taps)
        return [last, *taps]

    def _along(self, path: Path, x: Tensor, time: Tensor, taps: list[Tensor]) -> Tensor:
        for part in path:
            if isinstance(part, Tap):
                taps.append(x)
            else:
                x = self._part(part, x, time, taps)
        return x

    def _convolved(self, conv: Conv, x: Tensor) -> Tensor:
        padded = x if conv.by_hand == NO_SIDES else by_hand(x, conv.by_hand)
        return getattr(self, conv.name)(padded)  # type: ignore[no-any-return]

    def _part(self, part: Part, x: Tensor, time: Tensor, taps: list[Tensor]) -> Tensor:
        match part:
            case Conv():
                return self._convolved(part, x)
            case Twice(conv):
                return self._convolved(conv, torch.relu(self._convolved(conv, x)))
            case Norm(name) | StatNorm(name) | Dropout(name) | Activation(_, str(name)):
                return getattr(self, name)(x)  # type: ignore[no-any-return]
            case Activation(kind):
                return FUNCTIONS[kind](x)
            case Constant(name, operator):
                return _ARITHMETIC[operator](x, getattr(self, name))
            case Number(operator, value):
                return _ARITHMETIC[operator](x, value)
            case Pad(sides):
                return by_hand(x, sides)
            case Shift(name):
                return torch.add(x, getattr(self, name)(time)[:, :, None, None])
            case Barrier(kind):
                return _BARRIERS[kind](x)
            case Gate(path):
                return x * self._along(path, x.mean((2, 3), keepdim=True), time, taps)
            case Concat(branches):
                return torch.cat([self._along(branch, x, time, taps) for branch in branches], 1)
            case Sum(first, second):
                return reduce(torch.add, (self._along(branch, x, time, taps) for branch in (first, second)))
        raise AssertionError(part)


def _make_unlike_its_defaults(module: nn.Module) -> None:
    """Norms that are not the identity: otherwise one that is lost, or stands in the wrong place, would not show."""
    with torch.no_grad():
        if (
            isinstance(module, (nn.BatchNorm2d, nn.GroupNorm, nn.LayerNorm, nn.InstanceNorm2d))
            and module.weight is not None
        ):
            module.weight.uniform_(0.5, 1.5)
            module.bias.normal_(0.0, 0.3)
        if isinstance(module, nn.BatchNorm2d) and module.running_mean is not None:
            assert module.running_var is not None
            module.running_mean.normal_(0.0, 0.3)
            module.running_var.uniform_(0.5, 1.5)
        if isinstance(module, nn.PReLU):
            module.weight.uniform_(0.1, 0.6)


def inputs_of(network: Network, batch: int = 2) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(network.seed + 1)
    image = torch.randn(batch, *network.shape, generator=generator, dtype=torch.float64)
    return image, torch.randn(batch, TIME_FEATURES, generator=generator, dtype=torch.float64)
