"""Parts of forward() that run without gradients, and the check that every parameter learns what it would have learnt."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import layermerge as lm
from agreement import differences, to_double
from layermerge.errors import TraceError
from layermerge.tracing.gradients import compare_gradients
from layermerge.tracing.trace import Trace
from oracles import relative_difference
from solutions import random_solution
from zoo_registry import conv


class Net(nn.Module):
    """Four convs, in a way of the test's own."""

    def __init__(self, way: Callable[[Net, Tensor], Any]) -> None:
        super().__init__()
        self.a, self.b, self.c, self.d = conv(3, 4), conv(4, 4), conv(4, 4), conv(4, 4)
        self.norm = nn.BatchNorm2d(4)
        self.way = way

    def forward(self, x: Tensor) -> Any:
        return self.way(self, x)

    @torch.no_grad()
    def frozen(self, x: Tensor) -> Tensor:
        return F.relu_(self.norm(self.b(F.relu(self.a(x), inplace=True))))


def frozen_backbone(net: Net, x: Tensor) -> Tensor:
    with torch.no_grad():
        x = F.relu_(net.norm(net.b(F.relu_(net.a(x)))))
    return net.d(F.relu(net.c(x)))  # type: ignore[no-any-return]


def frozen_method(net: Net, x: Tensor) -> Tensor:
    return net.d(F.relu(net.c(net.frozen(x))))  # type: ignore[no-any-return]


def frozen_in_the_middle(net: Net, x: Tensor) -> Tensor:
    x = F.relu(net.a(x))
    with torch.no_grad():
        y = F.relu(net.b(x))
    return net.d(net.norm(net.c(x + y))) + y  # type: ignore[no-any-return]


def gradients_on_inside(net: Net, x: Tensor) -> Tensor:
    with torch.no_grad():
        x = F.relu(net.a(x))
        with torch.enable_grad():
            y = net.b(x)
        z = net.c(y)
    return net.norm(net.d(y + z))  # type: ignore[no-any-return]


def two_frozen_outputs_of_one_map(net: Net, x: Tensor) -> Tensor:
    with torch.no_grad():
        x = net.a(x)
        left, right = x[:, :2], x[:, 2:]
    return net.norm(net.d(torch.cat((net.b(x)[:, :2] + left, right), 1)) + net.c(x))  # type: ignore[no-any-return]


def detached(net: Net, x: Tensor) -> Tensor:
    x = F.relu(net.a(x))
    return net.norm(net.d(F.relu(net.b(x.detach()))) + net.c(x))  # type: ignore[no-any-return]


def straight_through(net: Net, x: Tensor) -> Tensor:
    x = net.norm(net.b(net.a(x)))
    x = x + (torch.round(x) - x).detach()
    return net.d(F.relu(net.c(x)))  # type: ignore[no-any-return]


def integers_without_gradients(net: Net, x: Tensor) -> tuple[Tensor, Tensor]:
    x = net.norm(net.d(F.relu(net.c(F.relu(net.b(net.a(x)))))))
    with torch.no_grad():
        best = x.mean((2, 3)).argmax(1)
    return x, best


WAYS = [
    frozen_backbone,
    frozen_method,
    frozen_in_the_middle,
    gradients_on_inside,
    two_frozen_outputs_of_one_map,
    detached,
    straight_through,
    integers_without_gradients,
]


def example(batch: int = 2) -> Tensor:
    return torch.randn(batch, 3, 9, 9, generator=torch.Generator().manual_seed(1))


@cache
def traced_network(way: Callable[[Net, Tensor], Any]) -> tuple[Net, Trace]:
    """In float32; what computes with them copies them."""
    torch.manual_seed(0)
    model = Net(way)
    return model, lm.trace(model, example())


def gradients(module: nn.Module, x: Tensor) -> dict[str, Tensor | None]:
    out = module(x)
    first = out[0] if isinstance(out, tuple) else out
    (first**3).sum().backward()
    return {name: parameter.grad for name, parameter in module.named_parameters()}


def by_name(way: Callable[..., Any]) -> str:
    return way.__name__


@pytest.mark.parametrize("train", [True, False])
@pytest.mark.parametrize("way", WAYS, ids=by_name)
def test_gradients_are_those_of_the_model(way: Callable[[Net, Tensor], Any], train: bool) -> None:
    model, traced = traced_network(way)
    model, lifted = copy.deepcopy(model), copy.deepcopy(traced.module)
    expected = gradients(model.double().train(train), example().double())
    actual = gradients(lifted.double().train(train), example().double())
    assert any(gradient is not None for gradient in expected.values())
    for name, gradient in expected.items():
        found = actual[name]
        assert (gradient is None) == (found is None), name
        assert gradient is None or (found is not None and relative_difference(gradient, found) <= 1e-10), name


@pytest.mark.parametrize("way", WAYS, ids=by_name)
def test_they_merge_exactly(way: Callable[[Net, Tensor], Any]) -> None:
    _, traced = traced_network(way)
    menu = lm.plan(traced)
    for seed in range(3):
        rewritten = lm.rewrite(traced, random_solution(menu, random.Random(seed))).eval().double()
        assert max(differences(rewritten, lm.merge(rewritten), to_double(example())).values()) <= 1e-10


def test_ranges_stay_on_one_side_of_a_frozen_part() -> None:
    """One conv in the place of both could not be half frozen."""
    torch.manual_seed(0)
    traced = lm.trace(Net(frozen_backbone), example())
    menu = lm.plan(traced)
    assert {(one.start, one.end) for one in menu.candidates if one.end - one.start > 1} == {(0, 2), (2, 4)}
    assert any("detach lies between" in one.reason for one in menu.rejections)
    both = [one for one in menu.candidates if one.kept in (("a", "b"), ("c", "d"))]
    found = gradients(lm.rewrite(traced, both), example())
    assert {name.split(".")[0] for name, gradient in found.items() if gradient is not None} == {"c", "d"}


def test_whole_network_without_gradients() -> None:
    @torch.no_grad()
    def way(net: Net, x: Tensor) -> Tensor:
        return net.b(F.relu(net.a(x)))  # type: ignore[no-any-return]

    model = Net(way)
    with pytest.warns(UserWarning, match="kept frozen under their names: c, d, norm"):
        lifted = lm.trace(model, example()).module
    assert not model(example()).requires_grad
    assert not lifted(example()).requires_grad


@pytest.mark.parametrize("around", [torch.no_grad, torch.inference_mode])
def test_traced_without_gradients_it_trains(around: Callable[[], Any]) -> None:
    model = Net(frozen_backbone)
    with around():
        traced = lm.trace(model, example())
    found = gradients(traced.module, example())
    assert {name.split(".")[0] for name, gradient in found.items() if gradient is not None} == {"c", "d"}
    assert all(parameter.grad is None for parameter in traced.module.a.parameters())  # type: ignore[union-attr]


def test_tracing_leaves_no_gradients_behind() -> None:
    model = Net(detached)
    lifted = lm.trace(model, example()).module
    assert all(parameter.grad is None for module in (model, lifted) for parameter in module.parameters())


def test_inference_mode_inside() -> None:
    """Such a model cannot be trained, so there are no gradients to compare."""

    def way(net: Net, x: Tensor) -> Tensor:
        with torch.inference_mode():
            x = net.a(x)
        return net.b(x)  # type: ignore[no-any-return]

    with pytest.warns(UserWarning, match="kept frozen"):
        traced = lm.trace(Net(way), example())
    assert len(traced.layers) == 2


# -- the check itself


class Backwards(torch.autograd.Function):
    """Hands its input through and scales the gradient, which a graph of operators does not show."""

    @staticmethod
    def forward(_ctx: Any, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(_ctx: Any, gradient: Tensor) -> Tensor:
        return gradient * 0.5


def test_a_gradient_that_differs_is_named() -> None:
    def way(net: Net, x: Tensor) -> Tensor:
        x = Backwards.apply(F.relu(net.b(net.a(x))))  # type: ignore[no-untyped-call]
        return net.norm(net.d(net.c(x)))  # type: ignore[no-any-return]

    with pytest.raises(
        TraceError, match=r"^the gradient of parameter 'a\.weight' differs by 1\.0e\+00 from the original's"
    ):
        lm.trace(Net(way), example())


def test_gradients_that_depend_on_the_mode() -> None:
    def way(net: Net, x: Tensor) -> Tensor:
        x = F.relu(net.b(net.a(x)))
        return net.norm(net.d(net.c(x.detach() if net.training else x)))  # type: ignore[no-any-return]

    with pytest.raises(TraceError, match=r"^the gradient of parameter 'a\.weight' should not be there in train mode"):
        lm.trace(Net(way), example())

    def other(net: Net, x: Tensor) -> Tensor:
        x = F.relu(net.b(net.a(x)))
        return net.norm(net.d(net.c(x if net.training else x.detach())))  # type: ignore[no-any-return]

    with pytest.raises(TraceError, match=r"^the gradient of parameter 'a\.weight' is missing in train mode"):
        lm.trace(Net(other), example())


def test_gradients_that_are_not_finite() -> None:
    modules = [nn.Linear(2, 1, bias=False) for _ in range(2)]
    x = torch.tensor([[1.0, 2.0]])
    finite, infinite = modules[0](x), modules[1](x * torch.tensor([1.0, torch.inf]))
    with pytest.raises(TraceError, match=r"^the gradient of parameter 'weight' is finite in other places"):
        compare_gradients(modules[0], modules[1], [(finite, infinite)], seed=0)
    pair = [modules[1](x * torch.tensor([1.0, torch.inf])) for _ in range(2)]
    compare_gradients(modules[1], modules[1], [(pair[0], pair[1])], seed=0)


def test_a_backward_pass_that_fails() -> None:
    x, module = torch.tensor([[1.0, 2.0]]), nn.Linear(2, 1)
    fine, used = module(x), module(x).exp()
    torch.autograd.grad(used.sum(), module.weight)
    with pytest.raises(
        TraceError, match=r"^the lifted model has no backward pass, the original does: Trying to backward"
    ):
        compare_gradients(module, module, [(fine, used)], seed=0)
    used = module(x).exp()
    torch.autograd.grad(used.sum(), module.weight)
    compare_gradients(module, module, [(used, fine)], seed=0)


def test_a_model_that_cannot_be_trained_is_traced() -> None:
    """Its in-place write spoils what its backward pass needs; the traced network writes to nothing."""

    def way(net: Net, x: Tensor) -> Tensor:
        x = torch.sigmoid(net.b(net.a(x)))
        y = x * 2
        x.mul_(3)
        return net.norm(net.d(net.c(x + y)))  # type: ignore[no-any-return]

    torch.manual_seed(0)
    model = Net(way)
    traced = lm.trace(model, example())
    with torch.no_grad():
        assert relative_difference(model.eval()(example()), traced.module.eval()(example())) <= 1e-6


def test_frozen_parameters_and_integer_outputs() -> None:
    def way(net: Net, x: Tensor) -> Tensor:
        return net.norm(net.d(net.c(F.relu(net.b(net.a(x)))))).argmax(1)  # type: ignore[no-any-return]

    model = Net(way)
    assert len(lm.trace(model, example()).layers) == 4
    model = Net(detached).requires_grad_(False)
    assert not any(parameter.requires_grad for parameter in lm.trace(model, example()).module.parameters())
