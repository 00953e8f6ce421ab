"""Operators that look through windows, or resize: pooling, padding as 'same' asks for it, interpolation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

Ints = Sequence[int]
_MAX: dict[int, Callable[..., Tensor]] = {1: F.max_pool1d, 2: F.max_pool2d, 3: F.max_pool3d}
_AVERAGE: dict[int, Callable[..., Tensor]] = {1: F.avg_pool1d, 2: F.avg_pool2d, 3: F.avg_pool3d}
_MODES = {"linear": {3: "linear", 4: "bilinear", 5: "trilinear"}, "cubic": {4: "bicubic"}}


def torch_pads(pads: Ints) -> list[int]:
    """Before every axis, then behind every axis, as torch wants it: pairs, the last axis first."""
    half = len(pads) // 2
    return [side for axis in range(half - 1, -1, -1) for side in (pads[axis], pads[half + axis])]


def same_pads(sizes: Ints, kernel: Ints, strides: Ints, dilations: Ints, *, lower: bool) -> list[int]:
    """In ONNX's order: as much as gives ceil(size / stride) windows, the odd one before or behind."""
    before, behind = [], []
    for size, side, stride, dilation in zip(sizes, kernel, strides, dilations, strict=True):
        windows = (size + stride - 1) // stride
        needed = (windows - 1) * stride + (side - 1) * dilation + 1 - size
        total = max(needed, 0) if isinstance(needed, int) else torch.sym_max(needed, 0)
        small, large = total // 2, total - total // 2
        before.append(large if lower else small)
        behind.append(small if lower else large)
    return [*before, *behind]


def pad_same(x: Tensor, *, kernel: Ints, strides: Ints, dilations: Ints, lower: bool, value: float = 0.0) -> Tensor:
    return F.pad(x, torch_pads(same_pads(x.shape[2:], kernel, strides, dilations, lower=lower)), value=value)


def pad_sides(x: Tensor, *, pads: Ints, value: float = 0.0) -> Tensor:
    return F.pad(x, torch_pads(pads), value=value)


def _windows(x: Tensor, kernel: Ints, settings: dict[str, Any], value: float) -> tuple[Tensor, Ints, Ints, Ints]:
    """The map, padded where torch's pooling cannot; strides, dilations and the padding that is left to do."""
    rank = len(kernel)
    strides = settings.get("strides") or [1] * rank
    dilations = settings.get("dilations") or [1] * rank
    pads = settings.get("pads") or [0] * 2 * rank
    auto = settings.get("auto_pad", "NOTSET")
    if auto.startswith("SAME"):
        pads = same_pads(x.shape[2:], kernel, strides, dilations, lower=auto == "SAME_LOWER")
    elif auto == "VALID":
        pads = [0] * 2 * rank
    symmetric = all(isinstance(side, int) for side in pads) and list(pads[:rank]) == list(pads[rank:])
    if symmetric and all(2 * side <= size for side, size in zip(pads, kernel, strict=False)):
        return x, strides, dilations, pads[:rank]
    return F.pad(x, torch_pads(pads), value=value), strides, dilations, [0] * rank


def max_pool(
    x: Tensor,
    *,
    kernel_shape: Ints,
    ceil_mode: int = 0,
    storage_order: int = 0,  # noqa: ARG001 - of indices, which are not given
    **settings: Any,
) -> Tensor:
    x, strides, dilations, pads = _windows(x, kernel_shape, settings, float("-inf"))
    return _MAX[len(kernel_shape)](x, kernel_shape, strides, pads, dilations, bool(ceil_mode))


def average_pool(
    x: Tensor, *, kernel_shape: Ints, ceil_mode: int = 0, count_include_pad: int = 0, **settings: Any
) -> Tensor:
    rank, pool = len(kernel_shape), _AVERAGE[len(kernel_shape)]
    padded, strides, dilations, pads = _windows(x, kernel_shape, settings, 0.0)
    if any(one != 1 for one in dilations):
        raise ValueError("it averages through windows with holes")
    counts = bool(count_include_pad) or padded is not x
    averages = pool(padded, kernel_shape, strides, pads, bool(ceil_mode), counts)
    if padded is x or count_include_pad:
        return averages
    # What was padded must not count: divided by the share of the window that is the map's own.
    ones = torch.ones_like(x[:1, :1])
    shares = pool(
        _windows(ones, kernel_shape, settings, 0.0)[0], kernel_shape, strides, [0] * rank, bool(ceil_mode), True
    )
    return averages / shares


def global_average(x: Tensor) -> Tensor:
    return F.adaptive_avg_pool2d(x, 1) if x.dim() == 4 else x.mean(list(range(2, x.dim())), keepdim=True)


def global_max(x: Tensor) -> Tensor:
    return x.amax(list(range(2, x.dim())), keepdim=True)


def local_response(x: Tensor, *, size: int, alpha: float = 0.0001, beta: float = 0.75, bias: float = 1.0) -> Tensor:
    return F.local_response_norm(x, size, alpha, beta, bias)


def lp_normalise(x: Tensor, *, axis: int = -1, p: int = 2) -> Tensor:
    length: Tensor = torch.linalg.vector_norm(x, p, axis, keepdim=True)
    return x / length


def resize(x: Tensor, roi: Any = None, scales: Ints | None = None, sizes: Ints | None = None, **how: Any) -> Tensor:
    """The forms of interpolation that torch has; whether an odd one among nearest neighbours agrees is seen when verified."""
    del roi  # of a mode that crops
    kind, options = _interpolation(x.dim(), how)
    axes = how.get("axes")
    chosen = [axis % x.dim() for axis in axes] if axes is not None else list(range(x.dim()))
    inner = range(2, x.dim())
    if sizes is not None and len(sizes):
        wanted = dict(zip(chosen, sizes, strict=True))
        return F.interpolate(x, size=[wanted.get(axis, x.shape[axis]) for axis in inner], mode=kind, **options)
    if scales is None:
        raise ValueError("it says neither scales nor sizes")
    factors = dict(zip(chosen, scales, strict=True))
    if any(factors.get(axis, 1.0) != 1 for axis in (0, 1)):
        raise ValueError("it resizes batch or channels")
    return F.interpolate(x, scale_factor=[float(factors.get(axis, 1.0)) for axis in inner], mode=kind, **options)


def _interpolation(rank: int, how: dict[str, Any]) -> tuple[str, dict[str, bool]]:
    """Torch's name for what the attributes of a Resize say, and whether corners are aligned."""
    mode, places = how.get("mode", "nearest"), how.get("coordinate_transformation_mode", "half_pixel")
    if places == "tf_crop_and_resize" or how.get("antialias") or how.get("exclude_outside"):
        raise ValueError(f"it resizes by {places}, or antialiased")
    if how.get("keep_aspect_ratio_policy", "stretch") != "stretch" or how.get("cubic_coeff_a", -0.75) != -0.75:
        raise ValueError("it resizes by another rule than torch has")
    if mode == "nearest":
        floors = how.get("nearest_mode") == "floor" or places == "asymmetric"
        return "nearest" if floors else "nearest-exact", {}
    if places == "asymmetric":
        raise ValueError(f"it resizes by {mode} from coordinates that are asymmetric")
    return _MODES[mode][rank], {"align_corners": places == "align_corners"}
