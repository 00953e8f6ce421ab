"""`torch.autocast` inside forward(): switched off it changes nothing, switched on it is refused. Gradients: test_gradients."""

from __future__ import annotations

import random

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import layermerge as lm
from agreement import differences, to_double
from layermerge.errors import TraceError
from oracles import relative_difference
from solutions import random_solution
from zoo_registry import conv


class Guarded(nn.Module):
    """A part that is to run in full precision, inside no_grad or not."""

    def __init__(self, *, enabled: bool = False, gradients: bool = True) -> None:
        super().__init__()
        self.a, self.b, self.norm, self.c = conv(3, 4), conv(4, 4), nn.BatchNorm2d(4), conv(4, 4)
        self.enabled, self.gradients = enabled, gradients

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.a(x))
        with torch.set_grad_enabled(self.gradients), torch.autocast("cpu", dtype=torch.bfloat16, enabled=self.enabled):
            y = F.relu_(self.norm(self.b(x.float())))
        return self.c(y.to(x.dtype))  # type: ignore[no-any-return]


def images(batch: int = 2) -> Tensor:
    return torch.randn(batch, 3, 9, 9, generator=torch.Generator().manual_seed(5))


def test_switched_off_it_is_as_if_it_were_not_there() -> None:
    torch.manual_seed(0)
    model = Guarded()
    traced = lm.trace(model, images())
    assert relative_difference(model(images(3)), traced.module(images(3))) <= 1e-6
    menu = lm.plan(traced)
    assert any(one.kept == ("a", "b", "c") for one in menu.candidates), "casts that change nothing are not in the way"
    for seed in range(4):
        rewritten = lm.rewrite(traced, random_solution(menu, random.Random(seed))).eval().double()
        assert max(differences(rewritten, lm.merge(rewritten), to_double(images())).values()) <= 1e-10


def test_inside_a_part_without_gradients() -> None:
    traced = lm.trace(Guarded(gradients=False), images())
    traced.module(images()).sum().backward()
    learns = {name.split(".")[0] for name, one in traced.module.named_parameters() if one.grad is not None}
    assert learns == {"c"}


def test_switched_on() -> None:
    with pytest.raises(
        TraceError, match=r"^forward\(\) switches on torch\.autocast\('cpu', torch\.bfloat16\); .* take it out of"
    ):
        lm.trace(Guarded(enabled=True), images())


def test_a_cast_that_changes_the_dtype_is_a_barrier() -> None:
    class Cast(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = conv(3, 4), conv(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            return self.b(self.a(x).half().float())  # type: ignore[no-any-return]

    assert {one.end - one.start for one in lm.plan(lm.trace(Cast(), images())).candidates} == {1}
