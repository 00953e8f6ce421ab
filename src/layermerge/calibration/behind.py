"""Behind an activation: what to aim at before it. Tensors in, tensors out, for any element-wise function.

Where the original has the activation too, only its output counts: all values that it maps to the same count as hit.
Where `rewrite` put an activation that the original does not have there, values are placed where it loses least of them; the
layers behind undo scale and shift, as they are fitted too.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

Function = Callable[[Tensor], Tensor]
_HALVINGS = 10


def nearest_hit(function: Function, value: Tensor, target: Tensor) -> Tensor:
    """What is nearest to the value, on the way to the target, and is mapped to what the target is mapped to.

    >>> nearest_hit(torch.relu, torch.tensor([-5.0, 2.0, 2.0]), torch.tensor([-1.0, 1.0, -3.0])).round(decimals=1).tolist()
    [-5.0, 1.0, -0.0]
    """
    wanted, way = function(target), value - target
    hit = function(value) == wanted
    flat = ~hit & (function(target + 1e-3 * way) == wanted)
    aim = torch.where(hit, value, target)
    start, step, goal = target[flat], way[flat], wanted[flat]
    share, width = torch.zeros_like(start), 0.5
    for _ in range(_HALVINGS):
        share = torch.where(function(start + (share + width) * step) == goal, share + width, share)
        width /= 2
    aim[flat] = start + share * step
    return aim


@dataclass(frozen=True)
class Placing:
    """Values times scale plus shift, one of each a channel."""

    scale: Tensor
    shift: Tensor

    def __call__(self, values: Tensor) -> Tensor:
        return values * self.scale.to(values)[:, None, None] + self.shift.to(values)[:, None, None]


class PlacingSearch:
    """Finds, channel by channel, where an activation loses least of some values, by how well they follow from its output.

    Candidates: as they are; shifted so that the mean is 1, 2 or 3 deviations above zero, or 3; and, where `scalable`, with
    three other deviations. Sums over all batches, in float64.
    """

    def __init__(self, function: Function, mean: Tensor, deviation: Tensor, *, scalable: bool) -> None:
        self.function = function
        deviation = deviation.clamp_min(1e-6)
        ones = torch.ones_like(mean)
        placings = [Placing(ones, torch.zeros_like(mean))]
        for spread in [deviation, *([factor * ones for factor in (0.5, 1.0, 1.5)] if scalable else [])]:
            scale = spread / deviation
            placings += [Placing(scale, centre - mean * scale) for centre in (spread, 2 * spread, 3 * spread, 3 * ones)]
        self.placings = placings
        self._sums = mean.new_zeros(len(placings), 3, len(mean), dtype=torch.float64)
        self._mean, self._square, self._count = mean.double(), mean.new_zeros(len(mean), dtype=torch.float64), 0

    def add(self, values: Tensor) -> None:
        """Looks at a batch of them (images, channels, height, width)."""
        centred = values.double() - self._mean.to(values.device)[:, None, None]
        self._square += centred.square().sum((0, 2, 3)).to(self._square)
        self._count += values.numel() // values.shape[1]
        for place, placing in enumerate(self.placings):
            seen = self.function(placing(values)).double()
            for row, sums in enumerate((seen, seen.square(), seen * centred)):
                self._sums[place, row] += sums.sum((0, 2, 3)).to(self._sums)

    def best(self) -> Placing:
        """Of each channel; as it is, unless another place explains a hundredth more of it."""
        seen, squares, products = self._sums.unbind(1)
        spread = (squares - seen.square() / self._count).clamp_min(1e-9)
        explained = products.square() / spread / self._square.clamp_min(1e-9)
        explained[0] += 0.01
        chosen = explained.argmax(0, keepdim=True)
        scales, shifts = (
            torch.stack([getattr(one, name) for one in self.placings]).gather(0, chosen)[0]
            for name in ("scale", "shift")
        )
        return Placing(scales, shifts)
