"""Networks of free size: merged equals rewritten at every size, odd ones included, and what was not rewritten is unchanged."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import torch
from torch import nn

import free_sizes
import layermerge as lm
from agreement import to_double, worst
from layermerge.models import import_torchvision, load_model, random_input
from layermerge.tables.branches import branch_maker, branches_of
from layermerge.tracing.trace import Trace
from solutions import random_solution, randomise

EXACT = 1e-10


@cache
def traced(name: str) -> Trace:
    return lm.trace(randomise(free_sizes.build(name), 3), free_sizes.image(), free_size=True)


def wide(module: Any) -> Any:
    return copy.deepcopy(module).double()


@pytest.mark.parametrize("name", free_sizes.NETWORKS)
@pytest.mark.parametrize("seed", range(3))
def test_merged_equals_rewritten_at_five_sizes(name: str, seed: int) -> None:
    trace = traced(name)
    net = lm.rewrite(trace, random_solution(lm.plan(trace), random.Random(seed))).eval().double()
    merged = lm.merge(net)
    assert merged.free_size
    with torch.no_grad():
        for high, wide_ in free_sizes.sizes(name):
            x = to_double(free_sizes.image(high, wide_))
            assert worst(net(x), merged(x)) <= EXACT, (high, wide_)


@pytest.mark.parametrize("name", free_sizes.NETWORKS)
def test_with_nothing_removed_it_is_the_model(name: str) -> None:
    model = randomise(free_sizes.build(name), 3)
    net = lm.merge(lm.rewrite(traced(name), []).double())
    with torch.no_grad():
        for high, wide_ in free_sizes.sizes(name):
            x = to_double(free_sizes.image(high, wide_))
            assert worst(wide(model)(x), net(x)) <= EXACT, (high, wide_)


def test_a_branch_is_cut_out_at_the_traced_size() -> None:
    """Tables hold for it: the sizes that its nodes compute with become the traced ones."""
    trace = traced("gated")
    (branch,) = branches_of(trace)
    assert branch.shapes == ((4, 16, 16),)
    cut: Any = branch_maker(trace, lambda: lm.merge(lm.rewrite(trace, [])))(branch)
    (x,) = branch.inputs(2).args
    network: Any = trace.module
    with torch.no_grad():
        inside = cut.before(x)
        y = torch.relu(network.first(inside))
        gate = torch.sigmoid(network.gate(y.mean((2, 3), keepdim=True)))
        assert worst(cut.after(inside + network.second(y * gate)), cut(x)) <= 1e-5


def _segmenter() -> nn.Module:
    made: nn.Module = import_torchvision().models.segmentation.lraspp_mobilenet_v3_large(weights_backbone=None)
    return made


REAL: dict[str, Callable[[], nn.Module]] = {
    "resnet18": lambda: load_model("timm:resnet18").module,
    "lraspp_mobilenet_v3_large": _segmenter,
    "tf_mobilenetv3_small_minimal_100": lambda: load_model("timm:tf_mobilenetv3_small_minimal_100").module,
}


@pytest.mark.slow
@pytest.mark.parametrize("name", REAL)
def test_published_networks(name: str) -> None:
    """The last pads five strides as TensorFlow does, whose nested formulas take torch minutes."""
    torch.manual_seed(1)
    model = randomise(REAL[name]().eval(), 3, random_input((3, 64, 64)))
    trace = lm.trace(model, random_input((3, 64, 64)), free_size=True)
    plan = lm.plan(trace)
    for seed in range(2):
        net = lm.rewrite(trace, random_solution(plan, random.Random(seed), max_weights=1_000_000)).eval().double()
        merged = lm.merge(net)
        with torch.no_grad():
            for high, wide_ in ((64, 64), (65, 97), (96, 33), (51, 80), (128, 111)):
                x = torch.randn(1, 3, high, wide_, dtype=torch.float64)
                assert worst(net(x), merged(x)) <= EXACT, (seed, high, wide_)
    whole = lm.merge(lm.rewrite(trace, []).double())
    x = torch.randn(1, 3, 65, 97, dtype=torch.float64)
    with torch.no_grad():
        assert worst(_plain(wide(model)(x)), _plain(whole(x))) <= EXACT


def _plain(output: Any) -> Any:
    return dict(output) if isinstance(output, dict) else output


def test_in_train_mode_the_rewritten_network_takes_any_size() -> None:
    net = lm.rewrite(traced("pyramid"), []).train()
    assert isinstance(net, nn.Module)
    sum(out.sum() for out in net(free_sizes.image(19, 23))).backward()
    assert all(parameter.grad is not None for parameter in net.parameters())
