"""Residual branches that are not chains: numbered together, and dropped whole by one candidate."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import layermerge as lm
import zoo
from agreement import call, worst
from gated import Gated, GatedNetwork, gated_input
from layermerge.tracing.structure import SubgraphStep
from zoo_registry import conv, random_tensor

INPUTS = gated_input().double()


@pytest.fixture(scope="module")
def network() -> GatedNetwork:
    torch.manual_seed(3)
    return GatedNetwork().double().eval()


@pytest.fixture(scope="module")
def traced(network: GatedNetwork) -> lm.Trace:
    return lm.trace(network, INPUTS)


def _drop(menu: lm.Plan, prefix: str) -> lm.Candidate:
    (found,) = [
        one
        for one in menu.candidates
        if not one.kept
        and len(one.layers) > 2
        and all(name.startswith(prefix) for name in one.layers)
        and len(one.layers) == sum(layer.name.startswith(prefix) for layer in menu.layers)
    ]
    return found


def test_layers_of_a_branch_stand_together(traced: lm.Trace) -> None:
    names = [layer.name for layer in traced.layers]
    assert (names[0], names[-1]) == ("stem", "head")
    assert all(name.startswith("first.") for name in names[1:6])
    assert all(name.startswith("second.") for name in names[6:16])
    inner = [place for place, name in enumerate(names) if name.startswith("second.inner.")]
    assert inner == list(range(inner[0], inner[0] + 5))
    assert [block.name for block in traced.blocks] == ["first", "second", "second.inner"]
    assert all(isinstance(block.body[0], SubgraphStep) for block in traced.blocks)


@pytest.mark.parametrize("prefix", ["first.", "second.", "second.inner."])
def test_a_dropped_branch_leaves_its_shortcut(network: GatedNetwork, traced: lm.Trace, prefix: str) -> None:
    rewritten = lm.rewrite(traced, [_drop(lm.plan(traced), prefix)]).eval()
    by_hand = GatedNetwork().double().eval()
    by_hand.load_state_dict(network.state_dict())
    by_hand.get_submodule(prefix[:-1]).forward = lambda x: x
    expected = call(by_hand, INPUTS)
    assert worst(expected, call(rewritten, INPUTS)) == 0.0
    assert worst(expected, call(lm.merge(rewritten), INPUTS)) <= 1e-10
    assert not any(name.startswith(prefix) for name in rewritten.state_dict())


def test_ranges_inside_a_branch_stay_inside(traced: lm.Trace) -> None:
    menu = lm.plan(traced)
    inside = {one.layers for one in menu.candidates if one.layers[0].startswith("first.")}
    assert ("first.expand", "first.depth") in inside
    assert ("first.reduce", "first.grow") in inside
    crossing = [one for one in menu.rejections if menu.layers[one.start].name == "first.depth"]
    assert "mean" in crossing[0].reason


def test_pinned_layers_keep_their_branch(traced: lm.Trace) -> None:
    menu = lm.plan(traced, lm.Rules(pin=("second.inner.grow",)))
    dropped = {one.layers for one in menu.candidates if not one.kept and len(one.layers) > 2}
    assert {names[0].split(".")[0] for names in dropped} == {"first"}


def test_a_branch_that_others_read_cannot_go() -> None:
    class Tapped(Gated):
        def forward(self, x: Tensor) -> Tensor:
            y = self.branch(x)
            return torch.cat([x + y, y], 1)

    menu = lm.plan(lm.trace(Tapped(), random_tensor(2, 8, 8, 8)))
    assert all(one.kept or len(one.layers) == 1 for one in menu.candidates if one.layers[0] == "expand")


class Split(nn.Module):
    """A conv, then a branch whose first conv reads half of the channels."""

    def __init__(self) -> None:
        super().__init__()
        self.before, self.part, self.join, self.after = conv(3, 8), conv(4, 4), conv(8, 8, 1), conv(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.before(x))
        left, right = x.chunk(2, 1)
        left = self.part(left)
        x = x + self.join(F.relu(torch.cat((left, left + right), 1)))
        return self.after(F.relu(x))  # type: ignore[no-any-return]


def test_a_branch_that_begins_with_a_part_of_its_map() -> None:
    torch.manual_seed(0)
    model, x = Split().double().eval(), random_tensor(2, 3, 9, 9).double()
    traced = lm.trace(model, x)
    menu = lm.plan(traced)
    (whole,) = [one for one in menu.candidates if one.layers == ("part", "join")]
    assert not whole.kept
    rewritten = lm.rewrite(traced, [whole])
    with torch.no_grad():
        expected = model.after(F.relu(model.before(x)).relu())
        assert worst(expected, call(rewritten, x)) <= 1e-12
        assert worst(expected, call(lm.merge(rewritten), x)) <= 1e-10


@pytest.mark.parametrize("name", ["inverted", "time_shifted_block", "pre_activation"])
def test_every_branch_beside_an_identity_can_be_dropped(name: str) -> None:
    traced = zoo.traced(name)
    menu = lm.plan(traced)
    dropped = {(one.start, one.end) for one in menu.candidates if not one.kept}
    assert {(block.start, block.end) for block in traced.blocks if block.shortcut is None} <= dropped


def test_the_paper_drops_no_branches(traced: lm.Trace) -> None:
    assert all(one.kept for one in lm.plan(traced, lm.Rules.paper()).candidates if len(one.layers) > 1)
