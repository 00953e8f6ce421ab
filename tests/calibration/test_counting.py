"""Counting: factors by hand, and what they do to a fit of maps on which hardly any place holds something."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import layermerge as lm
from layermerge.calibration.counting import Counting
from layermerge.data.sets import Draw
from layermerge.tasks import Imitation


def test_factors_by_hand() -> None:
    maps = (
        torch.randn(20, 3, 5, 4, generator=torch.Generator().manual_seed(0))
        * torch.tensor([1.0, 10.0, 0.1])[:, None, None]
    )
    values = maps.double().numpy()
    mean, variance = values.mean((0, 2, 3)), values.var((0, 2, 3))
    unusual = ((values - mean[:, None, None]) ** 2 / variance[:, None, None]).mean(1)
    found = Counting.of(torch.split(maps, 7)).factors(maps)
    assert found.shape == (20, 1, 5, 4)
    np.testing.assert_allclose(found[:, 0].numpy(), (1 + unusual) / 2, rtol=1e-5)
    assert float(found.mean()) == pytest.approx(1.0)


def test_channels_that_never_vary_are_not_unusual() -> None:
    maps = torch.ones(4, 2, 3, 3)
    assert set(Counting.of([maps]).factors(maps).flatten().tolist()) == {0.5}
    maps[:, 0] = torch.randn(4, 3, 3, generator=torch.Generator().manual_seed(0))
    factors = Counting.of([maps]).factors(maps)
    assert bool(factors.isfinite().all())
    assert float(factors.mean()) == pytest.approx(0.75), "one of two channels varies"


class Spots(nn.Module):
    """A map that is dark but for few places, told from the image through two convs and an activation."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.act, self.second = nn.Conv2d(1, 6, 3, padding=1), nn.SiLU(), nn.Conv2d(6, 2, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return torch.sigmoid(4 * self.second(self.act(self.first(x))))


def spots(count: int, seed: int) -> Tensor:
    draws = torch.Generator().manual_seed(seed)
    bright = (torch.rand(count, 1, 12, 12, generator=draws) < 0.02).float()
    return 4 * bright + 0.3 * torch.randn(count, 1, 12, 12, generator=draws)


def test_imitation_has_places_of_maps_counted_and_comes_nearer_where_something_is() -> None:
    model = Spots()
    traced = lm.trace(model, spots(2, 9))
    menu = lm.plan(traced)
    net = lm.rewrite(traced, [next(one for one in menu.candidates if len(one.kept) == 2 and one.spec)])
    task = Imitation(spots(300, 0), spots(60, 1), teacher=model)
    assert task.counts_unusual
    images = torch.cat([batch[0] for batch in task.train_batches(Draw(seed=0, batch_size=64, subset=128))])
    plainly, counted = lm.calibrate(net, images, count=128), lm.calibrate(net, task, count=128)
    distances = [task.test(one).value for one in (net, plainly, counted)]
    assert distances[2] < distances[1] < distances[0]


def test_outputs_without_places_leave_all_places_alike() -> None:
    classifier = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3))
    assert not Imitation(spots(60, 0), teacher=classifier.eval()).counts_unusual
