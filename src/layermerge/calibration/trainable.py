"""Trainable: a fitted kernel as modules that train: a conv and perhaps a norm that begins with the conv's own statistics.

In: a kernel, and the modules that are to compute it. Out: their weights.
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
def write_kernel(modules: FittedModules, kernel: Kernel, spread: Spread) -> None:
    """Lets the modules compute the kernel; `spread` is that of its output."""
    conv, norm = modules.conv, modules.norm
    conv.weight.copy_(kernel.weight)
    for name, carrier in modules.carriers.items():
        carrier.weight.copy_(kernel.shifts[name][:, :, None, None])
    if norm is None:
        assert conv.bias is not None
        conv.bias.copy_(kernel.bias)
        return
    assert norm.running_mean is not None
    assert norm.running_var is not None
    offset = 0.0 if conv.bias is None else conv.bias.double()
    norm.running_mean.copy_(spread.mean - kernel.bias + offset)
    norm.running_var.copy_(spread.variance)
    # From the buffers as they were rounded, so that the kernel comes back.
    norm.weight.copy_((norm.running_var.double() + norm.eps).sqrt())
    norm.bias.copy_(kernel.bias + norm.running_mean.double() - offset)
