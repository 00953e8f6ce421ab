"""Fitted kernels as modules: what they compute, and the norm's statistics."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from layermerge.calibration.trainable import Spread, write_kernel
from layermerge.conv import ConvSpec
from layermerge.surgery.fitted import FittedModules
from layermerge.surgery.kernels import Kernel
from zoo_registry import random_tensor

SPEC = ConvSpec(3, 4, (3, 3))


def kernel() -> Kernel:
    return Kernel.of(random_tensor(4, 3, 3, 3, seed=1), random_tensor(4, seed=2), SPEC)


@pytest.mark.parametrize("bias", [True, False])
def test_conv_and_norm_compute_the_kernel_and_the_norm_has_its_statistics(bias: bool) -> None:
    x = random_tensor(40, 3, 9, 9, seed=3) + 1
    wanted = nn.functional.conv2d(x, kernel().weight.float(), kernel().bias.float())
    conv, norm = nn.Conv2d(3, 4, 3, bias=bias), nn.BatchNorm2d(4)
    write_kernel(FittedModules(conv, norm), kernel(), Spread.of(torch.split(wanted, 7)))
    torch.testing.assert_close(norm.eval()(conv(x)), wanted, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(norm.train()(conv(x)), wanted, atol=1e-3, rtol=1e-3)


def test_statistics_are_those_of_all_batches() -> None:
    values = random_tensor(40, 3, 9, 9) * 3 + 5
    found = Spread.of(torch.split(values, 9))
    variance, mean = torch.var_mean(values.double(), (0, 2, 3), correction=0)
    torch.testing.assert_close(found.mean, mean)
    torch.testing.assert_close(found.variance, variance)


def test_a_conv_without_a_norm_takes_weight_and_bias_and_dead_filters_stay_dead() -> None:
    conv = nn.Conv2d(3, 4, 3)
    nothing = Spread(torch.zeros(4), torch.zeros(4))
    write_kernel(FittedModules(conv, None), kernel(), nothing)
    assert torch.equal(conv.weight, kernel().weight.float())
    assert conv.bias is not None
    assert torch.equal(conv.bias, kernel().bias.float())
    dead = Kernel(torch.zeros(4, 3, 3, 3).double(), torch.arange(4).double(), SPEC)
    norm = nn.BatchNorm2d(4).eval()
    write_kernel(FittedModules(conv, norm), dead, Spread(torch.arange(4).double(), torch.zeros(4).double()))
    torch.testing.assert_close(norm(conv(random_tensor(2, 3, 5, 5)))[0, :, 0, 0], torch.arange(4.0))
