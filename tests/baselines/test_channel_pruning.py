"""Channel pruning: what goes is the weakest, what is left computes what it did before, budgets are kept."""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import layermerge as lm
import real_networks
import zoo
from agreement import call, same_bits, tensors, worst
from layermerge.baselines import channel_pruning
from layermerge.baselines.channel_criteria import ChannelCriterion
from layermerge.baselines.channel_pruning import channels_kept, prune_channels, prune_to_latency, search_ratio
from layermerge.errors import BaselineError, BudgetError, InfeasibleBudget, MissingPackage
from layermerge.runtimes.clock import Clocks, ClockSettings, Sample
from zoo_registry import conv, image

# Networks that Torch-Pruning follows; those of one layer, or whose every channel is an output, stay as they are.
NARROWER = [
    "plain",
    "functional_relu",
    "shared_conv",
    "basic",
    "bottleneck_strided",
    "inverted",
    "pre_activation_after_stem",
    "in_place",
    "squeeze_excite",
    "grouped_chain",
    "concat_branches",
    "norms_of_every_kind",
    "time_shifted_block",
    "two_inputs",
    "inputs_by_name",
    "nested_inputs",
]


# One of each kind of structure; what is left is a plain network, and the zoo's own tests trace every one of them.
TRACED = {"basic", "inverted", "squeeze_excite", "grouped_chain", "norms_of_every_kind"}


def weights(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


@pytest.fixture
def unrounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Networks here are too narrow for multiples of four."""
    monkeypatch.setattr(channel_pruning, "ROUND_TO", 1)


def chain() -> nn.Sequential:
    return nn.Sequential(conv(3, 8), nn.ReLU(), conv(8, 6), nn.ReLU(), nn.Flatten(), nn.Linear(6 * 64, 5)).eval()


# -- on many networks


@pytest.mark.usefixtures("unrounded")
@pytest.mark.parametrize("name", NARROWER)
def test_the_copy_is_narrower_runs_and_can_be_traced(name: str) -> None:
    model, inputs = zoo.build(name).train(), zoo.ZOO[name].inputs(2)
    next(model.parameters()).requires_grad_(False)
    before = copy.deepcopy(model.state_dict())
    pruned = prune_channels(model, inputs, 0.5)
    assert same_bits(before, model.state_dict())
    assert weights(pruned) < weights(model)
    assert all(part.training for part in (*model.modules(), *pruned.modules()))
    assert [parameter.requires_grad for parameter in pruned.parameters()] == [
        parameter.requires_grad for parameter in model.parameters()
    ]
    shared = {part.data_ptr() for part in model.parameters()} & {part.data_ptr() for part in pruned.parameters()}
    assert not shared
    with torch.no_grad():
        shapes = [[part.shape for part in tensors(call(net.eval(), inputs))] for net in (model, pruned)]
    assert shapes[0] == shapes[1]
    if name in TRACED:
        lm.trace(pruned, inputs)


@pytest.mark.usefixtures("unrounded")
@pytest.mark.parametrize("name", ["dict_output", "namedtuple_output", "dataclass_output", "depthwise_chain"])
def test_channels_that_reach_an_output_or_an_input_stay(name: str) -> None:
    model = zoo.build(name)
    assert weights(prune_channels(model, zoo.ZOO[name].inputs(2), 0.5)) == weights(model)


class AddsItsInput(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = conv(8, 8), conv(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(x + self.body(x))  # type: ignore[no-any-return]


def test_channels_added_to_the_networks_input_stay() -> None:
    assert weights(prune_channels(AddsItsInput(), image(8)(2), 0.5)) == weights(AddsItsInput())


@pytest.mark.slow
def test_a_published_network_with_depthwise_convs() -> None:
    model, make = real_networks.build("torchvision:mobilenet_v2", size=32)
    pruned = prune_channels(model, make(2), 0.5)
    depthwise = [part for part in pruned.modules() if isinstance(part, nn.Conv2d) and part.groups > 1]
    assert depthwise
    assert all(part.groups == part.in_channels == part.out_channels for part in depthwise)
    assert all(part.out_channels % 4 == 0 for part in pruned.modules() if isinstance(part, nn.Conv2d))
    assert weights(pruned) < 0.4 * weights(model)
    assert len(lm.trace(pruned, make(2)).layers) == 52


# -- against what can be worked out by hand


def by_hand(net: nn.Sequential) -> Tensor:
    """How much a channel between the two convs weighs: squares of the weights that write it and that read it."""
    first, second = net[0].weight, net[2].weight
    assert isinstance(first, Tensor)
    assert isinstance(second, Tensor)
    return (first.square().sum((1, 2, 3)) + second.square().sum((0, 2, 3))).detach()


def test_the_weakest_go_and_the_rest_computes_what_it_did_without_them() -> None:
    net = nn.Sequential(conv(3, 8), nn.ReLU(), conv(8, 4)).double().eval()
    x = torch.randn(2, 3, 8, 8, dtype=torch.float64)
    pruned = prune_channels(net, x, 0.5)
    gone = by_hand(net).argsort()[:4]
    expected = copy.deepcopy(net)
    with torch.no_grad():
        for tensor in expected[0].parameters():
            tensor[gone] = 0
        assert worst(expected(x), pruned(x)) <= 1e-12


@pytest.mark.usefixtures("unrounded")
def test_a_block_computes_what_it_did_without_the_channels_that_are_gone() -> None:
    """Expansion, depthwise conv, projection and the residual add: channels of the expansion may go, those outside not."""
    net = zoo.build("inverted").double().eval()
    x = zoo.ZOO["inverted"].inputs(2).double()
    pruned = prune_channels(net, x, 0.5)
    expected = copy.deepcopy(net)
    with torch.no_grad():
        for (name, before), after in zip(expected.named_modules(), pruned.modules(), strict=True):
            if isinstance(before, nn.BatchNorm2d) and isinstance(after, nn.BatchNorm2d):
                kept = torch.isin(before.weight, after.weight)
                assert int(kept.sum()) == after.num_features, name
                # A dead channel has to be zero where it is read; the last norm of the expansion sees to that.
                before.weight[~kept], before.bias[~kept] = 0, 0
        assert weights(pruned) < weights(net)
        assert worst(expected(x), pruned(x)) <= 1e-12


def test_numbers_of_channels_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    rounded: Any = prune_channels(chain(), image(3, 8, 8)(2), 0.4)
    assert [rounded[0].out_channels, rounded[2].out_channels] == [4, 4]
    monkeypatch.setattr(channel_pruning, "ROUND_TO", 1)
    pruned: Any = prune_channels(chain(), image(3, 8, 8)(2), 0.4)
    assert [pruned[0].in_channels, pruned[0].out_channels, pruned[2].out_channels] == [3, 5, 4]
    assert (pruned[5].in_features, pruned[5].out_features) == (4 * 64, 5)


def conv_chain(widths: list[list[float]]) -> nn.Sequential:
    """Convs of which each channel's weights have a size that is given; the last one's channels are outputs."""
    layers: list[nn.Module] = []
    before = 3
    for sizes in [*widths, [1.0] * 5]:
        layer = conv(before, len(sizes))
        with torch.no_grad():
            layer.weight.copy_(torch.tensor(sizes)[:, None, None, None].expand_as(layer.weight))
        layers += [layer, nn.ReLU()]
        before = len(sizes)
    return nn.Sequential(*layers[:-1]).eval()


@pytest.mark.usefixtures("unrounded")
def test_the_weakest_of_a_layer_or_of_the_whole_network_go() -> None:
    """Sizes by hand, in shares of the layer's mean, which is how groups are compared: the second layer's are all alike."""
    net, x = conv_chain([[1.0, 9.0, 9.0, 9.0, 1.0, 9.0, 9.0, 9.0], [5.0, 5.0, 5.0, 5.0]]), image(3, 8, 8)(2)
    each: Any = prune_channels(net, x, 0.25, ChannelCriterion("magnitude", "layer"))
    assert [each[0].out_channels, each[2].out_channels] == [6, 3]
    whole: Any = prune_channels(net, x, 0.2, ChannelCriterion("magnitude", "network"))
    assert [whole[0].out_channels, whole[2].out_channels] == [6, 4]
    assert torch.equal(whole[0].weight, net[0].weight[[1, 2, 3, 5, 6, 7]])  # type: ignore[index]


@pytest.mark.usefixtures("unrounded")
def test_taylor_takes_channels_that_the_loss_does_not_feel() -> None:
    """The second conv reads two channels of the first alone, so the loss has no gradient in the others, however large."""
    torch.manual_seed(0)
    net: Any = nn.Sequential(conv(3, 6), nn.ReLU(), conv(6, 5)).eval()
    x = image(3, 8, 8)(2)
    with torch.no_grad():
        net[2].weight[:, [0, 2, 3, 5]] = 0
        net[0].weight[[0, 2, 3, 5]] *= 100

    def gradients(network: nn.Module) -> None:
        network(x).square().sum().backward()

    pruned: Any = prune_channels(net, x, 0.6, ChannelCriterion("taylor", "layer", gradients))
    assert torch.equal(pruned[0].weight, net[0].weight[[1, 4]])
    assert all(parameter.grad is None for parameter in pruned.parameters())


@pytest.mark.usefixtures("unrounded")
def test_small_scales_of_norms_and_channels_like_the_others_go() -> None:
    torch.manual_seed(0)
    net: Any = nn.Sequential(conv(3, 4), nn.BatchNorm2d(4), nn.ReLU(), conv(4, 5)).eval()
    x = image(3, 8, 8)(2)
    with torch.no_grad():
        net[1].weight.copy_(torch.tensor([3.0, 0.1, 2.0, 0.2]))
    scaled: Any = prune_channels(net, x, 0.5, ChannelCriterion("scale"))
    assert scaled[1].weight.tolist() == [3.0, 2.0]
    plain = conv_chain([[5.0, 5.1, -9.0, 5.2]])
    alike: Any = prune_channels(plain, x, 0.25, ChannelCriterion("geometric"))
    assert -9.0 in alike[0].weight[:, 0, 0, 0].tolist()


def test_rounding() -> None:
    for channels in range(1, 70):
        for unit in (1, 2, 4, 8):
            kept = [channels_kept(channels, share / 20, unit) for share in range(20)]
            assert kept == sorted(kept, reverse=True)
            assert kept[0] == channels
            assert all(number % unit == 0 or number == channels for number in kept)
            assert all(abs(number - channels * (1 - share / 20)) <= max(unit, 1) for share, number in enumerate(kept))


# -- what cannot be done


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"ratio": 1.0}, r"the pruning ratio is 1\.0; give a share"),
        ({"ratio": -0.1}, r"the pruning ratio is -0\.1"),
        ({"ratio": float("nan")}, r"the pruning ratio is nan"),
        ({"criterion": ChannelCriterion("taylor")}, r"criterion 'taylor' goes by gradients; give a task"),
        (
            {"example_inputs": torch.zeros(2, 4, 8, 8)},
            r"Sequential does not run on these example inputs: .*forward\(\)",
        ),
    ],
)
def test_bad_requests_get_one_line(change: dict[str, Any], message: str) -> None:
    request: dict[str, Any] = {"model": chain(), "example_inputs": image(3, 8, 8)(2), "ratio": 0.5} | change
    with pytest.raises(BaselineError, match=message) as error:
        prune_channels(**request)
    assert "\n" not in str(error.value)


class FixedWidth(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = conv(3, 8), conv(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.first(x).reshape(-1, 8, 8, 8).relu())  # type: ignore[no-any-return]


def test_a_network_that_cannot_be_narrower_says_so() -> None:
    with pytest.raises(BaselineError, match=r"^FixedWidth cannot lose channels: .*; choose another baseline for it$"):
        prune_channels(FixedWidth(), image(3, 8, 8)(2), 0.5)


def test_without_the_package_one_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch_pruning", None)
    with pytest.raises(MissingPackage, match=r"not installed; try: pip install 'layermerge\[baselines\]'$"):
        prune_channels(chain(), image(3, 8, 8)(2), 0.5)


# -- budgets, on made-up machines


def wide(ratio: float, round_to: int = 4) -> nn.Module:
    return nn.Conv2d(1, channels_kept(100, ratio, round_to), 1)


MACHINES: dict[str, Callable[[int], float]] = {
    "in proportion": lambda channels: channels / 10,
    "with an overhead": lambda channels: 1.5 + 8.5 * (channels / 100),
    "squared": lambda channels: (channels / 100) ** 2 * 10,
    "uneven": lambda channels: channels / 10 * (1.15 if channels % 8 else 0.95),
}


@pytest.mark.parametrize("allowed", [8.0, 6.0, 4.0, 2.5])
@pytest.mark.parametrize("name", MACHINES)
def test_the_budget_is_kept_and_used(name: str, allowed: float) -> None:
    measured: list[int] = []

    def measure(module: nn.Module) -> float:
        assert isinstance(module, nn.Conv2d)
        measured.append(module.out_channels)
        return MACHINES[name](module.out_channels)

    found = search_ratio(wide, measure, allowed, 10.0)
    assert isinstance(found.module, nn.Conv2d)
    assert found.measured_ms == MACHINES[name](found.module.out_channels) <= allowed
    assert found.module.out_channels == channels_kept(100, found.ratio, 4)
    assert len(measured) == len(set(measured)) <= 7
    if name != "uneven":  # there, one step wider need not be slower
        assert found.measured_ms >= 0.98 * allowed or MACHINES[name](found.module.out_channels + 8) > allowed


def test_a_budget_above_the_original_changes_nothing() -> None:
    found = search_ratio(wide, lambda _: pytest.fail("nothing to measure"), 10.0, 10.0)
    assert (found.ratio, found.measured_ms, found.original_ms) == (0.0, 10.0, 10.0)
    assert isinstance(found.module, nn.Conv2d)
    assert found.module.out_channels == 100


def test_a_budget_out_of_reach_says_how_far_it_goes() -> None:
    with pytest.raises(
        InfeasibleBudget, match=r"the smallest reachable latency is 1\.84\d\d ms, 18\.4\d% of the original"
    ) as error:
        search_ratio(wide, lambda module: MACHINES["with an overhead"](weights(module) // 2), 1.0, 10.0)
    assert error.value.smallest_ms == pytest.approx(1.84)


def test_what_is_timed_is_the_whole_network_beside_the_original(monkeypatch: pytest.MonkeyPatch) -> None:
    """Time is made of weights: the original's own is what the table says, whatever the clock says today."""

    class Weighing:
        name = "torch"
        clocks = Clocks.alike(ClockSettings(seconds=0.5))

        def prepare(self, module: nn.Module, inputs: Any, *, small: bool = False) -> int:
            assert not small
            assert not any(isinstance(part, nn.BatchNorm2d) for part in module.modules()), "norms are folded"
            assert inputs.batch == 3
            return weights(module)

        def time(self, runs: dict[str, int], clock: ClockSettings) -> dict[str, Sample]:
            assert clock.seconds == 0.5
            return {name: Sample(float(run), 0.0, 1) for name, run in runs.items()}

    monkeypatch.setattr(channel_pruning, "make_runtime", lambda *_: Weighing())
    monkeypatch.setattr(channel_pruning, "_ROUNDS", 2)  # each traces the network; the search has tests of its own
    net = nn.Sequential(conv(3, 32), nn.BatchNorm2d(32), nn.ReLU(), conv(32, 32), nn.ReLU(), conv(32, 4)).eval()
    settings: dict[str, Any] = {"batch_size": 3}
    found = prune_to_latency(net, image(3, 8, 8)(2), "50%", original_ms=20.0, **settings)
    assert found.original_ms == 20.0
    assert 0 < found.measured_ms <= 10.0
    pruned: Any = found.module
    folded, left = weights(net) - 2 * 32, weights(pruned) - 2 * pruned[0].out_channels
    assert found.measured_ms == pytest.approx(20.0 * left / folded)
    # Without a table's figure, the clock's; nothing is pruned for such a budget.
    assert prune_to_latency(net, image(3, 8, 8)(2), "100%", **settings).original_ms == folded
    with pytest.raises(BudgetError, match="cannot read the budget 'half'"):
        prune_to_latency(net, image(3, 8, 8)(2), "half", **settings)


@pytest.mark.usefixtures("quick_clocks")
def test_on_a_real_runtime() -> None:
    found = prune_to_latency(chain(), image(3, 8, 8)(2), "100000%")
    assert found.ratio == 0.0
    assert found.measured_ms == found.original_ms > 0
