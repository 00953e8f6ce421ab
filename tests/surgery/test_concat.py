"""Ranges end at concatenations and begin behind them; a map that is named twice after removals is read once."""

from __future__ import annotations

import random

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn

import layermerge as lm
from agreement import differences, to_double, worst
from layermerge.surgery.merge import merged_shell
from solutions import random_solution
from zoo_registry import conv


class Split(nn.Module):
    """Half of a map, the other half, and that through two residual blocks, one after another: all of it concatenated."""

    def __init__(self, groups: int = 1) -> None:
        super().__init__()
        self.stem, self.a, self.b, self.c, self.d = conv(3, 4), conv(4, 4), conv(4, 4), conv(4, 4), conv(4, 4)
        self.after, self.last = conv(12, 4, groups=groups), conv(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = F.silu(self.stem(x))
        y = x + self.b(F.silu(self.a(x)))
        z = y + self.d(F.silu(self.c(y)))
        return self.last(F.silu(self.after(torch.cat([x, y, z], 1))))  # type: ignore[no-any-return]


class Dense(nn.Module):
    """Each layer reads everything before it."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.last = conv(3, 4), conv(12, 4, 1)
        self.narrow1, self.wide1 = conv(4, 4, 1), conv(4, 4)
        self.narrow2, self.wide2 = conv(8, 4, 1), conv(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        x = torch.cat([x, self.wide1(F.relu(self.narrow1(F.relu(x))))], 1)
        x = torch.cat([x, self.wide2(F.relu(self.narrow2(F.relu(x))))], -3)
        return self.last(F.relu(x))  # type: ignore[no-any-return]


def _trace(model: nn.Module) -> lm.Trace:
    return lm.trace(model, torch.randn(2, 3, 9, 9))


def _inputs_of_concat(module: fx.GraphModule) -> list[int]:
    return [len(node.args[0]) for node in module.graph.nodes if node.meta.get("operator") == "cat"]


@pytest.mark.parametrize("kind", [Split, Dense])
def test_random_solutions_are_exact(kind: type[nn.Module]) -> None:
    torch.manual_seed(1)
    traced = _trace(kind())
    menu, inputs = lm.plan(traced), traced.inputs.args[0]
    for seed in range(8):
        solution = random_solution(menu, random.Random(seed))
        rewritten = lm.rewrite(traced, solution).eval().double()
        merged = lm.merge(rewritten)
        assert max(differences(rewritten, merged, to_double(inputs)).values()) <= 1e-10
        shell = merged_shell(lm.rewrite(traced, solution))
        shell.load_state_dict(merged.state_dict(), assign=True)
        assert worst(merged(to_double(inputs)), shell(to_double(inputs))) <= 1e-10


def test_a_range_ends_at_a_concatenation_and_begins_behind_one() -> None:
    torch.manual_seed(1)
    traced = _trace(Dense())
    ranges = {candidate.layers for candidate in lm.plan(traced).candidates}
    assert {("narrow1", "wide1"), ("narrow2", "wide2")} <= ranges
    assert not [layers for layers in ranges if "stem" in layers and len(layers) > 1]
    split = {candidate.layers for candidate in lm.plan(_trace(Split())).candidates}
    assert ("after", "last") in split


@pytest.mark.parametrize(("removed", "left"), [([], 3), ([("c", "d")], 2), ([("a", "b"), ("c", "d")], 1)])
def test_a_map_that_is_named_twice_is_read_once(removed: list[tuple[str, ...]], left: int) -> None:
    torch.manual_seed(1)
    traced = _trace(Split())
    gone = [candidate for candidate in lm.plan(traced).candidates if candidate.layers in removed and not candidate.kept]
    rewritten = lm.rewrite(traced, gone).eval().double()
    merged = lm.merge(rewritten)
    assert _inputs_of_concat(rewritten) == [3]
    assert _inputs_of_concat(merged) == ([left] if left > 1 else [])
    after = merged.get_submodule("after")
    assert isinstance(after, nn.Conv2d)
    assert after.in_channels == after.weight.shape[1] == 4 * left
    x = to_double(traced.inputs.args[0])
    assert max(differences(rewritten, merged, x).values()) <= 1e-10


def test_a_grouped_conv_keeps_reading_it_twice() -> None:
    torch.manual_seed(1)
    traced = _trace(Split(groups=2))
    (gone,) = [one for one in lm.plan(traced).candidates if one.layers == ("c", "d") and not one.kept]
    assert _inputs_of_concat(lm.merge(lm.rewrite(traced, [gone]))) == [3]
