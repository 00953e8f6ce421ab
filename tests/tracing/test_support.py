"""Models that cannot be traced, and how to change them; weights that are normed, as they can and cannot be."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations, parametrize

import layermerge as lm
from agreement import differences, to_double
from layermerge.errors import TraceError
from oracles import relative_difference
from solutions import random_solution
from zoo_registry import conv


def images(batch: int = 2) -> Tensor:
    return torch.randn(batch, 3, 9, 9, generator=torch.Generator().manual_seed(5))


def around(first: nn.Module) -> nn.Module:
    return nn.Sequential(first, nn.ReLU(), conv(4, 4), nn.ReLU(), conv(4, 4))


@pytest.mark.parametrize(
    ("compile", "where"),
    [
        (lambda: torch.jit.script(nn.Conv2d(3, 4, 3)), "the model"),
        (lambda: torch.jit.trace(nn.Conv2d(3, 4, 3), images()), "the model"),  # type: ignore[no-untyped-call]
        (lambda: nn.Sequential(nn.Conv2d(3, 4, 3), torch.jit.script(nn.ReLU())), "its module '1'"),
    ],
)
@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_torchscript(compile: Callable[[], nn.Module], where: str) -> None:
    with pytest.raises(
        TraceError, match=f"^{where} is compiled TorchScript, which cannot be traced; pass the nn.Module"
    ):
        lm.trace(compile(), images())


@pytest.mark.filterwarnings("ignore:.*spectral_norm:FutureWarning")
@pytest.mark.parametrize("called", [False, True])
def test_spectral_norm(called: bool) -> None:
    for norm, remove in (
        (nn.utils.spectral_norm, nn.utils.remove_spectral_norm),
        (parametrizations.spectral_norm, lambda module: parametrize.remove_parametrizations(module, "weight")),
    ):
        torch.manual_seed(0)
        model = around(norm(conv(3, 4)))
        if called:
            model(images())
        with pytest.raises(
            TraceError, match=r"^its module '0' has spectral_norm, which in train mode changes .*remove_"
        ):
            lm.trace(model, images())
        remove(model[0])  # type: ignore[index]
        assert len(lm.trace(model, images()).layers) == 3


@pytest.mark.filterwarnings("ignore:.*weight_norm:FutureWarning")
@pytest.mark.parametrize("norm", [nn.utils.weight_norm, parametrizations.weight_norm])
@pytest.mark.parametrize("called", [False, True])
def test_weight_norm_trains_and_merges(norm: Callable[[nn.Module], nn.Module], called: bool) -> None:
    """The old form leaves a computed weight on the module, which torch cannot copy."""
    torch.manual_seed(0)
    model = around(norm(conv(3, 4)))
    if called:
        model(images())
    traced = lm.trace(model, images())
    assert list(traced.module.state_dict()) == list(model.state_dict())
    lifted, x = copy.deepcopy(traced.module).double(), images(3).double()
    model.double()
    for module in (model, lifted):
        (module(x) ** 2).sum().backward()
    own = dict(lifted.named_parameters())
    for name, parameter in model.named_parameters():
        expected, actual = parameter.grad, own[name].grad
        assert expected is not None
        assert actual is not None
        assert relative_difference(expected, actual) <= 1e-12
    menu = lm.plan(traced)
    assert any(one.start == 0 and one.end == 3 for one in menu.candidates)
    for seed in range(3):
        rewritten = lm.rewrite(traced, random_solution(menu, random.Random(seed))).eval().double()
        assert max(differences(rewritten, lm.merge(rewritten), to_double(images())).values()) <= 1e-10


def test_random_relu_is_random_in_train_mode() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(conv(3, 4), nn.RReLU(0.1, 0.4), conv(4, 4))
    traced = lm.trace(model, images())
    assert repr(traced.module.get_submodule("1")) == "RReLU(lower=0.1, upper=0.4)"
    outputs = []
    for module in (model.train(), traced.module.train()):
        torch.manual_seed(3)
        outputs.append(module(images()))
    assert relative_difference(*outputs) <= 1e-6
    assert relative_difference(outputs[0], model.eval()(images())) > 1e-3
    rewritten = lm.rewrite(traced, [lm.plan(traced)["0-2:5x5g1"]]).eval().double()
    assert max(differences(rewritten, lm.merge(rewritten), to_double(images())).values()) <= 1e-10


class TwoNames(nn.Module):
    """A conv, a norm and a whole stage, each under a second name; which one forward() uses is up to the test."""

    def __init__(self, names: tuple[str, ...]) -> None:
        super().__init__()
        self.a, self.norm, self.b, self.c = conv(3, 4), nn.BatchNorm2d(4), conv(4, 4), conv(4, 4)
        self.again, self.other = self.b, self.norm
        self.stage = nn.Sequential(self.a, self.other, nn.ReLU(), self.again)
        self.names = names

    def forward(self, x: Tensor) -> Tensor:
        for name in self.names:
            x = torch.relu(self.get_submodule(name)(x))
        return self.c(x)  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("names", "count"),
    [
        (("stage",), 3),
        (("a", "norm", "b"), 3),
        (("stage.0", "other", "again"), 3),
        (("a", "norm", "b", "again"), 2),
    ],
)
def test_modules_under_two_names(names: tuple[str, ...], count: int) -> None:
    """One that is called twice is no layer."""
    torch.manual_seed(0)
    model = TwoNames(names)
    traced = lm.trace(model, images())
    assert list(traced.module.state_dict()) == list(model.state_dict())
    assert len(traced.layers) == count
    menu = lm.plan(traced)
    for seed in range(4):
        rewritten = lm.rewrite(traced, random_solution(menu, random.Random(seed))).train()
        (rewritten(images()) ** 2).sum().backward()
        assert all(parameter.grad is not None for parameter in rewritten.parameters())
        rewritten = rewritten.eval().double()
        assert max(differences(rewritten, lm.merge(rewritten), to_double(images())).values()) <= 1e-10
