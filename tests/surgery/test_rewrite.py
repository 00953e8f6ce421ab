"""What rewrite makes of a network, against the same computation written out by hand in float64."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import layermerge as lm
import zoo
from agreement import call, to_double, worst
from layermerge.surgery.rewrite import RewrittenModule
from oracles import pad
from zoo_blocks import Basic
from zoo_registry import conv

EXACT = 1e-12


class Network:
    """A zoo network in float64 and eval mode, its parts by name, and rewritten forms of it."""

    def __init__(self, name: str, model: nn.Module | None = None) -> None:
        self.model = (model or zoo.build(name)).double().eval()
        self.inputs = to_double(zoo.ZOO[name].inputs(2))
        self.traced = lm.trace(self.model, self.inputs)
        self.menu = lm.plan(self.traced)

    def __getitem__(self, path: str) -> Any:
        return self.model.get_submodule(path)

    def candidate(self, start: int, end: int, *kept: str) -> lm.Candidate:
        (found,) = [
            candidate
            for candidate in self.menu.candidates
            if (candidate.start, candidate.end, candidate.kept) == (start, end, kept)
        ]
        return found

    def rewritten(self, *candidates: lm.Candidate, **options: bool) -> RewrittenModule:
        return lm.rewrite(self.traced, candidates, **options).eval()

    def valid(self, path: str, x: Tensor) -> Tensor:
        """The conv without its padding."""
        part = self[path]
        return F.conv2d(x, part.weight, part.bias, part.stride, 0, part.dilation, part.groups)

    def norm(self, path: str, x: Tensor) -> Tensor:
        part = self[path]
        return F.batch_norm(x, part.running_mean, part.running_var, part.weight, part.bias, eps=part.eps)


def all_round(pixels: int) -> tuple[int, int, int, int]:
    return pixels, pixels, pixels, pixels


def assert_same(net: Any, inputs: Any, expected: Tensor) -> None:
    with torch.no_grad():
        assert worst(expected, call(net, inputs)) <= EXACT


def activations(module: Any) -> list[str]:
    kinds = (nn.ReLU, nn.ReLU6, nn.SiLU, nn.Hardswish)
    parts = dict(module.named_modules())
    nodes = [node for node in module.graph.nodes if node.op == "call_module"]
    return [node.target for node in nodes if isinstance(parts[node.target], kinds)]


# -- plain chains


@pytest.fixture(scope="module")
def plain() -> Network:
    return Network("plain")


def rest_of_plain(net: Network, x: Tensor) -> Tensor:
    x = F.relu(net["6"](F.relu(x)))
    return net["9"](x.flatten(1))  # type: ignore[no-any-return]


def test_all_kept_padding_moves_to_the_range_and_the_inner_activation_goes(plain: Network) -> None:
    net = plain.rewritten(plain.candidate(0, 2, "0", "3"))
    x = pad(plain.inputs, all_round(2))
    x = plain.norm("4", plain.valid("3", plain.norm("1", plain.valid("0", x))))
    assert_same(net, plain.inputs, rest_of_plain(plain, x))
    assert activations(net) == ["5", "7"]


def test_a_removed_conv_goes_with_its_norm(plain: Network) -> None:
    net = plain.rewritten(plain.candidate(1, 2))
    x = F.relu(plain["1"](plain["0"](plain.inputs)))
    assert_same(net, plain.inputs, rest_of_plain(plain, x))
    assert not {"3", "4"} & {path for path, _ in net.named_modules()}


def test_a_conv_removed_inside_a_range(plain: Network) -> None:
    """The norm behind the range belongs to the removed conv, the one inside it to the kept conv."""
    net = plain.rewritten(plain.candidate(0, 2, "0"))
    assert_same(net, plain.inputs, rest_of_plain(plain, plain["1"](plain["0"](plain.inputs))))
    assert activations(net) == ["5", "7"]
    assert not {"2", "3", "4"} & {path for path, _ in net.named_modules()}


def test_three_convs_as_one(plain: Network) -> None:
    net = plain.rewritten(plain.candidate(0, 3, "0", "3", "6"))
    x = pad(plain.inputs, all_round(3))
    x = plain.norm("4", plain.valid("3", plain.norm("1", plain.valid("0", x))))
    x = F.relu(plain.valid("6", x))
    assert_same(net, plain.inputs, plain["9"](x.flatten(1)))


def test_same_padding_written_by_hand() -> None:
    """Padding (0, 1) before a strided conv, behind a conv with padding 1: (1, 2) at the range's input."""
    net = Network("explicit_same_padding")
    moved = net.valid("down", net.valid("stem", pad(net.inputs, (1, 2, 1, 2))))
    assert_same(net.rewritten(net.candidate(0, 2, "stem", "down")), net.inputs, net["same"](F.relu(moved)))
    emptied = net.rewritten(net.candidate(0, 3, "stem", "down"))
    assert_same(emptied, net.inputs, moved)


def test_padding_crosses_a_stride_by_that_factor() -> None:
    torch.manual_seed(1)
    model = nn.Sequential(conv(3, 4, stride=2), nn.ReLU(), nn.Conv2d(4, 5, 1, padding=1))
    model = model.double().eval()
    x = torch.randn(2, 3, 11, 14, dtype=torch.float64)
    traced = lm.trace(model, x)
    (whole,) = [entry for entry in lm.plan(traced).candidates if entry.kept == ("0", "2")]
    first, last = model[0], model[2]
    assert isinstance(first, nn.Conv2d)
    assert isinstance(last, nn.Conv2d)
    y = F.conv2d(pad(x, all_round(1 + 2)), first.weight, first.bias, 2)
    assert_same(lm.rewrite(traced, [whole]).eval(), x, F.conv2d(y, last.weight, last.bias))


# -- residual blocks


@pytest.fixture(scope="module")
def basic() -> Network:
    return Network("basic")


def body(net: Network, block: str, x: Tensor) -> Tensor:
    """Both convs of a basic block on a map padded beforehand, its activation gone."""
    x = net.norm(f"{block}.bn1", net.valid(f"{block}.c1", x))
    return net.norm(f"{block}.bn2", net.valid(f"{block}.c2", x))


def crop(x: Tensor, pixels: int) -> Tensor:
    return x[..., pixels:-pixels, pixels:-pixels]


def test_a_whole_block_is_fused_with_its_skip(basic: Network) -> None:
    net = basic.rewritten(basic.candidate(1, 3, "a.c1", "a.c2"))
    x = basic["stem"](basic.inputs)
    x = F.relu(body(basic, "a", pad(x, all_round(2))) + x)
    assert_same(net, basic.inputs, basic["b"](x))


def test_a_block_fused_with_the_conv_before_it_crops_the_skip(basic: Network) -> None:
    net = basic.rewritten(basic.candidate(0, 3, "stem", "a.c1", "a.c2"))
    x = basic.valid("stem", pad(basic.inputs, all_round(3)))
    x = F.relu(body(basic, "a", x) + crop(x, 2))
    assert_same(net, basic.inputs, basic["b"](x))


def test_two_whole_blocks_as_one(basic: Network) -> None:
    net = basic.rewritten(basic.candidate(1, 5, "a.c1", "a.c2", "b.c1", "b.c2"))
    x = pad(basic["stem"](basic.inputs), all_round(4))
    x = body(basic, "a", x) + crop(x, 2)
    x = body(basic, "b", x) + crop(x, 2)
    assert_same(net, basic.inputs, F.relu(x))


def test_a_fused_block_with_one_conv_left(basic: Network) -> None:
    (fused,) = [
        entry
        for entry in basic.menu.candidates
        if (entry.start, entry.end, len(entry.kept)) == (1, 3, 1) and entry.kept[0].startswith("a.")
    ]
    (kept,) = fused.kept
    x = basic["stem"](basic.inputs)
    x = F.relu(basic[kept.replace("c", "bn")](basic[kept](x)) + x)
    assert_same(basic.rewritten(fused), basic.inputs, basic["b"](x))


@pytest.mark.parametrize("ranges", [[(1, 3)], [(1, 2), (2, 3)]], ids=["by one candidate", "by two"])
def test_an_emptied_body_leaves_x_and_not_twice_x(basic: Network, ranges: list[tuple[int, int]]) -> None:
    net = basic.rewritten(*(basic.candidate(*span) for span in ranges))
    x = F.relu(basic["stem"](basic.inputs))
    assert_same(net, basic.inputs, basic["b"](x))
    assert not [path for path, _ in net.named_parameters() if path.startswith("a.")]


def test_all_bodies_emptied_leave_the_stem(basic: Network) -> None:
    net = basic.rewritten(basic.candidate(1, 5))
    assert_same(net, basic.inputs, F.relu(basic["stem"](basic.inputs)))


def test_an_emptied_body_beside_a_conv_shortcut_leaves_the_shortcut() -> None:
    torch.manual_seed(3)
    model = Basic(4, 4)
    model.sc, model.sc_bn = nn.Conv2d(4, 4, 1, bias=False), nn.BatchNorm2d(4)
    nn.init.normal_(model.sc_bn.running_mean)  # type: ignore[arg-type]
    net = Network("basic_strided", model)
    names = [layer.name for layer in net.traced.layers]
    assert names == ["sc", "c1", "c2"]
    expected = F.relu(net["sc_bn"](net["sc"](net.inputs)))
    assert_same(net.rewritten(net.candidate(1, 2), net.candidate(2, 3)), net.inputs, expected)
    assert_same(net.rewritten(net.candidate(1, 3)), net.inputs, expected)
    assert_same(net.rewritten(net.candidate(0, 3, "sc")), net.inputs, expected)


def test_a_strided_block_whole_keeps_shortcut_and_first_conv() -> None:
    net = Network("basic_strided")
    rewritten = net.rewritten(net.candidate(0, 3, "sc", "c1"))
    expected = F.relu(net["bn1"](net["c1"](net.inputs)) + net["sc_bn"](net["sc"](net.inputs)))
    assert_same(rewritten, net.inputs, expected)
    assert not {"c2", "bn2"} & {path for path, _ in rewritten.named_modules()}


def test_a_skip_that_is_not_at_the_centre_of_the_kernel() -> None:
    net = Network("even_same_residual")
    x = F.relu(net["stem"](net.inputs))
    y = pad(x, (1 + 0, 2 + 1, 0 + 0, 1 + 1))
    y = net.valid("c2", net.norm("bn", net.valid("c1", y)))
    assert_same(net.rewritten(net.candidate(1, 3, "c1", "c2")), net.inputs, net["last"](F.relu(x + y)))


def test_a_norm_alone_as_shortcut() -> None:
    net = Network("rep_branches")
    (whole,) = [entry for entry in net.menu.candidates if set(entry.kept) == {"stem", "big", "small"}]
    x = net.valid("stem", pad(net.inputs, all_round(2)))
    big = net.norm("big_bn", net.valid("big", x))
    small = net.norm("small_bn", net.valid("small", crop(x, 1)))
    assert_same(net.rewritten(whole), net.inputs, F.relu(big + small + net.norm("bn", crop(x, 1))))


# -- networks of diffusion


def time_embedding(net: Network) -> Tensor:
    _, time = net.inputs
    angles = time[:, None].double() * torch.linspace(0.01, 0.1, 4).double()
    return net["time"](F.silu(torch.cat([angles.sin(), angles.cos()], 1)))[:, :, None, None]  # type: ignore[no-any-return]


@pytest.mark.parametrize("name", ["time_shifted_block", "time_shifted_block_conv_shortcut"])
def test_group_norm_moves_behind_the_range_and_the_shift_stays(name: str) -> None:
    net = Network(name)
    x, _ = net.inputs
    first = len(net.traced.layers) - 2
    rewritten = net.rewritten(net.candidate(first, first + 2, "c1", "c2"))
    y = pad(F.silu(net["norm1"](x)), all_round(2))
    y = net.valid("c2", net.valid("c1", y) + time_embedding(net))
    skip = x if net.model.sc is None else net["sc"](x)
    assert_same(rewritten, net.inputs, (skip + net["norm2"](y)) / 1.5)
    assert torch.equal(rewritten.get_parameter("norm2.weight"), net["norm2"].weight)
    assert isinstance(rewritten.get_submodule("drop"), nn.Dropout)


def test_an_emptied_diffusion_block_is_its_skip() -> None:
    net = Network("time_shifted_block")
    for chosen in ([net.candidate(0, 2)], [net.candidate(0, 1), net.candidate(1, 2)]):
        assert_same(net.rewritten(*chosen), net.inputs, net.inputs[0] / 1.5)


# -- inverted residuals and added activations


@pytest.fixture(scope="module")
def inverted() -> Network:
    return Network("inverted")


def linear_block(net: Network, block: str, x: Tensor, *, depthwise: bool = True) -> Tensor:
    y = pad(x, all_round(1)) if depthwise else x
    y = net.norm(f"{block}.bn1", net.valid(f"{block}.pw", y))
    y = net.norm(f"{block}.bn2", net.valid(f"{block}.dw", y)) if depthwise else y
    return x + net.norm(f"{block}.bn3", net.valid(f"{block}.pl", y))


@pytest.mark.parametrize("depthwise", [True, False])
@pytest.mark.parametrize("added", [True, False])
def test_an_inverted_residual_whole(inverted: Network, depthwise: bool, added: bool) -> None:
    kept = ("a.pw", "a.dw", "a.pl") if depthwise else ("a.pw", "a.pl")
    net = inverted.rewritten(inverted.candidate(0, 3, *kept), add_activation=added)
    x = linear_block(inverted, "a", inverted.inputs, depthwise=depthwise)
    assert_same(net, inverted.inputs, inverted["b"](F.relu6(x) if added else x))


def test_no_activation_is_added_at_the_output(inverted: Network) -> None:
    net = inverted.rewritten(inverted.candidate(3, 6, "b.pw", "b.dw", "b.pl"))
    x = linear_block(inverted, "b", inverted["a"](inverted.inputs))
    assert_same(net, inverted.inputs, x)


def test_no_activation_is_added_where_one_follows(inverted: Network) -> None:
    net = inverted.rewritten(inverted.candidate(0, 2, "a.pw", "a.dw"))
    x = pad(inverted.inputs, all_round(1))
    x = inverted.norm("a.bn2", inverted.valid("a.dw", inverted.norm("a.bn1", inverted.valid("a.pw", x))))
    x = inverted.inputs + inverted["a.bn3"](inverted["a.pl"](F.relu6(x)))
    assert_same(net, inverted.inputs, inverted["b"](x))


def test_an_activation_is_added_behind_the_residual_add(inverted: Network) -> None:
    net = inverted.rewritten(inverted.candidate(1, 3, "a.dw", "a.pl"))
    x = pad(F.relu6(inverted["a.bn1"](inverted["a.pw"](inverted.inputs))), all_round(1))
    x = inverted.norm("a.bn3", inverted.valid("a.pl", inverted.norm("a.bn2", inverted.valid("a.dw", x))))
    assert_same(net, inverted.inputs, inverted["b"](F.relu6(inverted.inputs + x)))


class Squared(nn.Module):
    """Blocks whose activation is a formula: the square of a ReLU, scaled."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.last = conv(4, 4, 1), conv(4, 4, 1), conv(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.second(0.9 * F.relu(self.first(x)) ** 2)
        return self.last(x)  # type: ignore[no-any-return]


def test_of_a_formula_that_ends_in_a_square_what_comes_before_is_added() -> None:
    model, x = Squared().double().eval(), torch.randn(2, 4, 6, 6, dtype=torch.float64)
    traced = lm.trace(model, x)
    (both,) = [one for one in lm.plan(traced).candidates if one.layers == ("first", "second") and len(one.kept) == 2]
    net = lm.rewrite(traced, [both]).eval()
    assert_same(net, x, model.last(F.relu(x + model.second(0.9 * model.first(x)))))


def test_no_activation_is_added_where_none_was_lost_or_nothing_is_kept(inverted: Network) -> None:
    single = inverted.rewritten(inverted.candidate(2, 3, "a.pl"))
    assert_same(single, inverted.inputs, inverted.model(inverted.inputs))
    emptied = inverted.rewritten(inverted.candidate(1, 2))
    x = F.relu6(inverted["a.bn1"](inverted["a.pw"](inverted.inputs)))
    x = inverted.inputs + inverted["a.bn3"](inverted["a.pl"](F.relu6(x)))
    assert_same(emptied, inverted.inputs, inverted["b"](x))


def test_two_blocks_get_one_activation_each_but_the_last(inverted: Network) -> None:
    net = inverted.rewritten(
        inverted.candidate(0, 3, "a.pw", "a.dw", "a.pl"), inverted.candidate(3, 6, "b.pw", "b.dw", "b.pl")
    )
    x = F.relu6(linear_block(inverted, "a", inverted.inputs))
    assert_same(net, inverted.inputs, linear_block(inverted, "b", x))
    assert len(activations(net)) == 1


class NormBesideSkip(nn.Module):
    """A residual body whose first conv reads the fork itself, with a statistical norm behind it."""

    def __init__(self) -> None:
        super().__init__()
        self.c1, self.c2, self.c3 = conv(4, 4), conv(4, 4), conv(4, 4)
        self.norm = nn.GroupNorm(2, 4)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.c3(F.relu(self.c2(F.silu(self.norm(self.c1(x))))))  # type: ignore[no-any-return]


def test_a_norm_of_an_emptied_range_does_not_touch_the_skip() -> None:
    torch.manual_seed(0)
    model, x = NormBesideSkip().eval(), torch.randn(2, 4, 9, 9)
    traced = lm.trace(model, x)
    net = lm.rewrite(traced, [lm.plan(traced)["0-2:identity"]])
    with torch.no_grad():
        expected = x + model.c3(F.relu(model.norm(x)))
        assert float((net(x) - expected).abs().max()) <= 1e-6
