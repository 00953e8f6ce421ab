"""Fold: a norm with fixed statistics as one multiply and one add a channel. Tensors in, tensors out, in float64."""

from __future__ import annotations

import torch
from torch import Tensor


def norm_as_affine(
    mean: Tensor, variance: Tensor, eps: float, weight: Tensor | None = None, bias: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """The scale and shift that a BatchNorm applies at inference, with its own eps and with or without affine weights.

    >>> scale, shift = norm_as_affine(torch.tensor([1.0]), torch.tensor([3.0]), eps=1.0)
    >>> scale.item(), shift.item()
    (0.5, -0.5)
    """
    scale = (variance.double() + eps).rsqrt()
    if weight is not None:
        scale = scale * weight.double()
    shift = -mean.double() * scale
    return scale, shift if bias is None else shift + bias.double()


def fold_affine(weight: Tensor, bias: Tensor | None, scale: Tensor, shift: Tensor) -> tuple[Tensor, Tensor]:
    """A conv's weight and bias with a following scale and shift folded in."""
    folded = weight.double() * scale.reshape(-1, 1, 1, 1)
    moved = shift if bias is None else bias.double() * scale + shift
    return folded, moved.to(torch.float64)
