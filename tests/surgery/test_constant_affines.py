"""Constants and numbers that are added to a map or multiplied with it fold into convs, as BatchNorms do."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn

import layermerge as lm
from agreement import differences, to_double
from layermerge.models import import_torchvision
from layermerge.surgery.affines import affine_of
from layermerge.surgery.merge import merged_shell
from layermerge.tracing.operators import Role
from solutions import random_solution
from zoo_registry import conv

Affine = Callable[["Affines", Tensor], Tensor]
NORMS: dict[str, Affine] = {
    "x * gamma": lambda net, x: x * net.gamma,
    "gamma * x": lambda net, x: net.gamma * x,
    "x / gamma": lambda net, x: x / net.gamma,
    "x + beta": lambda net, x: x + net.beta,
    "beta + x": lambda net, x: net.beta + x,
    "x - beta": lambda net, x: x - net.beta,
    "beta - x": lambda net, x: net.beta - x,
    "rsub": lambda net, x: torch.rsub(x, net.beta),
    "x * one": lambda net, x: x * net.one,
    "x + scalar": lambda net, x: x + net.scalar,
    "x * gamma + beta": lambda net, x: x * net.gamma + net.beta,
    "batch_norm": lambda net, x: F.batch_norm(x, net.mean, net.mean.exp(), net.mean + 2, None, eps=1e-3),
}
SCALES: dict[str, Affine] = {
    "0 + x": lambda _, x: 0 + x,
    "x * 1.5": lambda _, x: x * 1.5,
    "x - 0.5": lambda _, x: x - 0.5,
    "0.5 - x": lambda _, x: 0.5 - x,
    "-x": lambda _, x: -x,
    "x / 4": lambda _, x: x / 4,
    "0.1 * (x + 2)": lambda _, x: 0.1 * (x + 2),
}


class Affines(nn.Module):
    """Three convs with the affine between them, the last two in a residual block."""

    gamma: Tensor
    beta: Tensor
    one: Tensor
    scalar: Tensor
    mean: Tensor

    def __init__(self, affine: Affine) -> None:
        super().__init__()
        self.a, self.b, self.c, self.affine = conv(3, 4), conv(4, 4), conv(4, 4, 1), affine
        self.gamma, self.beta = nn.Parameter(torch.rand(4, 1, 1) + 0.5), nn.Parameter(torch.randn(1, 4, 1, 1))
        self.one, self.scalar = nn.Parameter(torch.rand(1) + 0.5), nn.Parameter(torch.randn(()))
        self.register_buffer("mean", torch.randn(4))

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.affine(self, self.a(x)))
        y = F.relu(self.affine(self, self.b(x)))
        return x + self.affine(self, self.c(y))


def _trace(affine: Affine) -> lm.Trace:
    torch.manual_seed(4)
    return lm.trace(Affines(affine).eval(), torch.randn(2, 3, 9, 9))


@pytest.mark.filterwarnings("ignore:not part of the traced network")
@pytest.mark.parametrize("name", [*NORMS, *SCALES])
def test_an_affine_between_convs_folds_into_them(name: str) -> None:
    traced = _trace((NORMS | SCALES)[name])
    assert len(traced.blocks) == 1
    menu = lm.plan(traced)
    assert menu["0-3:5x5g1"].kept == ("a", "b", "c")  # the block fused with the conv before it
    inputs = traced.inputs.args[0]
    for seed in range(4):
        chosen = random_solution(menu, random.Random(seed)) if seed else [menu["0-3:5x5g1"]]
        rewritten = lm.rewrite(traced, chosen).eval().double()
        merged = lm.merge(rewritten)
        assert max(differences(rewritten, merged, to_double(inputs)).values()) <= 1e-10
        assert not [node for node in merged.graph.nodes if node.meta["role"] in (Role.NORM, Role.SCALE)]
        assert {key.rpartition(".")[0] for key in merged.state_dict()} <= {"a", "b", "c"}
        shell = merged_shell(lm.rewrite(traced, chosen))
        assert {name: tensor.shape for name, tensor in shell.state_dict().items()} == {
            name: tensor.shape for name, tensor in merged.state_dict().items()
        }


@pytest.mark.filterwarnings("ignore:not part of the traced network")
@pytest.mark.parametrize("name", ["x * gamma + beta", "0 + x"])
def test_a_norm_goes_with_the_conv_before_it_and_a_number_stays(name: str) -> None:
    traced = _trace((NORMS | SCALES)[name])
    rewritten = lm.rewrite(traced, [lm.plan(traced)["1-2:identity"]])
    before, after = (
        [node for node in module.graph.nodes if node.meta["role"] in (Role.NORM, Role.SCALE)]
        for module in (traced.module, rewritten)
    )
    assert len(after) == (len(before) - 2 if name in NORMS else len(before))
    assert set(rewritten.state_dict()) <= set(traced.module.state_dict())


@pytest.mark.filterwarnings("ignore:not part of the traced network")
@pytest.mark.parametrize("name", [*NORMS, *SCALES])
def test_scale_and_shift_are_those_of_the_operator(name: str) -> None:
    traced = _trace((NORMS | SCALES)[name])
    nodes = [node for node in traced.module.graph.nodes if node.meta["role"] in (Role.NORM, Role.SCALE)]
    for node in nodes:
        scale, shift = affine_of(traced.module, node)
        x = torch.randn(2, 4, 3, 3, dtype=torch.float64)
        run = _Node(copy.deepcopy(traced.module).double(), x)
        expected = run.value(node)
        assert torch.allclose(expected, x * scale.reshape(-1, 1, 1) + shift.reshape(-1, 1, 1), rtol=1e-6, atol=1e-6)


class _Node(fx.Interpreter):
    """Runs one node of a graph on a map of one's own."""

    def __init__(self, module: fx.GraphModule, x: Tensor) -> None:
        super().__init__(module)
        self.x = x

    def value(self, node: fx.Node) -> Tensor:
        def fetch(source: fx.Node) -> Any:
            if not source.meta.get("constant"):
                return self.x
            args, kwargs = fx.map_arg((source.args, source.kwargs), fetch)
            return getattr(self, source.op)(source.target, args, kwargs)

        args, kwargs = fx.map_arg((node.args, node.kwargs), fetch)
        result: Tensor = getattr(self, node.op)(node.target, args, kwargs)
        return result


def test_a_frozen_batch_norm_offers_what_a_batch_norm_offers() -> None:
    vision = import_torchvision()
    menus = []
    for kind in (nn.BatchNorm2d, vision.ops.FrozenBatchNorm2d):
        torch.manual_seed(0)
        block = vision.models.resnet.BasicBlock
        model = vision.models.ResNet(block, [1, 1, 1, 1], norm_layer=kind)
        menus.append(lm.plan(lm.trace(model, torch.randn(2, 3, 32, 32))))
    first, second = ({candidate.key for candidate in menu.candidates} for menu in menus)
    assert first == second
