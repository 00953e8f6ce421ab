"""Tensors that a module holds as plain attributes, in lists or dicts, or writes into its forward()."""

from __future__ import annotations

import random

import pytest
import torch
from torch import Tensor, nn

import layermerge as lm
from agreement import differences, to_double
from layermerge.errors import TraceError
from oracles import relative_difference
from solutions import random_solution


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(4, 4, 3, padding=1)
        self.scale = torch.rand(4, 1, 1) + 0.5
        self.shifts = [torch.randn(4, 1, 1), torch.randn(4, 1, 1)]
        self.by_name = {"last": torch.randn(4, 1, 1)}

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv(x) * self.scale + self.shifts[0]
        return torch.relu(x) + self.shifts[1] * self.by_name["last"] + torch.tensor([1.0, 2.0, 3.0, 4.0])[:, None, None]


class Shifted(nn.Module):
    """Becomes an activation as a whole, but for its tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.shift = torch.randn(4, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(x) + self.shift


class Net(nn.Module):
    """One of its modules has the name that the tensor of another would get."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.inner = nn.Conv2d(3, 4, 3, padding=1), Scaled()
        self.inner_scale, self.shifted = nn.Conv2d(4, 4, 3, padding=1), Shifted()
        self.last = nn.Conv2d(4, 4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.shifted(self.inner_scale(self.inner(self.first(x)))))  # type: ignore[no-any-return]


def test_they_are_part_of_the_network_but_not_of_its_state() -> None:
    torch.manual_seed(0)
    model, x = Net(), torch.randn(2, 3, 9, 9)
    traced = lm.trace(model, x)
    assert list(traced.module.state_dict()) == list(model.state_dict())
    traced.module.load_state_dict(model.state_dict())
    assert relative_difference(model(x), traced.module(x)) <= 1e-6
    assert len(lm.trace(traced.module, x).layers) == len(traced.layers) == 4


def test_ranges_with_them_merge() -> None:
    torch.manual_seed(0)
    x = torch.randn(2, 3, 9, 9)
    traced = lm.trace(Net().eval(), x)
    menu = lm.plan(traced)
    assert any(set(candidate.kept) == {"first", "inner.conv"} for candidate in menu.candidates)
    for seed in range(4):
        rewritten = lm.rewrite(traced, random_solution(menu, random.Random(seed))).eval().double()
        assert max(differences(rewritten, lm.merge(rewritten), to_double(x)).values()) <= 1e-10


class Anchored(nn.Module):
    """Keeps a grid for the size it saw last."""

    grid = torch.empty(0)
    size: torch.Size | None = None

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv(x)
        if self.size != x.shape[-2:]:
            self.size = x.shape[-2:]
            self.grid = torch.arange(self.size.numel()).view(self.size).to(x)
        return x + self.grid


def test_a_tensor_that_forward_itself_sets() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(Anchored(), nn.ReLU(), nn.Conv2d(4, 2, 1))
    traced = lm.trace(model, torch.randn(1, 3, 8, 8))
    assert isinstance(model[0], Anchored)
    assert model[0].size is None, "tracing runs copies, never the user's model"
    x = torch.randn(3, 3, 8, 8)
    assert relative_difference(model(x), traced.module(x)) <= 1e-6


class Remembering(nn.Module):
    """Adds the mean of what it saw in the call before."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.seen = nn.Conv2d(3, 4, 3), torch.zeros(())

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv(x)
        before, self.seen = self.seen, x.mean()
        return x + before


def test_a_tensor_that_one_call_leaves_to_the_next() -> None:
    """A graph of operators has no memory but buffers."""
    with pytest.raises(
        TraceError, match=r"differs from the original by .* in eval mode .* an earlier call left behind"
    ):
        lm.trace(nn.Sequential(Remembering(), nn.ReLU(), nn.Conv2d(4, 2, 1)), torch.randn(2, 3, 8, 8))


class Caching(nn.Module):
    """Computes its bias again in train mode, once in eval mode."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.bias = nn.Conv2d(3, 4, 3), nn.Parameter(torch.randn(2, 4))
        self.cache: dict[str, Tensor] = {}

    def train(self, mode: bool = True) -> Caching:
        super().train(mode)
        if mode:
            self.cache = {}
        return self

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            return self.conv(x) + self.bias.sum(0)[:, None, None]  # type: ignore[no-any-return]
        if "bias" not in self.cache:
            self.cache["bias"] = self.bias.sum(0)[:, None, None]
        return self.conv(x) + self.cache["bias"]  # type: ignore[no-any-return]


@pytest.mark.parametrize("called", [False, True])
def test_what_eval_mode_keeps_is_no_constant(called: bool) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(Caching(), nn.ReLU(), nn.Conv2d(4, 2, 1)).eval()
    x = torch.randn(2, 3, 8, 8)
    if called:
        model(x)
    lifted = lm.trace(model, x).module
    lifted(x).sum().backward()
    gradient = lifted.get_parameter("0.bias").grad
    assert gradient is not None
    assert gradient.any()
