"""Arithmetic on sizes: what files do with shapes before they reshape, slice or resize by them.

Sizes are numpy arrays of objects, since a size may be free (a symbol) while the network is traced. What is constant has been
computed when the file was read; only what follows from the sizes of inputs is computed here.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import reduce
from typing import Any

import numpy as np
import torch

Sizes = Any
"""An array of whole numbers, some of which may be symbols."""
Ints = Sequence[int]
MOST = 4096
"""Sizes at once: no network has as many axes."""


def as_sizes(values: Any) -> Sizes:
    return np.array(values, dtype=object)


def as_ints(sizes: Sizes) -> tuple[Any, ...]:
    """What functions take that want whole numbers."""
    return tuple(whole(each) for each in np.asarray(sizes, dtype=object).reshape(-1))


def whole(value: Any) -> Any:
    if isinstance(value, (torch.SymFloat, torch.SymInt)):
        return _rounded_down(value) if isinstance(value, torch.SymFloat) else value
    return int(value)


def _rounded_down(value: Any) -> Any:
    return math.floor(value)


def _rounded_up(value: Any) -> Any:
    return math.ceil(value)


def as_number(sizes: Sizes) -> Any:
    """As an operand of arithmetic on feature maps."""
    if sizes.size != 1:
        raise ValueError("it computes with several sizes at once and a feature map")
    return sizes.reshape(-1)[0]


def gather(x: Sizes, indices: Any, *, axis: int = 0) -> Sizes:
    return as_sizes(np.take(x, np.asarray(indices, dtype=np.int64), axis))


def slice_of(x: Sizes, starts: Ints, ends: Ints, axes: Ints | None = None, steps: Ints | None = None) -> Sizes:
    cut = [slice(None)] * np.ndim(x)
    for place, (first, last) in enumerate(zip(starts, ends, strict=True)):
        axis, step = place if axes is None else axes[place], 1 if steps is None else steps[place]
        whole = (
            step < 0 and last < -np.shape(x)[axis]
        )  # beyond the first, which a slice of Python's counts from the end
        cut[axis] = slice(first, None if whole else last, step)
    return x[tuple(cut)]


def transpose(x: Sizes, *, perm: Ints | None = None) -> Sizes:
    return np.transpose(x, perm)


def concat(*parts: Sizes, axis: int = 0) -> Sizes:
    return np.concatenate([np.asarray(part, dtype=object) for part in parts], axis)


def squeeze(x: Sizes, axes: Ints | None = None) -> Sizes:
    return np.squeeze(x, None if axes is None else tuple(axes))


def unsqueeze(x: Sizes, axes: Ints) -> Sizes:
    return np.expand_dims(np.asarray(x, dtype=object), tuple(axes))


def reshape(x: Sizes, sizes: Ints, *, allowzero: int = 0) -> Sizes:  # noqa: ARG001
    return np.reshape(x, tuple(sizes))


def cast(x: Sizes, *, to: int, **_: Any) -> Sizes:
    if to in (1, 11):
        return _each(torch.sym_float, x)
    return _each(whole, x)


def add(a: Sizes, b: Sizes) -> Sizes:
    return as_sizes(a + b)


def sub(a: Sizes, b: Sizes) -> Sizes:
    return as_sizes(a - b)


def mul(a: Sizes, b: Sizes) -> Sizes:
    return as_sizes(a * b)


def div(a: Sizes, b: Sizes) -> Sizes:
    """Sizes are positive, so that rounding down is what ONNX means."""
    parts = [*np.ravel(a), *np.ravel(b)]
    real = any(isinstance(each, (float, torch.SymFloat)) for each in parts)
    return as_sizes(a / b if real else a // b)


def clip(x: Sizes, low: Any = None, high: Any = None) -> Sizes:
    """Its bounds are numbers, or sizes of one value."""
    bounded = x if low is None else maximum(x, low)
    return bounded if high is None else minimum(bounded, high)


def maximum(*parts: Sizes) -> Sizes:
    return reduce(lambda a, b: as_sizes(np.frompyfunc(torch.sym_max, 2, 1)(a, b)), map(as_sizes, parts))


def minimum(*parts: Sizes) -> Sizes:
    return reduce(lambda a, b: as_sizes(np.frompyfunc(torch.sym_min, 2, 1)(a, b)), map(as_sizes, parts))


def negative(x: Sizes) -> Sizes:
    return _each(lambda each: 0 - each, x)


def floor(x: Sizes) -> Sizes:
    return _each(lambda each: _rounded_down(each) if isinstance(each, torch.SymFloat) else math.floor(each), x)


def ceil(x: Sizes) -> Sizes:
    return _each(lambda each: _rounded_up(each) if isinstance(each, torch.SymFloat) else math.ceil(each), x)


def equal(a: Sizes, b: Sizes) -> Sizes:
    return as_sizes(np.equal(a, b, dtype=object))


def where(condition: Sizes, a: Sizes, b: Sizes) -> Sizes:
    return as_sizes(np.where(np.asarray(condition, dtype=bool), a, b))


def product(x: Sizes, axes: Ints | None = None, *, keepdims: int = 1, **_: Any) -> Sizes:
    return as_sizes(np.prod(x, axis=None if axes is None else tuple(axes), keepdims=bool(keepdims)))


def constant_of_shape(sizes: Ints, *, value: Any = None) -> Sizes:
    if math.prod(sizes) > MOST:
        raise ValueError(f"it computes more than {MOST:,} sizes")
    filled = 0 if value is None else value.item()
    return np.full(tuple(sizes), filled, dtype=object)


def shape(x: Sizes, *, start: int = 0, end: int | None = None) -> Sizes:
    return as_sizes(np.shape(x)[start:end])


def size(x: Sizes) -> Sizes:
    return as_sizes(np.size(x))


def identity(x: Sizes) -> Sizes:
    return x


def _each(change: Any, x: Sizes) -> Sizes:
    found = np.empty(np.shape(x), dtype=object)
    for place in np.ndindex(found.shape):
        found[place] = change(np.asarray(x, dtype=object)[place])
    return found


def as_floats(sizes: Sizes) -> tuple[Any, ...]:
    return tuple(np.asarray(sizes, dtype=object).reshape(-1))
