"""Tensors: what equalising, correcting and comparing is, on arrays alone; in float64 where it is not exact anyway."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch.nn import functional as F

Array = np.ndarray[Any, Any]

_FARTHEST = 8
"""A channel is scaled by no more than 2 to this power, either way: beyond it is next to dead, or the others are."""


def equalising_scales(maxima: Array, weights: Array | None) -> Array:
    """By which to divide each channel of a feature map, so that one scale for all of them fits each: powers of two.

    `maxima` are the largest numbers of its channels. `weights` are the largest weights that read each channel, which are
    multiplied by what the channel is divided by: the map and the weights come to be as uneven as each other. None where every
    channel is read by weights that have a scale of their own (depthwise): then the map can be made even. Multiplying by powers
    of two is exact, so the network computes the same, to the bit.

    >>> equalising_scales(np.array([1.0, 16.0, 4.0]), None).tolist()
    [0.25, 4.0, 1.0]
    >>> equalising_scales(np.array([1.0, 16.0, 4.0]), np.array([1.0, 1.0, 1.0])).tolist()
    [0.5, 2.0, 1.0]
    """
    alive = maxima > 0 if weights is None else (maxima > 0) & (weights > 0)
    if not alive.any():
        return np.ones_like(maxima)
    wanted = np.zeros(len(maxima))
    wanted[alive] = np.log2(maxima[alive]) if weights is None else np.log2(maxima[alive] / weights[alive]) / 2
    wanted[alive] -= np.median(wanted[alive])
    scales: Array = np.exp2(np.clip(np.rint(wanted), -_FARTHEST, _FARTHEST)).astype(maxima.dtype)
    return scales


def largest_by_input(weight: Array, groups: int) -> Array:
    """The largest weight that reads each input channel of a conv."""
    largest: Array = np.abs(_grouped(weight, groups)).max(axis=(1, *range(3, weight.ndim + 1))).reshape(-1)
    return largest


def with_inputs_scaled(weight: Array, groups: int, scales: Array) -> Array:
    """A conv's weights for input channels that were divided by scales."""
    grouped = _grouped(weight, groups)
    scaled = grouped * scales.reshape(groups, 1, -1, *[1] * (weight.ndim - 2))
    return scaled.reshape(weight.shape).astype(weight.dtype)


def _grouped(weight: Array, groups: int) -> Array:
    return weight.reshape(groups, -1, *weight.shape[1:])


def with_outputs_divided(weight: Array, scales: Array) -> Array:
    """A conv's weights, or its bias, for output channels that are divided by scales."""
    return (weight / scales.reshape(-1, *[1] * (weight.ndim - 1))).astype(weight.dtype)


def dequantised(integers: Array, scale: Array, zero_point: Array, axis: int) -> Array:
    """The numbers that integers stand for; scale and zero point are one for all, or one for each place along an axis."""
    shape = [1] * integers.ndim
    if scale.ndim:
        shape[axis] = -1
    return (integers.astype(np.float64) - zero_point.reshape(shape)) * scale.astype(np.float64).reshape(shape)


def mean_conv_output(
    mean_map: Array, weight: Array, stride: Sequence[int], pads: Sequence[int], dilation: Sequence[int], groups: int
) -> Array:
    """What a conv gives on average for each output channel, over images and places: it is linear, so their mean map says it.

    `pads` are top, left, bottom, right, as in ONNX.
    """
    top, left, bottom, right = pads
    padded = F.pad(torch.from_numpy(mean_map.astype(np.float64))[None], [left, right, top, bottom])
    kernel = torch.from_numpy(np.ascontiguousarray(weight, dtype=np.float64))
    given = F.conv2d(padded, kernel, stride=tuple(stride), dilation=tuple(dilation), groups=groups)
    return given.mean(dim=(0, 2, 3)).numpy()


def relative_loss(outputs: Sequence[Array], reference: Sequence[Array]) -> float:
    """Squared differences over the square of the reference: noise over signal. The mean where there are several outputs.

    >>> relative_loss([np.array([1.0, 2.0])], [np.array([1.0, 1.0])])
    0.5
    """
    parts = [
        float(np.square(one.astype(np.float64) - other.astype(np.float64)).sum())
        / max(float(np.square(other.astype(np.float64)).sum()), 1e-30)
        for one, other in zip(outputs, reference, strict=True)
    ]
    return float(np.mean(parts))
