"""Trainable: a fitted kernel as modules that train: a conv and a norm that is initialised from the conv's own output.

In: a kernel, and the modules that are to compute it. Out: their weights. A filter keeps the length that it had, since the
length of a filter before a norm does not change what is computed, but how fast it trains.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from layermerge.surgery.fitted import FittedModules
from layermerge.surgery.kernels import Kernel


@dataclass(frozen=True)
class Spread:
    """Mean and variance of each channel, in float64."""

    mean: Tensor
    variance: Tensor

    @staticmethod
    def of(maps: Iterable[Tensor]) -> Spread:
        """Of (images, channels, ...) batches, one batch at a time."""
        total = squares = None
        count = 0
        for batch in maps:
            rest = [axis for axis in range(batch.ndim) if axis != 1]
            sums = batch.sum(rest, dtype=torch.float64), batch.double().square().sum(rest)
            total, squares = sums if total is None or squares is None else (total + sums[0], squares + sums[1])
            count += batch.numel() // batch.shape[1]
        assert total is not None
        assert squares is not None
        mean = total / count
        return Spread(mean, (squares / count - mean.square()).clamp_min(0.0))


@torch.no_grad()
def write_kernel(modules: FittedModules, kernel: Kernel, spread: Spread, lengths: Tensor | None = None) -> None:
    """Lets the modules compute the kernel; `spread` is that of its output."""
    conv, norm = modules.conv, modules.norm
    if norm is None:
        assert conv.bias is not None
        conv.weight.copy_(kernel.weight)
        conv.bias.copy_(kernel.bias)
        return
    assert norm.running_mean is not None
    assert norm.running_var is not None
    own = kernel.weight.flatten(1).norm(dim=1)
    usable = (own > 0) if lengths is None else (own > 0) & (lengths > 0)
    scale = torch.ones_like(own) if lengths is None else torch.where(usable, own / lengths.to(own), 1.0)
    offset = 0.0 if conv.bias is None else conv.bias.double()
    mean, variance = (spread.mean - kernel.bias) / scale + offset, spread.variance / scale.square()
    conv.weight.copy_(kernel.weight / scale[:, None, None, None])
    for name, carrier in modules.carriers.items():
        carrier.weight.copy_((kernel.shifts[name] / scale[:, None])[:, :, None, None])
    norm.running_mean.copy_(mean)
    norm.running_var.copy_(variance)
    norm.weight.copy_(scale * (norm.running_var.double() + norm.eps).sqrt())
    norm.bias.copy_(spread.mean + scale * (norm.running_mean.double() - mean))
