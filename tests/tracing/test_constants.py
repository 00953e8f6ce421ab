"""What depends on parameters and buffers alone is known as constant, and evaluated to what eager torch computes."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import layermerge as lm
from layermerge.tracing.constants import evaluate
from layermerge.tracing.operators import Role
from zoo_registry import conv


class Factor(nn.Module):
    """A conv whose result is multiplied by what `factor` makes of the module's tensors and the map."""

    beta: Tensor
    hidden: Tensor

    def __init__(self, factor: Callable[[Factor, Tensor], Tensor]) -> None:
        super().__init__()
        self.first, self.second, self.factor = conv(3, 4), conv(4, 4), factor
        self.gamma = nn.Parameter(torch.rand(4, 1, 1) + 0.5)
        self.register_buffer("beta", torch.rand(1, 4, 1, 1) + 0.5)
        self.register_buffer("hidden", torch.rand(()) + 0.5, persistent=False)
        self.mix = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.first(x))
        return self.second(y * self.factor(self, y))  # type: ignore[no-any-return]


CONSTANT: dict[str, Callable[[Factor, Tensor], Tensor]] = {
    "parameter": lambda net, _: net.gamma,
    "buffer": lambda net, _: net.beta,
    "one hidden value": lambda net, _: net.hidden,
    "computed": lambda net, _: torch.sigmoid(net.gamma) * net.beta.rsqrt() + net.hidden,
    "through a module": lambda net, _: torch.reshape(net.mix(net.beta.flatten()), (4, 1, 1)),
    "made in forward": lambda net, _: torch.full((4, 1, 1), 0.7) * net.gamma.to(torch.float32),
}
VARIABLE: dict[str, Callable[[Factor, Tensor], Tensor]] = {
    "of the map": lambda net, y: y.mean((2, 3), keepdim=True) + net.gamma,
    "of the batch": lambda net, y: net.gamma * y.shape[0],
    "over the width": lambda net, y: torch.linspace(0.5, 1, y.shape[-1]) * net.hidden,
    "over space": lambda net, _: net.gamma.expand(4, 16, 16) * 2,
}


def traced(factor: Callable[[Factor, Tensor], Tensor]) -> tuple[Factor, lm.Trace]:
    torch.manual_seed(2)
    model = Factor(factor).eval()
    return model, lm.trace(model, torch.randn(2, 3, 16, 16))


@pytest.mark.parametrize("name", CONSTANT)
@pytest.mark.filterwarnings("ignore:not part of the traced network")
def test_a_constant_factor_folds_and_has_the_value_that_eager_torch_computes(name: str) -> None:
    model, trace = traced(CONSTANT[name])
    (product,) = [node for node in trace.module.graph.nodes if node.meta["role"] is Role.NORM]
    (factor,) = [arg for arg in product.args if isinstance(arg, torch.fx.Node) and arg.meta["constant"]]
    value = evaluate(trace.module, factor)
    assert value.dtype == torch.float64
    wide = model.double()
    assert torch.allclose(value, wide.factor(wide, torch.empty(2, 4, 16, 16)).double(), rtol=1e-7)
    weightless = trace.module.to("meta")
    weightless.hidden = torch.rand(())
    assert evaluate(weightless, factor).is_meta


@pytest.mark.parametrize("name", VARIABLE)
@pytest.mark.filterwarnings("ignore:not part of the traced network")
def test_what_is_not_one_fixed_value_a_channel_is_a_barrier(name: str) -> None:
    _, trace = traced(VARIABLE[name])
    (reader,) = [node for node in trace.module.graph.nodes if node.target == "second"]
    assert reader.args[0].meta["role"] is Role.BARRIER
    assert len(trace.structure.chains) == 2


def test_a_random_factor_is_not_constant() -> None:
    class Noisy(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second, self.gamma = conv(3, 4), conv(4, 4), nn.Parameter(torch.ones(4, 1, 1))

        def forward(self, x: Tensor) -> Tensor:
            return self.second(self.first(x) * F.dropout(self.gamma, 0.5, self.training))  # type: ignore[no-any-return]

    trace = lm.trace(Noisy(), torch.randn(2, 3, 8, 8))
    assert Role.NORM not in {node.meta["role"] for node in trace.module.graph.nodes}
