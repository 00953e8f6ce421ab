"""Operators that move, join, cut or sum values, as functions of torch: inputs in ONNX's order, attributes by their names.

`Ints` are whole numbers that the file holds, or that are computed from sizes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

Ints = Sequence[int]
_LARGEST = (1 << 63) - 1


# -- shapes


def shape(x: Tensor, *, start: int = 0, end: int | None = None) -> Any:
    """Sizes, which may be free: an array of objects, as numpy knows no others."""
    found = np.empty(x.dim(), dtype=object)
    for axis, size in enumerate(x.shape):
        found[axis] = size
    return found[start:end]


def size(x: Tensor) -> Any:
    found = np.empty((), dtype=object)
    found[()] = x.numel()
    return found


def reshape(x: Tensor, sizes: Ints, *, allowzero: int = 0) -> Tensor:
    """0 stands for the size that is there."""
    return x.reshape([x.shape[axis] if one == 0 and not allowzero else one for axis, one in enumerate(sizes)])


def reshape_batch(x: Tensor, sizes: Ints) -> Tensor:
    """As `reshape`, of a file that has its one batch size written in: the batch stays what it is."""
    return reshape(x, (0, *sizes[1:]))


def flatten(x: Tensor, *, axis: int = 1) -> Tensor:
    axis = axis % x.dim() if axis < 0 else axis
    if axis == 0:
        return x.reshape(1, -1)
    if axis == 1:
        return x.flatten(1) if x.dim() > 1 else x.unsqueeze(1)
    return x.flatten(0, axis - 1).flatten(1) if axis < x.dim() else x.flatten().unsqueeze(1)


def transpose(x: Tensor, *, perm: Ints | None = None) -> Tensor:
    return x.permute(*(perm if perm is not None else range(x.dim() - 1, -1, -1)))


def squeeze(x: Tensor, axes: Ints | None = None) -> Tensor:
    chosen = (
        [axis for axis, one in enumerate(x.shape) if one == 1] if axes is None else [axis % x.dim() for axis in axes]
    )
    if any(x.shape[axis] != 1 for axis in chosen):
        raise ValueError(f"it squeezes axes {chosen} of a tensor of shape {list(x.shape)}")
    return x.squeeze(chosen)


def unsqueeze(x: Tensor, axes: Ints) -> Tensor:
    rank = x.dim() + len(axes)
    for axis in sorted(axis % rank for axis in axes):
        x = x.unsqueeze(axis)
    return x


def expand(x: Tensor, sizes: Ints) -> Tensor:
    """Either may broadcast to the other."""
    wide = max(x.dim(), len(sizes))
    wanted = [1] * (wide - len(sizes)) + list(sizes)
    own = [1] * (wide - x.dim()) + list(x.shape)
    return x.expand([mine if other == 1 else other for mine, other in zip(own, wanted, strict=True)])


def tile(x: Tensor, repeats: Ints) -> Tensor:
    return x.repeat(*repeats)


def constant_of_shape(sizes: Ints, *, value: Any = None) -> Tensor:
    """`value` is an array of one."""
    number, dtype = (0.0, torch.float32) if value is None else (value.item(), torch.from_numpy(value).dtype)
    return torch.full(tuple(sizes), number, dtype=dtype)


def number_range(start: Ints, limit: Ints, delta: Ints) -> Tensor:
    return torch.arange(start[0], limit[0], delta[0])


# -- joining and cutting


def concat(*parts: Tensor, axis: int) -> Tensor:
    return torch.cat(parts, axis)


def split(
    x: Tensor, sizes: Ints | None = None, *, axis: int = 0, num_outputs: int | None = None, outputs: int
) -> tuple[Tensor, ...]:
    if sizes is None:
        count = num_outputs or outputs
        return x.split(-(-x.shape[axis] // count), axis)  # type: ignore[no-any-return,no-untyped-call]
    return x.split(list(sizes), axis)  # type: ignore[no-any-return,no-untyped-call]


def slice_of(x: Tensor, starts: Ints, ends: Ints, axes: Ints | None = None, steps: Ints | None = None) -> Tensor:
    cut: list[Any] = [slice(None)] * x.dim()
    for place, (first, last) in enumerate(zip(starts, ends, strict=True)):
        axis = place if axes is None else axes[place] % x.dim()
        step = 1 if steps is None else steps[place]
        if step == 0:
            raise ValueError("it slices by steps of 0")
        if step < 0:
            chosen = range(x.shape[axis])[first : None if last < -x.shape[axis] else last : step]
            x = x.index_select(axis, torch.tensor(list(chosen), dtype=torch.int64, device=x.device))
        else:
            cut[axis] = slice(first, None if isinstance(last, int) and last >= _LARGEST >> 32 else last, step)
    return x[tuple(cut)]


def gather(x: Tensor, indices: Tensor | int, *, axis: int = 0) -> Tensor:
    axis = axis % x.dim()
    if not isinstance(indices, Tensor):
        return x.select(axis, int(indices))
    if indices.is_floating_point():
        raise ValueError("it gathers at places that are not whole numbers")
    places = torch.where(indices < 0, indices + x.shape[axis], indices)
    chosen = x.index_select(axis, places.flatten())
    return chosen.reshape(*x.shape[:axis], *indices.shape, *x.shape[axis + 1 :])


def pad(x: Tensor, pads: Ints, value: Any = None, axes: Ints | None = None, *, mode: str = "constant") -> Tensor:
    """ONNX lists what is put before every axis, then what is put behind; torch begins at the last axis."""
    half = len(pads) // 2
    places = [axis % x.dim() for axis in (range(half) if axes is None else axes)]
    sides = {axis: (pads[place], pads[half + place]) for place, axis in enumerate(places)}
    changed = [axis for axis in range(x.dim()) if sides.get(axis, (0, 0)) != (0, 0)]
    if not changed:
        return x
    first = (
        min(changed) if mode == "constant" else 2
    )  # torch pads the last two or three with something else than a number
    amounts = [side for axis in range(x.dim() - 1, first - 1, -1) for side in sides.get(axis, (0, 0))]
    if min(changed) < first:
        raise ValueError(f"it pads batch or channels in mode {mode}")
    kinds = {"constant": "constant", "reflect": "reflect", "edge": "replicate", "wrap": "circular"}
    if mode == "constant":
        filled = value.item() if isinstance(value, Tensor) else value
        return F.pad(x, amounts, value=filled or 0)
    return F.pad(x, amounts, mode=kinds[mode])


def depth_to_space(x: Tensor, *, blocksize: int, mode: str = "DCR") -> Tensor:
    if mode == "CRD":
        return F.pixel_shuffle(x, blocksize)
    batch, channels, high, wide = x.shape
    parts = x.reshape(batch, blocksize, blocksize, channels // blocksize**2, high, wide)
    spread = parts.permute(0, 3, 4, 1, 5, 2)
    return spread.reshape(batch, channels // blocksize**2, high * blocksize, wide * blocksize)


def space_to_depth(x: Tensor, *, blocksize: int) -> Tensor:
    batch, channels, high, wide = x.shape
    parts = x.reshape(batch, channels, high // blocksize, blocksize, wide // blocksize, blocksize)
    packed = parts.permute(0, 3, 5, 1, 2, 4)
    return packed.reshape(batch, channels * blocksize**2, high // blocksize, wide // blocksize)


# -- sums


def _axes(x: Tensor, axes: Ints | None) -> list[int]:
    return [axis % x.dim() for axis in axes] if axes is not None and len(axes) else list(range(x.dim()))


def reduce_by(
    x: Tensor, axes: Ints | None = None, *, how: str, keepdims: int = 1, noop_with_empty_axes: int = 0
) -> Tensor:
    """`how` is the part of the operator's name behind Reduce."""
    if noop_with_empty_axes and not axes:
        return x
    over, kept = _axes(x, axes), bool(keepdims)
    if how == "L1":
        return x.abs().sum(over, keepdim=kept)
    if how == "L2":
        return x.square().sum(over, keepdim=kept).sqrt()
    if how == "SumSquare":
        return x.square().sum(over, keepdim=kept)
    if how == "Prod":
        for axis in sorted(over, reverse=True):
            x = x.prod(axis, keepdim=kept)
        return x
    reducers = {"Mean": torch.mean, "Sum": torch.sum, "Max": torch.amax, "Min": torch.amin}
    return reducers[how](x, over, keepdim=kept)  # type: ignore[operator,no-any-return]


def arg_max(x: Tensor, *, axis: int = 0, keepdims: int = 1, select_last_index: int = 0) -> Tensor:
    if select_last_index:
        raise ValueError("it takes the last of equal values")
    return x.argmax(axis, keepdim=bool(keepdims))


def cum_sum(x: Tensor, axis: Ints, *, exclusive: int = 0, reverse: int = 0) -> Tensor:
    if exclusive or reverse:
        raise ValueError("its sums are exclusive or reversed")
    return x.cumsum(axis[0])


def softmax(x: Tensor, *, axis: int = -1) -> Tensor:
    return F.softmax(x, axis)


def log_softmax(x: Tensor, *, axis: int = -1) -> Tensor:
    return F.log_softmax(x, axis)


# -- products


def matmul(a: Tensor, b: Tensor) -> Tensor:
    return torch.matmul(a, b)


def gemm(
    a: Tensor, b: Tensor, c: Any = None, *, alpha: float = 1.0, beta: float = 1.0, transA: int = 0, transB: int = 0
) -> Tensor:
    product = torch.matmul(a.t() if transA else a, b.t() if transB else b)
    product = product if alpha == 1 else product * alpha
    return product if c is None else product + (c if beta == 1 else c * beta)


def einsum(*operands: Tensor, equation: str) -> Tensor:
    return torch.einsum(equation, *operands)
