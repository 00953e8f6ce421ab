"""Paired KID: how much nearer to real images one network's samples are than another's, drawn from the same start noise.

In: features of both networks' samples, row by row from the same noise, and of real images. Out: how much lower the first
KID is, over all samples, with its 95 % interval. Samples of the same noise are alike, so a difference is known far better
than either KID. Its error is that of the samples and that of the real images: a jackknife over blocks of each.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

Lead = tuple[float, float, float]
"""How much lower, and the 95 % interval of that."""
BLOCKS = 32
_Z = 1.959963984540054


@dataclass(frozen=True)
class Nearness:
    """A network's samples beside real images: kernels summed over blocks of both."""

    among: Tensor
    """Between blocks of samples; no sample with itself."""
    across: Tensor
    """Between blocks of samples and blocks of real images."""
    sizes: Tensor
    real_sizes: Tensor

    @staticmethod
    def of(features: Tensor, real: Tensor, blocks: int = BLOCKS) -> Nearness:
        features, real = features.double(), real.double()
        own, seen = _members(len(features), blocks), _members(len(real), blocks)
        among = _kernel(features, features).fill_diagonal_(0.0)
        return Nearness(own.T @ among @ own, own.T @ _kernel(features, real) @ seen, own.sum(0), seen.sum(0))

    def distance(self) -> float:
        """KID, but for what real images have among themselves, which is the same for every network."""
        count, real = float(self.sizes.sum()), float(self.real_sizes.sum())
        return float(self.among.sum()) / (count * (count - 1)) - 2 * float(self.across.sum()) / (count * real)

    def without_each(self) -> tuple[list[float], list[float]]:
        """The distance without each of the blocks of samples, and without each of those of real images."""
        whole = torch.arange(len(self.sizes))
        fewer = [whole[whole != block] for block in whole]
        return (
            [Nearness(self.among[i][:, i], self.across[i], self.sizes[i], self.real_sizes).distance() for i in fewer],
            [Nearness(self.among, self.across[:, i], self.sizes, self.real_sizes[i]).distance() for i in fewer],
        )


def kid_lead(mine: Nearness, theirs: Nearness) -> Lead:
    """Below 0 where the other network's samples are nearer."""
    gain, variance = theirs.distance() - mine.distance(), 0.0
    for mine_left, theirs_left in zip(mine.without_each(), theirs.without_each(), strict=True):
        variance += _jackknifed([other - own for own, other in zip(mine_left, theirs_left, strict=True)])
    half = _Z * variance**0.5
    return gain, gain - half, gain + half


def _jackknifed(left: Sequence[float]) -> float:
    """The variance of a figure, from what it is without each of the blocks."""
    values = torch.tensor(left, dtype=torch.float64)
    return float((len(left) - 1) * (values - values.mean()).square().mean())


def _kernel(some: Tensor, others: Tensor) -> Tensor:
    """The cubic kernel of KID."""
    return (some @ others.T / some.shape[1] + 1) ** 3


def _members(count: int, blocks: int) -> Tensor:
    """Which block each row is in: rows x blocks of ones and zeros."""
    return torch.nn.functional.one_hot(torch.arange(count) * blocks // count, blocks).double()
