"""A network as a list of computations, each on the results of earlier ones; run in float64 with torch's own functions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn import functional as F

from network_parts import Activation, Barrier, Constant, Conv, Norm, Number, Part, Shift, Sides, StatNorm

Tensors = Mapping[str, Tensor]


@dataclass(frozen=True)
class Padded:
    """Zeros around a map."""

    sides: Sides


@dataclass(frozen=True)
class Cropped:
    sides: Sides


@dataclass(frozen=True)
class Valid:
    """A conv that pads nothing."""

    conv: Conv


@dataclass(frozen=True)
class Joined:
    """Several maps: `add`, `mul` or `cat`."""

    how: str


@dataclass(frozen=True)
class Mean:
    """Over height and width."""


Work = Part | Padded | Cropped | Valid | Joined | Mean


@dataclass(frozen=True)
class Step:
    work: Work
    reads: tuple[int, ...]


@dataclass
class Program:
    """Step 0 is the image itself."""

    steps: list[Step] = field(default_factory=lambda: [Step(Mean(), ())])
    outputs: list[int] = field(default_factory=list)
    activated: dict[int, Activation] = field(default_factory=dict)
    """What is applied to the result of a step for whoever reads it."""

    def emit(self, work: Work, *reads: int) -> int:
        self.steps.append(Step(work, reads))
        return len(self.steps) - 1

    def readers(self, number: int) -> set[int | None]:
        """The steps that read a result; None stands for the network's outputs."""
        found: set[int | None] = {place for place, step in enumerate(self.steps) if number in step.reads}
        return found | ({None} if number in self.outputs else set())

    def meets_a_conv(self, start: int) -> bool:
        """Whether some way from a result reaches a conv before any activation."""
        waiting, seen = [start], set[int]()
        while waiting:
            number = waiting.pop()
            if number in seen or number in self.activated:
                continue
            seen.add(number)
            for reader in self.readers(number) - {None}:
                assert reader is not None
                work = self.steps[reader].work
                if isinstance(work, (Conv, Valid)):
                    return True
                if not isinstance(work, Activation):
                    waiting.append(reader)
        return False

    def run(self, tensors: Tensors, image: Tensor, time: Tensor) -> list[Tensor]:
        values: list[Tensor] = []
        for number, step in enumerate(self.steps):
            value = _compute(step.work, [values[read] for read in step.reads], tensors, time) if number else image
            values.append(_activated(self.activated[number], value, tensors) if number in self.activated else value)
        return [values[number] for number in self.outputs]


def _compute(work: Work, maps: list[Tensor], tensors: Tensors, time: Tensor) -> Tensor:
    x = maps[0]
    match work:
        case Padded((top, bottom, left, right)):
            return F.pad(x, (left, right, top, bottom))
        case Cropped((top, bottom, left, right)):
            return x[:, :, top : x.shape[2] - bottom, left : x.shape[3] - right]
        case Valid(conv):
            return _conv(conv, x, tensors)
        case Conv():
            top, bottom, left, right = work.padding
            return _conv(work, F.pad(x, (left, right, top, bottom)), tensors)
        case Norm(name, _, eps):
            return _norm(name, x, tensors, tensors[f"{name}.running_mean"], tensors[f"{name}.running_var"], eps)
        case StatNorm():
            return _stat_norm(work, x, tensors)
        case Constant(name, operator):
            return _arithmetic(operator, x, tensors[name])
        case Number(operator, value):
            return _arithmetic(operator, x, torch.tensor(value, dtype=torch.float64))
        case Activation():
            return _activated(work, x, tensors)
        case Shift(name):
            return x + (time @ tensors[f"{name}.weight"].T + tensors[f"{name}.bias"])[:, :, None, None]
        case Mean():
            return x.mean((2, 3), keepdim=True)
        case Joined(how):
            return torch.cat(maps, 1) if how == "cat" else maps[0] + maps[1] if how == "add" else maps[0] * maps[1]
        case Barrier(kind):
            return _barrier(kind, x)
    raise AssertionError(work)


def _conv(conv: Conv, x: Tensor, tensors: Tensors) -> Tensor:
    weight, bias = tensors[f"{conv.name}.weight"], tensors.get(f"{conv.name}.bias")
    return F.conv2d(x, weight, bias, conv.stride, 0, conv.dilation, conv.groups)


def _norm(name: str, x: Tensor, tensors: Tensors, mean: Tensor, variance: Tensor, eps: float) -> Tensor:
    if mean.dim() == 1:
        mean, variance = mean[:, None, None], variance[:, None, None]
    x = (x - mean) / (variance + eps).sqrt()
    if f"{name}.weight" not in tensors:
        return x
    weight, bias = tensors[f"{name}.weight"], tensors[f"{name}.bias"]
    return x * weight[:, None, None] + bias[:, None, None] if weight.dim() == 1 else x * weight + bias


def _stat_norm(norm: StatNorm, x: Tensor, tensors: Tensors) -> Tensor:
    batch, channels, height, width = x.shape
    over = {"group": (2, 3, 4), "instance": (3, 4), "batch": (0, 3, 4), "layer": (1, 2, 3, 4)}[norm.kind]
    groups = norm.groups if norm.kind == "group" else 1
    parts = x.reshape(batch, groups, channels // groups, height, width)
    mean, variance = (
        moment.expand_as(parts).reshape(x.shape)
        for moment in (parts.mean(over, keepdim=True), parts.var(over, unbiased=False, keepdim=True))
    )
    return _norm(norm.name, x, tensors, mean, variance, 1e-5)


def _arithmetic(operator: str, x: Tensor, value: Tensor) -> Tensor:
    one, none = torch.ones_like(value), torch.zeros_like(value)
    scale, shift = {
        "mul": (value, none),
        "div": (1 / value, none),
        "add": (one, value),
        "sub": (one, -value),
        "rsub": (-one, value),
        "neg": (-one, none),
    }[operator]
    return x * scale + shift


_FORMULAS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": lambda x: x.clamp_min(0),
    "relu6": lambda x: x.clamp(0, 6),
    "silu": lambda x: x / (1 + (-x).exp()),
    "swish by hand": lambda x: x / (1 + (-x).exp()),
    "hardswish": lambda x: x * (x / 6 + 0.5).clamp(0, 1),
    "hardswish by hand": lambda x: x * (x / 6 + 0.5).clamp(0, 1),
    "leaky_relu": lambda x: torch.where(x > 0, x, 0.2 * x),
    "gelu": lambda x: x * (1 + torch.erf(x / 2**0.5)) / 2,
    "tanh": lambda x: 1 - 2 / ((2 * x).exp() + 1),
    "sigmoid": lambda x: 1 / (1 + (-x).exp()),
    "elu": lambda x: torch.where(x > 0, x, 0.7 * x.clamp_max(0).expm1()),
    "softsign by hand": lambda x: x / (1 + x.abs()),
    "clamp": lambda x: x.clamp(-0.4, 0.9),
    "abs": lambda x: torch.where(x > 0, x, -x),
}


def _activated(activation: Activation, x: Tensor, tensors: Tensors) -> Tensor:
    if activation.kind == "prelu":
        return torch.where(x > 0, x, x * tensors[f"{activation.name}.weight"][:, None, None])
    return _FORMULAS[activation.kind](x)


def _barrier(kind: str, x: Tensor) -> Tensor:
    match kind:
        case "max_pool":
            return x.unfold(2, 2, 1).unfold(3, 2, 1).amax((-1, -2))
        case "avg_pool":
            return F.pad(x, (1, 1, 1, 1)).unfold(2, 3, 1).unfold(3, 3, 1).mean((-1, -2))
        case "upsample":
            return x.repeat_interleave(2, 2).repeat_interleave(2, 3)
        case "reflect":
            rows, columns = ([1, *range(size), size - 2] for size in x.shape[2:])
            return x[:, :, rows][:, :, :, columns]
        case _:
            return torch.stack([x[..., : place + 1].sum(-1) for place in range(x.shape[3])], -1)
