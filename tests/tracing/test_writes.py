"""In-place writes: through views, under no_grad, into inputs and buffers. The user's own model is what to compare with."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import cache

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import layermerge as lm
from layermerge.errors import TraceError
from layermerge.tracing.aliases import written_arguments
from layermerge.tracing.trace import Trace
from oracles import relative_difference
from zoo_registry import conv


def assigned(y: Tensor, _x: Tensor) -> Tensor:
    y[:, :4] = 0
    return y


def added_to_a_part(y: Tensor, x: Tensor) -> Tensor:
    y[:, :3] += x
    return y


def added_to_itself(y: Tensor, _x: Tensor) -> Tensor:
    y[:, 4:] += y[:, :4]
    return y


def masked(y: Tensor, _x: Tensor) -> Tensor:
    y[y > 0.5] = 3.0
    return y


def masked_fill(y: Tensor, x: Tensor) -> Tensor:
    y[:, 1:4].masked_fill_(x > 0, 2.0)
    return y


def copied_through_views_of_views(y: Tensor, x: Tensor) -> Tensor:
    y.transpose(1, 2)[:, 1:][..., ::2].select(2, 5).copy_(x[:, 0, 1:, ::2])
    return y


def filled_diagonal(y: Tensor, _x: Tensor) -> Tensor:
    torch.diagonal(y, dim1=2, dim2=3).fill_(0.5)
    return y


def a_view_from_before(y: Tensor, _x: Tensor) -> Tensor:
    before = y[:, 2:6]
    y.mul_(2.0)
    y[:, :4].add_(1.0)
    before[:, 0] = 0
    return y + before.mean(1, keepdim=True)


def a_view_that_may_copy(y: Tensor, _x: Tensor) -> Tensor:
    """The first reshape looks at the map, the second at a copy of it."""
    y.reshape(-1)[::3] = 0
    apart = y.permute(0, 2, 3, 1).reshape(y.shape[0], -1)
    apart[:, ::2] = 9
    return y + apart.mean()


def index_put(y: Tensor, x: Tensor) -> Tensor:
    y[:, [1, 5]] = x[0, 0]
    return y


def scattered(y: Tensor, x: Tensor) -> Tensor:
    y.index_add_(1, torch.tensor([0, 7, 2]), x)
    return y


def an_activation_of_a_part(y: Tensor, _x: Tensor) -> Tensor:
    y[:, 2:6].sub_(0.2).sigmoid_()
    return y


def written_with_out(y: Tensor, _x: Tensor) -> Tensor:
    with torch.no_grad():
        torch.add(y.detach(), 1.0, out=y.detach())
    return y


def reshaped_in_place(y: Tensor, _x: Tensor) -> Tensor:
    flat = y.flatten(2)
    flat.unsqueeze_(1).mul_(0.5)
    return y + flat.mean()


def without_gradients(y: Tensor, _x: Tensor) -> Tensor:
    """The gradient of y stays as if nothing had been written."""
    z = y * 1.5
    with torch.no_grad():
        z.clamp_(max=0.4)
        z[:, :2] *= 3
    return z


def through_a_detached_view(y: Tensor, _x: Tensor) -> Tensor:
    z = y * 1.5
    z.detach()[:, :2] = 0.125
    return z


def into_a_detached_tensor(y: Tensor, x: Tensor) -> Tensor:
    z = y.detach()
    z[:, :3] = y[:, 3:6] * x
    return z * 2


def into_a_new_tensor(y: Tensor, x: Tensor) -> Tensor:
    new = torch.zeros_like(y)
    new[:, :3], new[:, 3:] = x, y[:, 3:]
    return new


def into_the_input(y: Tensor, x: Tensor) -> Tensor:
    x = x.view_as(x)
    x[:, :2] += 1
    x.mul_(2)
    return y + x.mean(1, keepdim=True)


WRITES: list[Callable[[Tensor, Tensor], Tensor]] = [
    assigned,
    added_to_a_part,
    added_to_itself,
    masked,
    masked_fill,
    copied_through_views_of_views,
    filled_diagonal,
    a_view_from_before,
    a_view_that_may_copy,
    index_put,
    scattered,
    an_activation_of_a_part,
    written_with_out,
    reshaped_in_place,
    without_gradients,
    through_a_detached_view,
    into_a_detached_tensor,
    into_a_new_tensor,
    into_the_input,
]


class Written(nn.Module):
    """A write between the first conv and the two that could merge behind it."""

    def __init__(self, write: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.a, self.b, self.c = conv(3, 8), conv(8, 8), conv(8, 8)
        self.write = write

    def forward(self, x: Tensor) -> Tensor:
        y = self.write(F.elu(self.a(x.clone())), x)
        return self.c(F.relu(self.b(y)))  # type: ignore[no-any-return]


def example(batch: int = 2) -> Tensor:
    return torch.randn(batch, 3, 9, 9, generator=torch.Generator().manual_seed(3))


@cache
def written_network(write: Callable[[Tensor, Tensor], Tensor]) -> tuple[Written, Trace]:
    """In float32; what computes with them copies them."""
    torch.manual_seed(0)
    model = Written(write)
    return model, lm.trace(model, example())


def gradients(module: nn.Module, x: Tensor) -> dict[str, Tensor | None]:
    (module(x.clone()) ** 2).sum().backward()
    return {name: parameter.grad for name, parameter in module.named_parameters()}


@pytest.mark.parametrize("write", WRITES, ids=lambda write: write.__name__)
def test_outputs_and_gradients_are_those_of_the_model(write: Callable[[Tensor, Tensor], Tensor]) -> None:
    model, traced = written_network(write)
    model, lifted, x = copy.deepcopy(model).double(), copy.deepcopy(traced.module).double(), example(3).double()
    assert relative_difference(model(x.clone()), lifted(x.clone())) <= 1e-12
    expected, actual = gradients(model, x), gradients(lifted, x)
    for name, gradient in expected.items():
        found = actual[name]
        assert (gradient is None) == (found is None)
        assert gradient is None or (found is not None and relative_difference(gradient, found) <= 1e-12), name


@pytest.mark.parametrize("write", WRITES, ids=lambda write: write.__name__)
def test_no_map_is_written_to_any_more(write: Callable[[Tensor, Tensor], Tensor]) -> None:
    _, traced = written_network(write)
    assert not [node for node in traced.module.graph.nodes if written_arguments(node)]
    x = example()
    before = x.clone()
    traced.module(x)
    assert torch.equal(x, before)


@pytest.mark.parametrize("write", WRITES, ids=lambda write: write.__name__)
def test_padding_moves_to_the_written_map(write: Callable[[Tensor, Tensor], Tensor]) -> None:
    """The range behind the write, computed by hand: padded once, then two convs without padding."""
    model, traced = written_network(write)
    menu = lm.plan(traced)
    both = next(one for one in menu.candidates if one.kept == ("b", "c"))
    rewritten = lm.rewrite(traced, [both], add_activation=False).eval().double()
    model, x = copy.deepcopy(model).double(), example(3).double()
    with torch.no_grad():
        y = F.pad(write(F.elu(model.a(x)), x.clone()), (2, 2, 2, 2))
        expected = F.conv2d(F.conv2d(y, model.b.weight, model.b.bias), model.c.weight, model.c.bias)
        assert relative_difference(expected, rewritten(x.clone())) <= 1e-12
        assert relative_difference(expected, lm.merge(rewritten)(x.clone())) <= 1e-10


def test_no_range_crosses_a_write() -> None:
    _, traced = written_network(assigned)
    menu = lm.plan(traced)
    assert not [one for one in menu.candidates if one.start == 0 and one.end > 1]
    (reason,) = {one.reason for one in menu.rejections if one.start == 0}
    assert "in_place_write lies between" in reason


class Statistics(nn.Module):
    """Follows its input with a buffer, in eval mode too, and reads it under another name afterwards."""

    seen: Tensor
    calls: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.a, self.norm, self.b = conv(3, 4), nn.BatchNorm2d(4), conv(4, 3)
        self.register_buffer("seen", torch.zeros(2, 3))
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))

    def forward(self, x: Tensor) -> Tensor:
        before = self.seen[1]
        self.calls += 1
        with torch.no_grad():
            self.seen[1].mul_(0.9).add_(x.mean((0, 2, 3)), alpha=0.1)
        self.seen[0, 1:] = 3.0
        x = self.b(F.relu(self.norm(self.a(x))))
        return x * before[:, None, None] + self.seen.mean()


def test_buffers_are_written_to_as_before() -> None:
    torch.manual_seed(0)
    model = Statistics()
    traced = lm.trace(model, example())
    assert torch.equal(model.seen, torch.zeros(2, 3))
    assert [layer.name for layer in traced.layers] == ["a", "b"]
    assert any(one.start == 0 and one.end == 2 for one in lm.plan(traced).candidates), "the norm folds"
    lifted = traced.module
    for train in (False, True, False):
        model.train(train)
        lifted.train(train)
        for _ in range(2):
            assert relative_difference(model(example(3)), lifted(example(3))) <= 1e-6
    own = dict(lifted.named_buffers())
    assert int(own["calls"]) == int(model.calls) == 6
    assert relative_difference(model.seen, own["seen"]) <= 1e-6
    (lifted(example()) ** 2).sum().backward()
    (lifted(example()) ** 2).sum().backward()


def test_a_parameter_that_forward_writes_to() -> None:
    class Clipped(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = conv(3, 4)

        def forward(self, x: Tensor) -> Tensor:
            self.a.weight.detach().clamp_(-0.1, 0.1)
            return self.a(x)  # type: ignore[no-any-return]

    with pytest.raises(TraceError, match=r"^forward\(\) writes to parameter 'a.weight' with clamp, so its gradients"):
        lm.trace(Clipped(), example())


def test_several_tensors_at_once() -> None:
    def write(y: Tensor, _x: Tensor) -> Tensor:
        torch._foreach_mul_([y[:, :4], y[:, 4:]], 2.0)
        return y

    with pytest.raises(TraceError, match=r"^_foreach_mul_ writes to several tensors at once, which cannot be traced"):
        written_network(write)
