"""Networks with something replaced, calibrated: known answers, never worse, exact when merged, saved and loaded."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import layermerge as lm
import replaceable
from agreement import same_bits, worst
from layermerge.calibration.mean_gates import with_mean_gates
from layermerge.surgery.rewrite import RewrittenModule
from replaceable import ACTIVATIONS, BOTH, GATES, Activated, Gates, SqueezeExcite, pictures


def distance(net: nn.Module, model: nn.Module, x: Tensor) -> float:
    with torch.no_grad():
        return float((net(x) - model(x)).square().sum() / model(x).square().sum())


def replaced(kind: type[nn.Module], *keys: str) -> tuple[nn.Module, RewrittenModule]:
    model, trace = replaceable.traced(kind)
    menu = lm.plan(trace, BOTH)
    return model, lm.rewrite(trace, [menu[key] for key in keys]).eval()


def gate_mean(model: nn.Module, name: str, x: Tensor) -> Tensor:
    gate = model.get_submodule(name)
    assert isinstance(gate, SqueezeExcite)
    values: list[Tensor] = []
    handle = gate.register_forward_hook(lambda _gate, given, _out: values.append(gate.value(given[0])))
    with torch.no_grad():
        model(x)
    handle.remove()
    return values[0].mean(0, keepdim=True)


@pytest.mark.parametrize(
    ("kind", "keys"), [(Activated, ACTIVATIONS), (Activated, ["1-3:3x3g1:activation"]), (Gates, GATES)]
)
def test_it_comes_nearer_and_stays_exact(kind: type[nn.Module], keys: list[str], tmp_path: Path) -> None:
    model, net = replaced(kind, *keys)
    out = lm.calibrate(net, pictures(100)).eval()
    x = pictures(60, seed=11)
    assert distance(out, model, x) < 0.8 * distance(net, model, x)
    assert worst(out(x), lm.merge(out)(x)) <= 1e-10
    lm.save(tmp_path, out)
    loaded = lm.load(tmp_path, kind().double().eval())
    assert same_bits(loaded.state_dict(), out.state_dict())
    assert worst(out(x), loaded(x)) <= 1e-12


def test_an_activation_that_is_a_relu_where_it_is_read_is_left_alone() -> None:
    """Hardswish is the identity above 3, and so is ReLU above 0: there is nothing to fit."""
    torch.manual_seed(0)
    first = nn.Conv2d(3, 6, 3)
    assert first.bias is not None
    nn.init.constant_(first.bias, 20.0)
    model = nn.Sequential(first, nn.Hardswish(), nn.Conv2d(6, 4, 3)).eval()
    trace = lm.trace(model, pictures(2).float())
    net = lm.rewrite(trace, [lm.plan(trace, BOTH)["0-1:3x3g1:activation"]]).eval()
    out = lm.calibrate(net, pictures(60).float())
    assert out.surgery.fits == ()
    assert same_bits(out.state_dict(), model.state_dict())


def test_a_gate_that_is_constant_is_replaced_without_loss() -> None:
    model, trace = replaceable.traced(Gates)
    for name in GATES.values():
        grow = model.get_submodule(f"{name}.grow")
        assert isinstance(grow, nn.Conv2d)
        nn.init.zeros_(grow.weight)
    trace = lm.trace(model, pictures(2))
    menu = lm.plan(trace, BOTH)
    net = lm.rewrite(trace, [menu[key] for key in GATES]).eval()
    assert worst(model(pictures(5)), net(pictures(5))) <= 1e-12
    assert worst(model(pictures(5)), lm.merge(lm.calibrate(net, pictures(40)))(pictures(5))) <= 1e-10


def test_gates_are_set_to_their_mean_over_the_images() -> None:
    model, net = replaced(Gates, *GATES)
    x = 1.5 * pictures(50, seed=4)
    out = with_mean_gates(net, x)
    assert out is net
    for name in GATES.values():
        torch.testing.assert_close(net.get_parameter(f"{name}.grow_mean").detach(), gate_mean(model, name, x))
    # Of the gates in one network, calibration keeps those that fold into no conv: there the mean is that of what it fits on.
    out = lm.calibrate(replaced(Gates, "7-9:gate")[1], x)
    fitted = x[[place for place in range(50) if place % 5 != 4]]
    torch.testing.assert_close(out.get_parameter("alone.grow_mean").detach(), gate_mean(model, "alone", fitted))
