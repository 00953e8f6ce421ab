"""Equalising: the network computes the same, in float64 to 1e-10, and maps come out even; what minds is left alone."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from layermerge.quantization.equalising import equalised, pairs_of
from layermerge.quantization.network import Network
from onnx_networks import constants, feeds, model_of, uneven, with_weights_of

IMAGES = torch.randn(24, 3, 10, 10, generator=torch.Generator().manual_seed(0))


def between(*inside: nn.Module, groups: int = 1) -> nn.Sequential:
    torch.manual_seed(1)
    convs = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1, groups=groups)
    return nn.Sequential(convs[0], *inside, convs[1]).eval()


class Padded(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.pad(x, [0, 1, 0, 1])


CARRIED = {
    "nothing": (),
    "rectifier": (nn.ReLU(),),
    "leaky": (nn.LeakyReLU(0.1),),
    "slopes": (nn.PReLU(8, init=0.3),),
    "pooling": (nn.ReLU(), nn.MaxPool2d(2)),
    "mean": (nn.ReLU(), nn.AvgPool2d(2)),
    "padding": (nn.ReLU(), Padded()),
}


@pytest.mark.parametrize("groups", [1, 2, 8])
@pytest.mark.parametrize("name", CARRIED)
def test_the_network_computes_the_same(name: str, groups: int) -> None:
    module = between(*CARRIED[name], groups=groups)
    before = module[0]
    assert isinstance(before, nn.Conv2d)
    with torch.no_grad():
        before.weight.mul_(torch.logspace(-2, 2, 8).view(-1, 1, 1, 1))
        before.bias.mul_(torch.logspace(-2, 2, 8))  # type: ignore[union-attr]
    model = model_of(module, IMAGES[:1])
    even, number = equalised(model, feeds(model, IMAGES))
    assert number == 1
    twins = copy.deepcopy(module), copy.deepcopy(module)
    plain, changed = with_weights_of(model, twins[0]), with_weights_of(even, twins[1])
    expected, actual = plain(IMAGES.double()), changed(IMAGES.double())
    assert (expected - actual).abs().max() <= 1e-10 * expected.abs().max()
    assert not np.array_equal(constants(model)["0.weight"], constants(even)["0.weight"])


@pytest.mark.parametrize("groups", [1, 8])
def test_channels_come_out_even(groups: int) -> None:
    """Their largest numbers differ no more than powers of two round; between dense convs half of it goes to the weights."""
    module = between(nn.ReLU(), groups=groups)
    uneven(module, "0", "2", torch.logspace(-2, 2, 8))
    model = model_of(module, IMAGES[:1])
    even, _ = equalised(model, feeds(model, IMAGES))

    def range_of(weights: dict[str, np.ndarray]) -> float:
        maps = nn.functional.conv2d(
            IMAGES, torch.from_numpy(weights["0.weight"]), torch.from_numpy(weights["0.bias"]), padding=1
        )
        largest = maps.relu().amax((0, 2, 3))
        return float(largest.max() / largest.min())

    assert range_of(constants(model)) > 1000
    assert range_of(constants(even)) < 8 if groups == 1 else range_of(constants(even)) <= 2


class Forked(nn.Module):
    """A map that two read."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.first, self.second = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        out: Tensor = self.second(x) + x
        return out


@pytest.mark.parametrize(
    "module",
    [between(nn.ReLU6()), between(nn.Sigmoid()), between(nn.Hardswish()), Forked(), nn.Sequential(nn.Conv2d(3, 8, 1))],
    ids=["bound", "sigmoid", "hardswish", "fork", "alone"],
)
def test_what_minds_is_left_as_it_is(module: nn.Module) -> None:
    model = model_of(module, IMAGES[:1])
    assert pairs_of(Network(model)) == []
    even, number = equalised(model, feeds(model, IMAGES))
    assert number == 0
    assert even == model


def test_a_channel_that_is_always_zero_stays() -> None:
    module = between(nn.ReLU())
    state = module.state_dict()
    state["0.weight"][3], state["0.bias"][3] = 0, -1
    module.load_state_dict(state)
    model = model_of(module, IMAGES[:1])
    even, _ = equalised(model, feeds(model, IMAGES))
    assert all(np.isfinite(value).all() for value in constants(even).values())
    assert np.array_equal(constants(model)["0.bias"][3], constants(even)["0.bias"][3])
