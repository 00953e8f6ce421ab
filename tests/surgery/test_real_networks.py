"""Random solutions of published networks: merged equals rewritten, at odd and oblong sizes, features included."""

from __future__ import annotations

import copy
import random
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import nn

import layermerge as lm
import real_networks
from agreement import feature_differences, features, tensors, to_double
from solutions import random_solution, randomise

pytestmark = pytest.mark.filterwarnings("ignore:not part of the traced network")
EXACT = 1e-10
ROUNDED = 1e-5

NETWORKS = {
    "torchvision:resnet34": (51, 75),
    "torchvision:resnet50": (49, 65),
    "timm:mobilenetv2_100": (67, 93),
    "timm:efficientnet_lite0": (65, 43),
    "timm:tf_efficientnet_lite0": (63, 87),
    "timm:regnetx_002": (71, 53),
    "timm:resnext50_32x4d": (45, 61),
    "torchvision:vgg16_bn": (35, 45),
    "torchvision:densenet121": (37, 55),
    "torchvision:inception_v3": (97, 111),
    "timm:hrnet_w18_small": (64, 96),
    "timm:ghostnet_100": (57, 77),
    "timm:dla34": (64, 32),
    "diffusers:ddpm": (32, 32),
}
SOLUTIONS = 20
IN_FLOAT64 = 4
"""How many of a network's solutions are merged in float64 too, besides the check that merge itself makes there."""


@dataclass
class Row:
    """What the table at the end says about a network."""

    network: str
    size: tuple[int, int]
    solutions: int = 0
    exact: float = 0.0
    rounded: float = 0.0
    convs_before: int = 0
    convs_after: tuple[int, int] = (10**6, 0)

    def __str__(self) -> str:
        low, high = self.convs_after
        size = f"{self.size[0]}x{self.size[1]}"
        return (
            f"{self.network:<30}{size:>9}{self.solutions:>11}{self.exact:>12.1e}{self.rounded:>12.1e}"
            f"{self.convs_before:>9}{f'{low}..{high}':>10}"
        )


@pytest.fixture(scope="module")
def table(request: pytest.FixtureRequest) -> Iterator[list[Row]]:
    rows: list[Row] = []
    yield rows
    if not rows:
        return
    capture: Any = request.config.pluginmanager.getplugin("capturemanager")
    with capture.global_and_fixture_disabled() if capture else nullcontext():
        print("\n\nmerged against rewritten, worst max|a-b| / max|a| over outputs and features")
        print(
            f"{'network':<30}{'input':>9}{'solutions':>11}{'float64':>12}{'float32':>12}{'convs':>9}{'after':>10}",
            *rows,
            sep="\n",
        )


def build(name: str, size: tuple[int, int]) -> tuple[lm.Trace, Any]:
    """The network traced with realistic weights, and inputs for it."""
    model, inputs = real_networks.build(name, size)
    if name == "torchvision:vgg16_bn":
        model.classifier = nn.Linear(512 * 7 * 7, 10)  # its own holds no conv, and nine tenths of the weights
    randomise(model.eval(), 3, inputs(2))
    return lm.trace(model, inputs(2)), inputs(2)


def count_convs(module: nn.Module) -> int:
    return sum(isinstance(part, nn.Conv2d) for part in module.modules())


def check(name: str, size: tuple[int, int], solutions: int, in_float64: int) -> Row:
    traced, inputs = build(name, size)
    menu = lm.plan(traced)
    row = Row(name, size, convs_before=count_convs(lm.rewrite(traced, ())))
    for seed in range(solutions):
        solution = random_solution(menu, random.Random(seed))
        rewritten = lm.rewrite(traced, solution).eval()
        merged = lm.merge(rewritten)
        after = count_convs(merged)
        row.convs_after = (min(row.convs_after[0], after), max(row.convs_after[1], after))
        narrow = features(rewritten, inputs)
        found = feature_differences(rewritten, narrow, merged, features(merged, inputs))
        del merged
        wide = copy.deepcopy(rewritten).double()
        exact = features(wide, to_double(inputs))
        own = feature_differences(wide, exact, rewritten, narrow)
        for place, difference in found.items():
            assert difference <= max(ROUNDED, 10 * own[place]), (seed, place, difference, own[place])
        row.rounded = max(row.rounded, *found.values())
        if seed < in_float64:
            merged = lm.merge(wide)
            found = feature_differences(wide, exact, merged, features(merged, to_double(inputs)))
            assert max(found.values()) <= EXACT, (seed, found)
            row.exact = max(row.exact, *found.values())
        outputs = tensors(exact["output"])
        assert all(output.isfinite().all() and output.std() > 1e-3 * output.abs().max() for output in outputs)
        row.solutions += 1
    return row


@pytest.mark.slow
@pytest.mark.parametrize("name", NETWORKS)
def test_twenty_random_solutions(name: str, table: list[Row]) -> None:
    row = check(name, NETWORKS[name], SOLUTIONS, IN_FLOAT64)
    table.append(row)
    assert row.convs_after[0] < row.convs_before


@pytest.mark.parametrize("name", ["timm:mobilenetv2_100"])
def test_training_steps_reach_every_parameter(name: str) -> None:
    traced, inputs = build(name, (33, 45))
    net = lm.rewrite(traced, random_solution(lm.plan(traced), random.Random(5))).train()
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-3, momentum=0.9)
    before = {path: parameter.detach().clone() for path, parameter in net.named_parameters()}
    for _ in range(3):
        optimizer.zero_grad()
        (net(inputs) ** 2).mean().backward()
        optimizer.step()
        assert all(parameter.grad is not None for parameter in net.parameters())
    # A bias that a later norm subtracts again, with no activation between, has a gradient of zero: only kernels must move.
    kernels = {path: parameter for path, parameter in net.named_parameters() if parameter.dim() > 1}
    assert not [path for path, parameter in kernels.items() if torch.equal(before[path], parameter)]
    merged = lm.merge(net)
    net.eval()
    narrow = features(net, inputs)
    found = feature_differences(net, narrow, merged, features(merged, inputs))
    wide = copy.deepcopy(net).double()
    own = feature_differences(wide, features(wide, to_double(inputs)), net, narrow)
    assert all(difference <= max(ROUNDED, 10 * own[place]) for place, difference in found.items())
