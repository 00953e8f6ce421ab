"""Paired KID: against KID as torchmetrics has it, against a jackknife by hand, and against many draws."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from benchmarks.paired_kid import Lead, Nearness, kid_lead
from torch import Tensor

from layermerge.sampling.quality import kid


def features(count: int, seed: int, shift: float = 0.0) -> Tensor:
    return torch.randn(count, 5, generator=torch.Generator().manual_seed(seed)) + shift


def lead(mine: Tensor, theirs: Tensor, real: Tensor, blocks: int = 32) -> Lead:
    return kid_lead(Nearness.of(mine, real, blocks), Nearness.of(theirs, real, blocks))


def by_hand(mine: np.ndarray, theirs: np.ndarray, real: np.ndarray) -> float:
    """Theirs less mine, by double loops."""

    def unbiased(some: np.ndarray) -> float:
        count = len(some)
        own = sum(kernel(some[i], some[j]) for i in range(count) for j in range(count) if i != j)
        across = sum(kernel(a, b) for a in some for b in real)
        return own / (count * (count - 1)) - 2 * across / (count * len(real))

    def kernel(a: np.ndarray, b: np.ndarray) -> float:
        return float((a @ b / len(a) + 1) ** 3)

    return float(unbiased(theirs) - unbiased(mine))


def test_a_lead_is_the_difference_of_kids() -> None:
    mine, theirs, real = features(60, 0, 0.1), features(60, 1, 0.4), features(60, 2)
    apart = kid(theirs, real, subsets=1, subset_size=60)[0] - kid(mine, real, subsets=1, subset_size=60)[0]
    assert lead(mine, theirs, real, blocks=7)[0] == pytest.approx(apart, rel=1e-6)


def test_its_interval_is_that_of_a_jackknife_by_hand() -> None:
    mine, theirs, real = (part.double().numpy() for part in (features(8, 0), features(8, 1, 0.3), features(6, 2)))
    blocks, spread = 4, 0.0
    for moved in ("samples", "real"):
        left = []
        for block in range(blocks):
            sample = np.arange(8) * blocks // 8 != block if moved == "samples" else np.full(8, True)
            seen = np.arange(6) * blocks // 6 != block if moved == "real" else np.full(6, True)
            left.append(by_hand(mine[sample], theirs[sample], real[seen]))
        spread += (blocks - 1) / blocks * float(np.sum((np.array(left) - np.mean(left)) ** 2))
    gain, low, high = lead(features(8, 0), features(8, 1, 0.3), features(6, 2), blocks)
    assert gain == pytest.approx(by_hand(mine, theirs, real))
    assert (gain - low, high - gain) == pytest.approx((1.959963984540054 * spread**0.5,) * 2)


def test_samples_of_the_same_noise_tell_more() -> None:
    """The interval is about as wide as leads scatter over draws, and narrower where both networks were given the same noise."""
    leads, halves, apart_halves = [], [], []
    for seed in range(40):
        noise, other, real = features(128, seed), features(128, 1000 + seed), features(128, 2000 + seed)
        gain, low, _ = lead(noise + 0.2, noise + 0.4, real)
        leads.append(gain)
        halves.append(gain - low)
        apart_gain, apart_low, _ = lead(noise + 0.2, other + 0.4, real)
        apart_halves.append(apart_gain - apart_low)
    assert np.mean(halves) == pytest.approx(1.96 * np.std(leads), rel=0.35)
    assert np.mean(halves) < 0.9 * np.mean(apart_halves)


def test_the_same_samples_are_level() -> None:
    mine, real = features(64, 0), features(64, 1)
    assert lead(mine, mine.clone(), real) == (0.0, 0.0, 0.0)
