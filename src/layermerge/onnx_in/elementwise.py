"""Operators that work value by value, as functions of torch: inputs in ONNX's order, attributes by their ONNX names.

An operand is a tensor, or a number where the file has a constant of one value.
"""

from __future__ import annotations

import math
from functools import reduce
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

Operand = Tensor | float | int | bool
_DTYPES = {
    1: torch.float32,
    2: torch.uint8,
    3: torch.int8,
    5: torch.int16,
    6: torch.int32,
    7: torch.int64,
    9: torch.bool,
    11: torch.float64,
}
"""By ONNX's numbers."""


def dtype_of(number: int) -> torch.dtype:
    if number not in _DTYPES:
        raise ValueError(f"a cast to ONNX's type {number} is not supported")
    return _DTYPES[number]


# -- activations


def relu(x: Tensor) -> Tensor:
    return F.relu(x)


def clip(x: Tensor, low: Operand | None = None, high: Operand | None = None) -> Tensor:
    if not isinstance(low, Tensor) and not isinstance(high, Tensor) and x.is_floating_point():
        if low == 0 and (high is None or high >= torch.finfo(x.dtype).max):
            return F.relu(x)
        if (low, high) == (0, 6):
            return F.relu6(x)
        if low is not None and high is not None and low < high:
            return F.hardtanh(x, float(low), float(high))
    return x if low is None and high is None else torch.clamp(x, low, high)  # type: ignore[arg-type]


def leaky_relu(x: Tensor, *, alpha: float = 0.01) -> Tensor:
    return F.leaky_relu(x, alpha)


def elu(x: Tensor, *, alpha: float = 1.0) -> Tensor:
    return F.elu(x, alpha)


def celu(x: Tensor, *, alpha: float = 1.0) -> Tensor:
    return F.celu(x, alpha)


def selu(x: Tensor, *, alpha: float = 1.6732631921768188, gamma: float = 1.0507010221481323) -> Tensor:
    if math.isclose(alpha, 1.6732632, rel_tol=1e-6) and math.isclose(gamma, 1.050701, rel_tol=1e-6):
        return F.selu(x)
    return F.elu(x, alpha) * gamma


def softplus(x: Tensor) -> Tensor:
    return F.softplus(x)


def softsign(x: Tensor) -> Tensor:
    return F.softsign(x)


def thresholded_relu(x: Tensor, *, alpha: float = 1.0) -> Tensor:
    return F.threshold(x, alpha, 0.0)


def hard_sigmoid(x: Tensor, *, alpha: float = 0.2, beta: float = 0.5) -> Tensor:
    if math.isclose(alpha, 1 / 6, rel_tol=1e-6) and beta == 0.5:
        return F.hardsigmoid(x)
    return F.hardtanh(x * alpha + beta, 0.0, 1.0)


def hard_swish(x: Tensor) -> Tensor:
    return F.hardswish(x)


def silu(x: Tensor) -> Tensor:
    return F.silu(x)


def gelu(x: Tensor, *, approximate: str = "none") -> Tensor:
    return F.gelu(x, approximate=approximate)


def mish(x: Tensor) -> Tensor:
    return F.mish(x)


# -- arithmetic


def add(a: Operand, b: Operand) -> Any:
    return a + b


def sub(a: Operand, b: Operand) -> Any:
    return a - b


def mul(a: Operand, b: Operand) -> Any:
    return a * b


def div(a: Operand, b: Operand) -> Any:
    """Of whole numbers, without what is left."""
    whole = all(not each.is_floating_point() if isinstance(each, Tensor) else isinstance(each, int) for each in (a, b))
    if whole:
        return torch.div(torch.as_tensor(a), torch.as_tensor(b), rounding_mode="trunc")
    return a / b


def power(a: Operand, b: Operand) -> Any:
    if not isinstance(b, Tensor) and float(b).is_integer():
        b = int(b)
    return a**b


def modulo(a: Operand, b: Operand, *, fmod: int = 0) -> Any:
    return torch.fmod(a, b) if fmod else torch.remainder(a, b)  # type: ignore[arg-type]


def _pair(choose: Any, bound: str) -> Any:
    def joined(a: Operand, b: Operand) -> Any:
        if isinstance(a, Tensor) and isinstance(b, Tensor):
            return choose(a, b)
        tensor, number = (a, b) if isinstance(a, Tensor) else (b, a)
        return torch.clamp(tensor, **{bound: number})  # type: ignore[arg-type]

    return joined


_SMALLER, _LARGER = _pair(torch.minimum, "max"), _pair(torch.maximum, "min")


def minimum(*operands: Operand) -> Any:
    return reduce(_SMALLER, operands)


def maximum(*operands: Operand) -> Any:
    return reduce(_LARGER, operands)


def total(*operands: Operand) -> Any:
    return reduce(add, operands)


def average(*operands: Operand) -> Any:
    return total(*operands) / len(operands)


# -- comparisons and choices


def equal(a: Operand, b: Operand) -> Any:
    return a == b


def greater(a: Operand, b: Operand) -> Any:
    return a > b


def greater_or_equal(a: Operand, b: Operand) -> Any:
    return a >= b


def less(a: Operand, b: Operand) -> Any:
    return a < b


def less_or_equal(a: Operand, b: Operand) -> Any:
    return a <= b


def where(condition: Tensor, a: Operand, b: Operand) -> Tensor:
    return torch.where(condition, a, b)


def cast(x: Tensor, *, to: int, saturate: int = 1, round_mode: str = "up") -> Tensor:  # noqa: ARG001
    return x.to(dtype_of(to))


def identity(x: Tensor) -> Tensor:
    return x
