"""Small networks for what ranges may run into: every candidate of each, against the oracle that rewrites by hand."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import layermerge as lm
from layermerge.errors import SurgeryError
from network_parts import (
    Activation,
    Barrier,
    Concat,
    Conv,
    Dropout,
    Gate,
    Network,
    Norm,
    Number,
    Pad,
    Part,
    Path,
    Shift,
    StatNorm,
    Sum,
    Tap,
)
from traced_networks import TracedNetwork

MAP = (4, 8, 8)
ALL_ROUND = (1, 1, 1, 1)


def conv(name: str, ins: int = 4, outs: int = 4, kernel: int = 3, pad: int | None = None) -> Conv:
    side = kernel // 2 if pad is None else pad
    return Conv(name, ins, outs, (kernel, kernel), own=(side, side))


def norm(name: str) -> Norm:
    return Norm(name, 4, 1e-3)


def group_norm(name: str) -> StatNorm:
    return StatNorm(name, "group", MAP, 2)


RELU = Activation("relu", "relu")
TANH = Activation("tanh")
BODY: Path = (conv("b", 4, 6), RELU, conv("c", 6, 4))

NETWORKS: dict[str, tuple[Part, ...]] = {
    "dropout before the add of a body that cannot be fused": (
        conv("a"),
        Sum((), (norm("n"), RELU, *BODY, Dropout("d"))),
        conv("e"),
    ),
    "dropout behind a norm that moves": (
        Sum((), (conv("b"), group_norm("g"), RELU, conv("c"), Dropout("d"))),
        conv("e"),
    ),
    "padding before a norm": (
        conv("a"),
        RELU,
        Pad(ALL_ROUND),
        norm("n"),
        conv("b"),
        RELU,
        conv("c", pad=0),
    ),
    "padding before a block": (conv("a"), Pad((1, 0, 1, 1)), Sum((), (conv("b"), RELU, conv("c"))), conv("f", pad=0)),
    "padding inside a body": (
        Sum((), (conv("b"), RELU, Pad(ALL_ROUND), norm("n"), conv("c", pad=0), norm("m"))),
        conv("f"),
    ),
    "padding on both branches": (
        Sum((Pad(ALL_ROUND), norm("k")), (Pad(ALL_ROUND), norm("n"), conv("b"), RELU, conv("c"))),
        conv("f", pad=0),
    ),
    "shifts": (
        conv("a"),
        Shift("s", 4),
        TANH,
        Sum((), (Shift("t", 4), conv("b"), Shift("u", 4), RELU, conv("c"))),
        conv("e"),
    ),
    "statistical norms": (
        conv("a"),
        group_norm("g"),
        RELU,
        conv("b"),
        StatNorm("h", "instance", MAP),
        RELU,
        conv("c"),
        StatNorm("i", "layer", MAP),
        conv("d"),
    ),
    "three branches": (
        Sum((Sum((conv("a"), norm("k")), (conv("b", kernel=1), norm("l"))),), (norm("z"),)),
        RELU,
        conv("c"),
    ),
    "blocks in blocks": (
        conv("a"),
        Sum((), (Sum((), (conv("b"), RELU, conv("c"))), TANH, conv("d"))),
        Number("mul", 0.5),
        conv("e"),
    ),
    "a block that is a body": (conv("a"), Sum((norm("w"),), (Sum((), BODY), RELU)), conv("e")),
    "branches of several convs": (
        Sum((conv("a"), RELU, conv("b")), (conv("c"), norm("l"), RELU, conv("d"))),
        conv("e"),
    ),
    "a gate, a tap and a concat": (
        Sum((), (conv("a"), Gate((TANH,)), conv("b"))),
        Tap(),
        Concat(((conv("c"), RELU, conv("d")), ())),
        Barrier("cumsum"),
        conv("e", 8, 4),
    ),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_every_candidate_is_rewritten_as_by_hand(name: str) -> None:
    subject = TracedNetwork(Network(NETWORKS[name], MAP, seed=1))
    for candidate in subject.menu.candidates:
        subject.assert_exact([candidate])


def test_an_emptied_range_does_not_lose_the_padding_inside_it() -> None:
    subject = TracedNetwork(Network(NETWORKS["padding before a norm"], MAP, seed=1))
    both = ("a", "b")
    kept = [one.kept for one in subject.menu.candidates if one.layers == both]
    assert both in kept
    assert () not in kept
    with pytest.raises(SurgeryError, match="no conv would be left to take over the zero padding inside it"):
        lm.rewrite(subject.trace, [lm.Candidate(0, 2, both, (), None)])


class ReadByABranchAlone(nn.Module):
    """The conv `aside` is outside the residual branch, and read by it alone."""

    def __init__(self) -> None:
        super().__init__()
        self.aside, self.first, self.second, self.last = (nn.Conv2d(4, 4, 3, padding=1) for _ in range(4))

    def forward(self, x: Tensor, other: Tensor) -> Tensor:
        gate = torch.sigmoid(self.aside(other))
        return self.last(torch.relu(x + self.second(torch.relu(self.first(x)) * gate)))  # type: ignore[no-any-return]


def test_what_a_dropped_branch_alone_has_read_is_gone_with_it() -> None:
    torch.manual_seed(0)
    model = ReadByABranchAlone().double().eval()
    inputs = torch.randn(2, 4, 8, 8).double(), torch.randn(2, 4, 8, 8).double()
    traced = lm.trace(model, inputs)
    (dropped,) = [one for one in lm.plan(traced).candidates if one.layers == ("first", "second")]
    rewritten = lm.rewrite(traced, [dropped]).eval()
    for network in (rewritten, lm.merge(rewritten)):
        torch.testing.assert_close(network(*inputs), model.last(torch.relu(inputs[0])))
        assert {name.partition(".")[0] for name, _ in network.named_parameters()} == {"last"}


def test_a_network_without_parameters_left_keeps_its_dtype() -> None:
    model = nn.Sequential(nn.BatchNorm2d(4, affine=False), nn.Conv2d(4, 4, 3, padding=1)).double().eval()
    x = torch.randn(2, 4, 8, 8).double()
    traced = lm.trace(model, x)
    merged = lm.merge(lm.rewrite(traced, [lm.plan(traced)["0-1:identity"]]))
    assert not list(merged.parameters())
    assert torch.equal(merged(x), model[0](x))
