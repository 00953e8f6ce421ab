"""Convs whose weight is computed from parameters are layers: they train as they are and merge to plain convs."""

from __future__ import annotations

import pickle
import random
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import layermerge as lm
from agreement import call, differences, to_double, worst
from layermerge.models import load_model
from layermerge.surgery.merge import merged_shell
from layermerge.tracing.computed_conv import ComputedConv2d
from solutions import random_solution
from zoo_registry import conv

weight_norm = nn.utils.parametrizations.weight_norm


class Standardised(nn.Conv2d):
    """Weight standardisation with a gain, as timm's ScaledStdConv2d has it."""

    def __init__(self, ins: int, outs: int) -> None:
        super().__init__(ins, outs, 3, padding=1)
        self.gain = nn.Parameter(torch.rand(outs, 1, 1, 1) + 0.5)

    def forward(self, x: Tensor) -> Tensor:
        flat = self.weight.reshape(1, self.out_channels, -1)
        weight = F.batch_norm(flat, None, None, weight=self.gain.flatten() * 0.3, training=True, momentum=0.0)
        return F.conv2d(x, weight.reshape_as(self.weight), self.bias, padding=self.padding)


class Functional(nn.Module):
    """Convs with plain parameters under names of their own, masked and not, with every kind of padding."""

    mask: Tensor
    point: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.kernel_a = nn.Parameter(torch.randn(4, 3, 3, 3) * 0.3)
        self.kernel_b = nn.Parameter(torch.randn(4, 2, 3, 3) * 0.3)
        self.shift = nn.Parameter(torch.randn(4))
        self.register_buffer("mask", torch.rand(4, 2, 3, 3) > 0.3)
        self.register_buffer("point", torch.randn(4, 4, 1, 1), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(F.conv2d(x, self.kernel_a, self.shift, padding="same"))
        x = F.relu(F.conv2d(x, self.kernel_b * self.mask, padding=1, groups=2) + x)
        return F.conv2d(x, self.point)


def _normed() -> nn.Module:
    return nn.Sequential(weight_norm(conv(3, 4)), nn.ReLU(), weight_norm(conv(4, 4)), nn.ReLU(), conv(4, 4, bias=False))


def _standardised() -> nn.Module:
    return nn.Sequential(Standardised(3, 4), nn.BatchNorm2d(4), nn.ReLU(), Standardised(4, 4), nn.ReLU(), conv(4, 4))


NETWORKS: dict[str, tuple[Callable[[], nn.Module], list[str]]] = {
    "weight_norm": (_normed, ["0.conv2d", "2.conv2d", "4"]),
    "standardised": (_standardised, ["0.conv2d", "3.conv2d", "5"]),
    "functional": (Functional, ["conv2d", "conv2d_1", "conv2d_2"]),
}


@pytest.fixture(scope="module", params=NETWORKS)
def network(request: pytest.FixtureRequest) -> tuple[nn.Module, lm.Trace, list[str]]:
    torch.manual_seed(8)
    build, names = NETWORKS[request.param]
    model = build().eval()
    return model, lm.trace(model, torch.randn(2, 3, 9, 9)), names


Network = tuple[nn.Module, lm.Trace, list[str]]


def test_they_are_layers_with_the_users_keys(network: Network) -> None:
    model, traced, names = network
    assert [layer.name for layer in traced.layers] == names
    assert list(traced.module.state_dict()) == list(model.state_dict())


def test_the_plan_reads_the_weight_that_the_conv_really_uses(network: Network, monkeypatch: pytest.MonkeyPatch) -> None:
    model, traced, _ = network
    used: list[float] = []
    original: Callable[..., Tensor] = F.conv2d

    def record(x: Tensor, weight: Tensor, *args: object, **kwargs: object) -> Tensor:
        used.append(weight.detach().double().abs().sum().item())
        return original(x, weight, *args, **kwargs)

    monkeypatch.setattr(F, "conv2d", record)
    call(model, traced.inputs.args)
    assert [layer.l1 for layer in traced.layers] == pytest.approx(used, rel=1e-5)


def test_random_solutions_merge_to_plain_convs(network: Network) -> None:
    _, traced, _ = network
    menu, inputs = lm.plan(traced), traced.inputs.args[0]
    assert len([candidate for candidate in menu.candidates if not candidate.untouched]) > 5
    for seed in range(6):
        solution = random_solution(menu, random.Random(seed))
        rewritten = lm.rewrite(traced, solution).eval().double()
        merged = lm.merge(rewritten)
        assert max(differences(rewritten, merged, to_double(inputs)).values()) <= 1e-10
        assert not [part for part in merged.modules() if isinstance(part, ComputedConv2d)]
        owners = {key.rpartition(".")[0] for key in merged.state_dict()}
        assert owners <= {layer.name for layer in traced.layers}
        shell = merged_shell(lm.rewrite(traced, solution))
        shell.load_state_dict(merged.state_dict(), assign=True)
        assert worst(merged(to_double(inputs)), shell(to_double(inputs))) <= 1e-10


def test_the_parametrisation_trains_as_before(network: Network) -> None:
    """One step of the network with nothing removed moves every parameter as a step of the user's model does."""
    model, traced, _ = network
    inputs = traced.inputs.args[0]
    rewritten = lm.rewrite(traced, ())
    for module in (model, rewritten):
        (module.train()(inputs) ** 2).mean().backward()
    expected = {name: parameter.grad for name, parameter in model.named_parameters()}
    actual = {name: parameter.grad for name, parameter in rewritten.named_parameters()}
    model.eval()
    assert expected.keys() == actual.keys()
    for name, gradient in expected.items():
        assert gradient is not None, name
        assert worst(gradient, actual[name]) <= 1e-5, name
    model.zero_grad()


@pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning")
def test_another_process_finds_the_same_layers(network: Network) -> None:
    _, traced, names = network
    assert [layer.name for layer in pickle.loads(pickle.dumps(traced)).layers] == names


class Twice(nn.Module):
    """One kernel, computed, in two convs; one of them scales it once more."""

    def __init__(self, *, apart: bool) -> None:
        super().__init__()
        self.first, self.kernel, self.apart = conv(3, 4), nn.Parameter(torch.randn(4, 4, 3, 3)), apart

    def forward(self, x: Tensor) -> Tensor:
        weight = self.kernel.tanh()
        x = F.relu(F.conv2d(self.first(x), weight, padding=1))
        return F.conv2d(x, self.kernel * 2 if self.apart else weight, padding=1)


@pytest.mark.parametrize("apart", [True, False])
def test_a_kernel_that_two_convs_are_computed_from_is_a_barrier(apart: bool) -> None:
    traced = lm.trace(Twice(apart=apart), torch.randn(2, 3, 8, 8))
    assert [layer.name for layer in traced.layers] == ["first"]


def test_a_weight_that_depends_on_the_input_is_a_barrier() -> None:
    class Dynamic(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.kernel = conv(3, 4), nn.Parameter(torch.randn(4, 4, 3, 3))

        def forward(self, x: Tensor) -> Tensor:
            x = F.relu(self.first(x))
            return F.conv2d(x, self.kernel * x.mean(), padding=1)

    traced = lm.trace(Dynamic(), torch.randn(2, 3, 8, 8))
    assert [layer.name for layer in traced.layers] == ["first"]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["timm:nf_regnet_b0", "timm:resnetv2_50x1_bit"])
def test_published_networks_with_standardised_weights(name: str) -> None:
    torch.manual_seed(5)
    model = load_model(name, input_shape=(3, 64, 64)).module
    inputs = torch.randn(2, 3, 64, 64)
    traced = lm.trace(model, inputs)
    menu = lm.plan(traced)
    for seed in range(2):
        rewritten = lm.rewrite(traced, random_solution(menu, random.Random(seed))).eval().double()
        merged = lm.merge(rewritten)
        assert not [part for part in merged.modules() if isinstance(part, ComputedConv2d)]
        assert max(differences(rewritten, merged, to_double(inputs)).values()) <= 1e-10
