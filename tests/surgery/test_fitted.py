"""Condensed regions: one conv, perhaps with a norm, in place of layers, computes what it is given and merges exactly."""

from __future__ import annotations

import copy
import random

import pytest
import torch
from torch import nn

import layermerge as lm
import zoo
from layermerge.surgery.fitted import condense
from layermerge.surgery.regions import region_kernel
from layermerge.surgery.sites import find_site
from layermerge.tracing.operators import Role
from solutions import random_solution
from zoo_registry import random_tensor


@pytest.mark.parametrize(
    "name", ["plain", "inverted", "asymmetric", "even_same_residual", "time_shifted_block", "dilated"]
)
def test_a_condensed_region_is_a_conv_and_perhaps_a_norm_and_merges_to_its_own_weights(name: str) -> None:
    traced = zoo.traced(name)
    net = lm.rewrite(traced, random_solution(lm.plan(traced), random.Random(5))).eval()
    normed = any(isinstance(part, nn.BatchNorm2d) for part in traced.module.modules())
    generator = torch.Generator().manual_seed(0)
    for number in range(len(net.surgery.regions)):
        before = region_kernel(net, number)
        modules = condense(net, number, before)
        with torch.no_grad():
            for part in (modules.conv, *modules.carriers.values()):
                part.weight.copy_(torch.randn(part.weight.shape, generator=generator) / part.weight[0].numel() ** 0.5)
        site, after = find_site(net.graph, number), region_kernel(net, number)
        assert after.spec == before.spec
        assert after.shifts.keys() == before.shifts.keys() == site.shifts.keys()
        roles = [node.meta["role"] for node in site.members if node.meta["role"] not in (Role.PAD, Role.SHIFT)]
        convs = [Role.CONV] * (1 + len(before.shifts))
        assert roles in ([[*convs, Role.NORM], [Role.CONV]] if normed else [convs])
    merged = lm.merge(copy.deepcopy(net))  # compares every region with its kernel, and the whole
    assert sum(isinstance(part, nn.BatchNorm2d) for part in merged.modules()) == 0


def test_a_region_that_is_conv_and_norm_keeps_its_modules() -> None:
    conv, norm = nn.Conv2d(3, 4, 3, bias=False), nn.BatchNorm2d(4)
    traced = lm.trace(nn.Sequential(conv, norm, nn.ReLU(), nn.Conv2d(4, 4, 1)).eval(), random_tensor(2, 3, 8, 8))
    net = lm.rewrite(traced, [])
    keys = list(net.state_dict())
    for number, name in enumerate(["0", "3"]):
        assert condense(net, number, region_kernel(net, number)).conv is net.get_submodule(name)
    assert list(net.state_dict()) == keys


@pytest.mark.parametrize(("behind", "holds_shift"), [(nn.BatchNorm2d(4), "0_norm.bias"), (nn.ReLU(), "0.bias")])
def test_a_conv_without_bias_and_norm_gets_what_its_network_has_for_its_shift(
    behind: nn.Module, holds_shift: str
) -> None:
    convs = nn.Conv2d(3, 4, 3, bias=False), nn.ReLU(), nn.Conv2d(4, 4, 3)
    traced = lm.trace(nn.Sequential(*convs, behind).eval(), random_tensor(2, 3, 8, 8))
    net = lm.rewrite(traced, [])
    keys = set(net.state_dict())
    condense(net, 0, region_kernel(net, 0))
    new = set(net.state_dict()) - keys
    assert holds_shift in new
    assert any("norm" in key for key in new) == isinstance(behind, nn.BatchNorm2d)
