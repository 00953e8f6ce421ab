"""Merges that lose nothing: what the plan calls free computes what the network computed, and nothing else does."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import layermerge as lm
import zoo
from agreement import call, to_double, worst
from layermerge.solving.solve import Objective, solve
from layermerge.tables.latency import LatencyTable
from layermerge.tables.table import Row, Table
from layermerge.tables.workload_clock import WHOLE
from layermerge.tables.workloads import workloads_of
from zoo_registry import conv, random_tensor

EXACT = 1e-12


class Branches(nn.Module):
    """Parallel convs with norms of their own on one map, as re-parameterised networks train them."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = conv(3, 8)
        self.big, self.small, self.flat = conv(8, 8, bias=False), conv(8, 8, 1, bias=False), conv(8, 8, 1)
        self.norms = nn.ModuleList(nn.BatchNorm2d(8) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.stem(x))
        summed = self.norms[0](self.big(x)) + self.norms[1](self.small(x)) + self.norms[2](x)
        return self.flat(torch.relu(summed))  # type: ignore[no-any-return]


class SmallestFirst(Branches):
    """The same sum from 0 and from its smallest kernel on, with a second large one: every partial sum is a block."""

    def __init__(self) -> None:
        super().__init__()
        self.other = conv(8, 8, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.stem(x))
        summed: Tensor | int = 0
        for part in (self.norms[2](x), self.norms[1](self.small(x)), self.norms[0](self.big(x)), self.other(x)):
            summed = summed + part
        return self.flat(torch.relu(summed))  # type: ignore[no-any-return,arg-type]


NETWORKS = {
    "linear bottleneck": nn.Sequential(
        conv(3, 8), nn.BatchNorm2d(8), conv(8, 4, 1), conv(4, 12, 1), nn.ReLU(), conv(12, 4)
    ),
    "padded after padded": nn.Sequential(conv(3, 8), conv(8, 8), nn.ReLU(), conv(8, 4, 1)),
    "strided, then pointwise": nn.Sequential(conv(3, 8, 3, 2), nn.BatchNorm2d(8), conv(8, 6, 1), nn.ReLU(), conv(6, 4)),
    "unpadded": nn.Sequential(nn.Conv2d(3, 8, 3), nn.Conv2d(8, 8, 3), nn.Dropout(0.1), nn.Conv2d(8, 8, 3, groups=8)),
    "padded by hand": nn.Sequential(nn.ZeroPad2d(1), nn.Conv2d(3, 8, 3), nn.ZeroPad2d(1), nn.Conv2d(8, 8, 3)),
    "parallel": Branches(),
    "parallel, the smallest first": SmallestFirst(),
}


def _kept_whole(menu: lm.Plan) -> list[lm.Candidate]:
    return [one for one in menu.candidates if one.kept == one.layers]


def _assert_free_is_exact(model: nn.Module, inputs: object) -> int:
    traced = lm.trace(model.double().eval(), inputs)
    expected = call(model, inputs)
    free = 0
    for candidate in _kept_whole(lm.plan(traced)):
        changed = worst(expected, call(lm.rewrite(traced, [candidate]).eval(), inputs))
        assert (changed <= EXACT) is not candidate.changes, f"{candidate.key} changes the output by {changed:.1e}"
        free += candidate.free
    return free


@pytest.mark.parametrize("name", NETWORKS)
def test_a_merge_is_free_just_where_it_changes_nothing(name: str) -> None:
    torch.manual_seed(1)
    model = NETWORKS[name]
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            assert module.running_mean is not None
            nn.init.normal_(module.running_mean)
            nn.init.normal_(module.bias)
    free = _assert_free_is_exact(model, random_tensor(2, 3, 9, 9).double())
    assert (
        free
        == {
            "linear bottleneck": 3,
            "padded after padded": 0,
            "strided, then pointwise": 1,
            "unpadded": 3,
            "padded by hand": 0,
            "parallel": 1,
            "parallel, the smallest first": 2,
        }[name]
    )


@pytest.mark.parametrize("name", ["plain", "basic", "bottleneck", "inverted", "rep_branches", "dilated", "asymmetric"])
def test_so_it_is_in_the_zoo(name: str) -> None:
    _assert_free_is_exact(zoo.build(name), to_double(zoo.ZOO[name].inputs(2)))


def test_in_train_mode_too_with_the_same_gradients() -> None:
    torch.manual_seed(2)
    model, inputs = Branches().double(), random_tensor(4, 3, 9, 9).double()
    traced = lm.trace(model, inputs)
    (fused,) = [one for one in lm.plan(traced).candidates if one.free]
    rewritten = lm.rewrite(traced, [fused])
    for network in (model, rewritten):
        network.train().zero_grad()
        network(inputs).square().sum().backward()
    found = dict(rewritten.named_parameters())
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None
        torch.testing.assert_close(found[name].grad, parameter.grad, rtol=1e-9, atol=1e-9)
    for name, buffer in model.named_buffers():
        torch.testing.assert_close(rewritten.get_buffer(name), buffer, rtol=1e-12, atol=1e-12)


def test_the_papers_rules_measure_them_like_others() -> None:
    traced = lm.trace(Branches(), random_tensor(2, 3, 9, 9))
    assert not any(candidate.free for candidate in lm.plan(traced, lm.Rules.paper()).candidates)


@pytest.mark.parametrize("objective", ["exp", "delta"])
def test_latency_alone_decides(objective: Objective) -> None:
    """Every conv takes a millisecond. Fused, the branches save one and score the same, so no budget keeps them apart."""
    traced = lm.trace(Branches(), random_tensor(2, 3, 9, 9))
    menu = lm.plan(traced)
    workloads = workloads_of(traced, menu)
    convs = {workload.key for workload in workloads.values() if workload}
    rows = [Row(key=WHOLE, value=5.0), *(Row(key=key, value=1.0) for key in convs)]
    scores = {one.key: -1.0 for one in menu.candidates if one.changes}
    frontier = solve(menu, LatencyTable(menu, workloads, Table({}, rows)), scores, objective=objective)
    (free,) = [one for one in menu.candidates if one.free]
    assert frontier.at("100%").latency_ms == frontier.original_ms - 1.0
    assert free in frontier.at("100%").candidates
