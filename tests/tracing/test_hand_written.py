"""Activations written by hand are activations: of one map, whatever the formula, and the user's own arithmetic."""

from __future__ import annotations

import copy
import math
import pickle
import random
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import layermerge as lm
from agreement import differences, to_double, worst
from layermerge.tables.workloads import workloads_of
from layermerge.tracing.operators import Role
from solutions import random_solution
from zoo_registry import conv

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "swish": lambda x: x * torch.sigmoid(x),
    "swish of a module": lambda x: nn.Sigmoid()(x) * x,
    "mish": lambda x: x * torch.tanh(F.softplus(x)),
    "hard swish": lambda x: x * F.relu6(x + 3) / 6,
    "hard swish, scaled first": lambda x: x * (F.relu6(x + 3.0) / 6.0),
    "softsign": lambda x: x / (1 + x.abs()),
    "softsign of torch": F.softsign,
    "tanhshrink": lambda x: x - torch.tanh(x),
    "gelu": lambda x: 0.5 * x * (1 + torch.erf(x / math.sqrt(2))),
    "gelu by tanh": lambda x: 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    "square": lambda x: x * x,
    "leaky": lambda x: torch.maximum(x, 0.1 * x),
    "sum": lambda x: x + F.relu(x),
    "twice": lambda x: F.relu(x) * torch.sigmoid(F.relu(x)),
    "clamp": lambda x: x.clamp(0, 6),
    "clamp_max": lambda x: torch.clamp_max(x, 1.0),
    "abs": torch.abs,
    "power": lambda x: x**2,
    "threshold": lambda x: F.threshold(x, 0.1, 0.0),
    "softshrink": F.softshrink,
    "hardshrink": F.hardshrink,
    "logsigmoid": F.logsigmoid,
    "choice": lambda x: torch.where(x > 0, x, torch.expm1(x)),
    "choice of a number": lambda x: torch.where(x < 0.5, x, 0.5),
    "isru": lambda x: x * torch.rsqrt(1 + x * x),
    "in place": lambda x: x.mul_(x.sigmoid()),
}


class Net(nn.Module):
    def __init__(self, function: Callable[..., Tensor]) -> None:
        super().__init__()
        self.a, self.b, self.c, self.function = conv(3, 4), conv(4, 4), conv(4, 4), function

    def forward(self, x: Tensor) -> Tensor:
        return self.c(self.function(self.b(self.function(self.a(x)))))  # type: ignore[no-any-return]


def _trace(function: Callable[..., Tensor]) -> tuple[nn.Module, lm.Trace]:
    torch.manual_seed(3)
    model = Net(function)
    return model, lm.trace(model, torch.randn(2, 3, 9, 9))


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_it_is_one_activation_that_merges_away(name: str) -> None:
    _, traced = _trace(ACTIVATIONS[name])
    between = [operation for operation in traced.structure.operations.values() if operation.role is not Role.CONV]
    activations = [operation for operation in between if operation.role is Role.ACTIVATION]
    assert len(activations) == 2
    assert all(operation.module for operation in activations)
    assert not [operation for operation in between if operation.role in (Role.SCALE, Role.ADD)]
    inputs, menu = traced.inputs.args[0], lm.plan(traced)
    assert menu["0-3:7x7g1"].kept == ("a", "b", "c")
    assert len(workloads_of(traced, menu)) == len(menu.candidates)
    for seed in range(2):
        rewritten = lm.rewrite(traced, random_solution(menu, random.Random(seed))).eval().double()
        assert max(differences(rewritten, lm.merge(rewritten), to_double(inputs)).values()) <= 1e-10


@pytest.mark.parametrize("name", ["swish", "hard swish", "clamp", "gelu by tanh"])
def test_values_and_gradients_are_the_users(name: str) -> None:
    model, traced = _trace(ACTIVATIONS[name])
    inputs = traced.inputs.args[0]
    lifted = copy.deepcopy(traced.module)
    assert worst(model(inputs), lifted(inputs)) <= 1e-6
    for module in (model, lifted):
        (module(inputs) ** 2).mean().backward()
    for (path, parameter), other in zip(model.named_parameters(), lifted.parameters(), strict=True):
        assert worst(parameter.grad, other.grad) <= 1e-6, path


@pytest.mark.filterwarnings("ignore:.*LeafSpec.* is deprecated:FutureWarning")
def test_it_survives_being_sent_and_comes_back_where_a_range_lost_it() -> None:
    _, traced = _trace(ACTIVATIONS["swish"])
    sent = pickle.loads(pickle.dumps(traced))
    names = [
        operation.module for operation in traced.structure.operations.values() if operation.role is Role.ACTIVATION
    ]
    assert names == ["activation", "activation_1"]
    menu = lm.plan(sent)
    for kept, activations in (("0-2:5x5g1", 1), ("0-3:7x7g1", 0)):
        rewritten = lm.rewrite(sent, [menu[kept]])
        called = [node for node in rewritten.graph.nodes if str(node.target) in names]
        assert len(called) == activations


def test_a_module_of_the_user_keeps_its_name() -> None:
    class Swish(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x * x.sigmoid()

    model = nn.Sequential(conv(3, 4), Swish(), conv(4, 4), nn.Softsign(), conv(4, 4))
    traced = lm.trace(model, torch.randn(2, 3, 8, 8))
    operations = traced.structure.operations.values()
    assert [operation.module for operation in operations if operation.role is Role.ACTIVATION] == ["1", "3"]


BARRIERS: dict[str, Callable[[Tensor], Tensor]] = {
    "linear": lambda x: x + 2 * x,
    "over space": lambda x: x * torch.softmax(x, 1),
    "of a pooled map": lambda x: x * torch.sigmoid(x.mean((2, 3), keepdim=True)),
    "of a shifted map": lambda x: x * torch.sigmoid(x.roll(1, -1)),
    "tensor bounds": lambda x: torch.clamp(x, x.mean() - 1, x.mean() + 1),
}


@pytest.mark.parametrize("name", BARRIERS)
def test_what_is_not_an_element_wise_bend_of_one_map_is_a_barrier(name: str) -> None:
    _, traced = _trace(BARRIERS[name])
    assert len(traced.structure.chains) == 3


def test_a_part_that_is_read_elsewhere_stays_apart() -> None:
    class Gated(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = conv(3, 4), conv(4, 4)

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            x = self.a(x)
            gate = torch.sigmoid(x)
            return self.b(x * gate), gate

    traced = lm.trace(Gated(), torch.randn(2, 3, 8, 8))
    assert len(traced.structure.chains) == 2
