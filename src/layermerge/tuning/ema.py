"""EMA: the moving average of a network's weights, by torch's own AveragedModel.

In: a network after every step. Out: `average = decay * average + (1 - decay) * weights` for all that is floating point,
norm statistics included; counters are copied. Guarantees: the average starts at the weights that the network has.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel


def weights_of(net: nn.Module) -> dict[str, Tensor]:
    """Parameters and persistent buffers by name, sharing the network's memory."""
    return {name: value for name, value in net.state_dict().items() if isinstance(value, Tensor)}


@torch.no_grad()
def copy_into(net: nn.Module, weights: Mapping[str, Tensor]) -> None:
    """Overwrites a network's tensors in place, so that their memory formats and the optimizer's hold on them stay."""
    for name, value in weights_of(net).items():
        value.copy_(weights[name])


def make_average(net: nn.Module, decay: float) -> AveragedModel:
    """A copy of the network, `.module`, that follows it whenever `update_parameters` is called."""

    # Torch's own function would average integers, too: with a usual decay, counters would stay where they are.
    @torch.no_grad()
    def follow(averages: Sequence[Tensor], values: Sequence[Tensor], _count: Tensor | int) -> None:
        if averages[0].is_floating_point():
            torch._foreach_lerp_(list(averages), list(values), 1 - decay)
        else:
            torch._foreach_copy_(list(averages), list(values))

    average = AveragedModel(net, multi_avg_fn=follow, use_buffers=True)
    average.n_averaged += 1  # the copy counts, or the first update would replace it
    return average
