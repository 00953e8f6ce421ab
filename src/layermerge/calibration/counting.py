"""Counting: how much the places of a map count in a fit, for tasks that count places of their outputs (`tasks/units`).

In: what the original computes. Out: a factor for each place, about 1 on average: one half alike, the other by how unusual the
values there are. What few places hold, such as objects, is otherwise pulled toward what the many say.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from layermerge.calibration.trainable import Spread
from layermerge.tasks.units import counted

_LEAST = 1e-6
"""A channel that varies less than this share of the others, in variance, is not looked at more closely."""


@dataclass(frozen=True)
class Counting:
    """By the mean and the variance of each channel."""

    spread: Spread

    @staticmethod
    def of(maps: Iterable[Tensor]) -> Counting:
        return Counting(Spread.of(maps))

    def factors(self, target: Tensor) -> Tensor:
        """Of values (images, channels, ...) at some places: (images, 1, ...), in float64."""
        mean, variance = (
            given.view(1, -1, *[1] * (target.ndim - 2)) for given in (self.spread.mean, self.spread.variance)
        )
        least = max(_LEAST * float(variance.mean()), torch.finfo(torch.float64).tiny)
        return counted(((target.double() - mean).square() / variance.clamp_min(least)).mean(1, keepdim=True))
