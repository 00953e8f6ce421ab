"""Statistical norms that own no weights, or read those of another module, move with a range like any other."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import layermerge as lm
from agreement import differences, to_double
from solutions import random_solution
from zoo_registry import conv

NORMS: dict[str, Callable[[], nn.Module]] = {
    "instance": lambda: nn.InstanceNorm2d(4),
    "group": lambda: nn.GroupNorm(2, 4, affine=False),
    "layer": lambda: nn.LayerNorm([4, 9, 9], elementwise_affine=False),
    "batch": lambda: nn.BatchNorm2d(4, affine=False, track_running_stats=False),
    "batch with weights": lambda: nn.BatchNorm2d(4, track_running_stats=False),
}


class Functional(nn.Module):
    """GroupNorm with weights that the network itself owns, under names of their own."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = conv(3, 4), conv(4, 4), conv(4, 4, 1)
        self.gain, self.offset = nn.Parameter(torch.rand(2, 4) + 0.5), nn.Parameter(torch.randn(2, 4))

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(F.group_norm(self.a(x), 2, self.gain[0], self.offset[0]))
        x = F.relu(F.group_norm(self.b(x), 2, self.gain[1], self.offset[1]))
        return self.c(x)  # type: ignore[no-any-return]


def _network(name: str) -> nn.Module:
    if name == "functional":
        return Functional()
    norm = NORMS[name]
    return nn.Sequential(conv(3, 4), norm(), nn.ReLU(), conv(4, 4), norm(), nn.ReLU(), conv(4, 4, 1), norm())


@pytest.mark.parametrize("name", [*NORMS, "functional"])
def test_plan_rewrite_merge(name: str) -> None:
    torch.manual_seed(6)
    model, inputs = _network(name), torch.randn(2, 3, 9, 9)
    traced = lm.trace(model, inputs)
    assert list(traced.module.state_dict()) == list(model.state_dict())
    menu = lm.plan(traced)
    whole = [candidate for candidate in menu.candidates if (candidate.start, candidate.end) == (0, 3)]
    assert whole
    for seed, first in enumerate((whole[-1], None, None, None, None)):
        chosen = [first] if first else random_solution(menu, random.Random(seed))
        rewritten = lm.rewrite(traced, chosen)
        (rewritten.train()(inputs) ** 2).mean().backward()
        rewritten = rewritten.eval().double()
        merged = lm.merge(rewritten)
        assert max(differences(rewritten, merged, to_double(inputs)).values()) <= 1e-10


@pytest.mark.parametrize("name", NORMS)
def test_they_keep_the_users_names(name: str) -> None:
    traced = lm.trace(_network(name), torch.randn(2, 3, 9, 9))
    assert {type(traced.module.get_submodule(path)) for path in ("1", "4", "7")} == {type(NORMS[name]())}
