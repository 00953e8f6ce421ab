"""Schedules against values worked out by hand; which parameters an optimizer gets, and what decays."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn
from torch.optim import SGD, Adam, AdamW

from layermerge.errors import TuningError
from layermerge.tuning.optimise import Schedule, build_optimizer
from tuning.toy_task import network, recipe


@pytest.mark.parametrize(
    ("length", "per_epoch", "total"),
    [
        ({"epochs": 2}, 4, 8),
        ({"epochs": 2.1}, 4, 9),
        ({"epochs": 1.1}, 10, 11),  # 1.1 * 10 is a little more than 11 in floating point
        ({"epochs": 0.01}, 10, 1),
        ({"steps": 7}, 4, 7),
    ],
)
def test_how_long_a_recipe_trains(length: dict[str, float], per_epoch: int, total: int) -> None:
    assert Schedule(recipe(**length), per_epoch).total == total


def test_cosine_goes_from_the_peak_to_zero() -> None:
    schedule = Schedule(recipe(steps=4, lr=0.8), per_epoch=4)
    half = math.sqrt(0.5)
    assert [schedule.rate(step) for step in range(5)] == pytest.approx(
        [0.8, 0.4 * (1 + half), 0.4, 0.4 * (1 - half), 0.0], abs=1e-15
    )


def test_warm_up_is_linear_and_reaches_the_peak() -> None:
    schedule = Schedule(recipe(steps=6, lr=0.8, warmup_epochs=0.5), per_epoch=8)
    assert [schedule.rate(step) for step in range(7)] == pytest.approx([0.2, 0.4, 0.6, 0.8, 0.8, 0.4, 0.0], abs=1e-15)
    constant = Schedule(recipe(steps=6, lr=0.8, warmup_epochs=0.25, schedule="constant"), per_epoch=8)
    assert [constant.rate(step) for step in range(6)] == [0.4, 0.8, 0.8, 0.8, 0.8, 0.8]


def test_a_warm_up_longer_than_the_training_is_all_of_it() -> None:
    schedule = Schedule(recipe(steps=4, lr=0.8, warmup_epochs=10), per_epoch=8)
    assert [schedule.rate(step) for step in range(4)] == pytest.approx([0.2, 0.4, 0.6, 0.8])


@pytest.mark.parametrize("decay_norms", [False, True])
def test_norms_and_biases_decay_only_if_told(decay_norms: bool) -> None:
    net = network()
    optimizer = build_optimizer(net, recipe(decay_norms=decay_norms, weight_decay=0.3))
    decay = {id(p): group["weight_decay"] for group in optimizer.param_groups for p in group["params"]}
    named = {name: decay[id(parameter)] for name, parameter in net.named_parameters()}
    flat = 0.3 if decay_norms else 0.0
    assert named == {
        "0.weight": 0.3,
        "0.bias": flat,
        "1.weight": flat,
        "1.bias": flat,
        "3.weight": 0.3,
        "6.weight": 0.3,
        "6.bias": flat,
    }


def test_optimizers_are_those_of_torch() -> None:
    net = network()
    sgd = build_optimizer(net, recipe(momentum=0.7, nesterov=False))
    assert type(sgd) is SGD
    assert (sgd.defaults["momentum"], sgd.defaults["nesterov"]) == (0.7, False)
    assert type(build_optimizer(net, recipe(optimizer="adam"))) is Adam
    assert type(build_optimizer(net, recipe(optimizer="adamw"))) is AdamW


def test_frozen_parameters_are_left_out() -> None:
    net = network()
    for parameter in net[0].parameters():
        parameter.requires_grad_(False)
    held = [p for group in build_optimizer(net, recipe()).param_groups for p in group["params"]]
    assert len(held) == 5
    assert all(parameter.requires_grad for parameter in held)


@pytest.mark.parametrize("net", [nn.ReLU(), network().requires_grad_(False)])
def test_nothing_to_train_is_said_in_one_line(net: nn.Module) -> None:
    with pytest.raises(TuningError, match=r"^\w+ has no parameter that requires gradients; call [^\n]*$"):
        build_optimizer(net, recipe())


def test_seeds_of_the_test_networks_do_not_disturb_torch() -> None:
    before = torch.get_rng_state()
    network()
    assert torch.equal(before, torch.get_rng_state())
