"""EMA: the moving average of a network's weights.

In: a network after every step. Out: `average = decay * average + (1 - decay) * weights` for all that is floating point,
norm statistics included; counters are copied, and what the network does not save stays out of it. Guarantees: the average
starts at the weights the network has; the network's own weights come back after `applied_to`.

Not torch's AveragedModel: it forgets where the average started, averages counters, and also averages constants that are not
saved, where an infinite one (a mask, say) becomes NaN.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn


def weights_of(net: nn.Module) -> dict[str, Tensor]:
    """Parameters and persistent buffers by name, sharing the network's memory."""
    return {name: value for name, value in net.state_dict().items() if isinstance(value, Tensor)}


@torch.no_grad()
def copy_into(net: nn.Module, weights: Mapping[str, Tensor]) -> None:
    """Overwrites a network's tensors in place, so that their memory formats and the optimizer's hold on them stay."""
    for name, value in weights_of(net).items():
        value.copy_(weights[name])


class WeightAverage:
    """The average so far."""

    def __init__(self, net: nn.Module, decay: float) -> None:
        self.decay = decay
        self.weights = {name: value.clone() for name, value in weights_of(net).items()}

    @torch.no_grad()
    def update(self, net: nn.Module) -> None:
        for name, value in weights_of(net).items():
            average = self.weights[name]
            if average.is_floating_point():
                average.lerp_(value, 1 - self.decay)
            else:
                average.copy_(value)

    @contextmanager
    def applied_to(self, net: nn.Module) -> Iterator[None]:
        """Lends the network the average."""
        own = {name: value.clone() for name, value in weights_of(net).items()}
        copy_into(net, self.weights)
        try:
            yield
        finally:
            copy_into(net, own)
