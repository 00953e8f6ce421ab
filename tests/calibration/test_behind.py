"""Targets behind an activation: what counts as hit, and where values lose least."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from layermerge.calibration.behind import Placing, PlacingSearch, nearest_hit
from zoo_registry import random_tensor

FUNCTIONS: dict[str, nn.Module] = {
    "relu": nn.ReLU(),
    "relu6": nn.ReLU6(),
    "hardtanh": nn.Hardtanh(),
    "silu": nn.SiLU(),
    "leaky": nn.LeakyReLU(0.1),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_what_is_aimed_at_is_mapped_as_the_target_is_and_no_farther_from_the_value(name: str) -> None:
    function = FUNCTIONS[name]
    value, target = (8 * random_tensor(1000, seed=seed) for seed in (1, 2))
    aim = nearest_hit(function, value, target)
    torch.testing.assert_close(function(aim), function(target), atol=1e-6, rtol=0)
    assert bool(((aim - value).abs() <= (target - value).abs() + 1e-6).all())


def test_the_aim_of_a_clipping_function_is_the_nearest_of_all() -> None:
    value, target = (8 * random_tensor(1000, seed=seed) for seed in (1, 2))
    aim = nearest_hit(FUNCTIONS["relu6"], value, target)
    nearest = torch.where(target <= 0, value.clamp(max=0), torch.where(target >= 6, value.clamp(min=6), target))
    reach = (value - target).abs() / 2**10  # halved ten times
    assert bool(((aim - nearest).abs() <= reach + 1e-5).all())


def search(values: Tensor, function: nn.Module, *, scalable: bool) -> Placing:
    mean, deviation = values.mean((0, 2, 3)), values.std((0, 2, 3))
    found = PlacingSearch(function, mean.double(), deviation.double(), scalable=scalable)
    for batch in torch.split(values, 4):
        found.add(batch)
    return found.best()


def lost(values: Tensor, function: nn.Module, placing: Placing) -> float:
    """The share of a channel that does not follow linearly from the activation's output, on average."""
    seen = function(placing(values)).transpose(0, 1).flatten(1)
    pairs = zip(seen, values.transpose(0, 1).flatten(1), strict=True)
    return 1 - float(torch.stack([torch.corrcoef(torch.stack(pair))[0, 1].square() for pair in pairs]).mean())


@pytest.mark.parametrize("scalable", [True, False])
@pytest.mark.parametrize("name", ["relu", "relu6"])
def test_values_around_zero_are_placed_where_a_clipping_function_lets_them_pass(name: str, scalable: bool) -> None:
    values, function = random_tensor(32, 3, 8, 8) * 1.5, FUNCTIONS[name]
    as_it_is = Placing(torch.ones(3), torch.zeros(3))
    placing = search(values, function, scalable=scalable)
    assert lost(values, function, placing) < 0.02 < lost(values, function, as_it_is)
    assert scalable or bool((placing.scale == 1).all())


def test_values_that_pass_already_stay_where_they_are() -> None:
    placing = search(random_tensor(32, 3, 8, 8).abs() * 0.3 + 1, FUNCTIONS["relu6"], scalable=True)
    assert bool((placing.scale == 1).all())
    assert not placing.shift.any()
