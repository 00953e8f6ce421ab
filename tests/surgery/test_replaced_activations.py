"""Cheaper activations: what is rewritten is the network with ReLUs put in by hand; merged, saved, loaded and exported alike."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import onnxruntime
import pytest
import torch
import torch.nn.functional as F

import layermerge as lm
import replaceable
from agreement import same_bits, worst
from layermerge.errors import SurgeryError
from replaceable import ACTIVATIONS, BOTH, Activated, Linear, pictures, with_relu
from solutions import random_solution

EXACT = 1e-12


@pytest.mark.parametrize("keys", [[key] for key in ACTIVATIONS] + [list(ACTIVATIONS)])
def test_a_relu_stands_behind_the_layer(keys: list[str]) -> None:
    model, trace = replaceable.traced(Activated)
    assert isinstance(model, Activated)
    menu = lm.plan(trace, BOTH)
    rewritten = lm.rewrite(trace, [menu[key] for key in keys]).eval()
    expected = with_relu(model, *(ACTIVATIONS[key] for key in keys))
    assert worst(expected(pictures(3)), rewritten(pictures(3))) <= EXACT
    assert worst(expected(pictures(3)), lm.merge(rewritten)(pictures(3))) <= 1e-10
    assert same_bits(rewritten.state_dict(), model.state_dict())
    # A layer that is kept pads by itself, as before.
    assert all(rewritten.get_submodule(layer.name).padding != (0, 0) for layer in trace.layers if layer.name != "c")


def test_a_relu_stands_behind_a_fused_block() -> None:
    model, trace = replaceable.traced(Activated)
    assert isinstance(model, Activated)
    rewritten = lm.rewrite(trace, [lm.plan(trace, BOTH)["1-3:3x3g1:activation"]]).eval()
    x = model.first(model.norm(model.a(pictures(3))))
    expected = model.fourth(model.d(torch.relu(x + model.c(model.b(x)))))
    assert worst(expected, rewritten(pictures(3))) <= EXACT
    assert worst(expected, lm.merge(rewritten)(pictures(3))) <= 1e-10


@pytest.mark.parametrize("add_activation", [True, False])
def test_a_relu_comes_back_for_what_the_range_lost(add_activation: bool) -> None:
    model, trace = replaceable.traced(Linear)
    assert isinstance(model, Linear)
    chosen = [lm.plan(trace, BOTH)["0-2:3x3g1:activation"]]
    rewritten = lm.rewrite(trace, chosen, add_activation=add_activation).eval()
    merged = F.conv2d(model.e(F.pad(pictures(3), (1, 1, 1, 1))), model.f.weight, model.f.bias)
    expected = model.g(torch.relu(merged) if add_activation else merged)
    assert worst(expected, rewritten(pictures(3))) <= EXACT
    assert worst(expected, lm.merge(rewritten)(pictures(3))) <= 1e-10


@pytest.mark.parametrize("form", ["rewritten", "merged"])
def test_saved_loaded_and_exported_it_stays_the_same(tmp_path: Path, form: str) -> None:
    torch.manual_seed(2)
    trace = lm.trace(Activated().eval(), pictures(2).float())
    menu, x = lm.plan(trace, BOTH), pictures(4).float()
    for seed in range(2):
        chosen = random_solution(menu, random.Random(seed))
        net = lm.rewrite(trace, chosen).eval()
        net = lm.merge(net) if form == "merged" else net  # type: ignore[assignment]
        lm.save(tmp_path / str(seed), net)
        loaded = lm.load(tmp_path / str(seed), Activated().eval())
        assert loaded.surgery.candidates == chosen
        assert worst(net(x), loaded(x)) <= 1e-6
        assert same_bits(loaded.state_dict(), net.state_dict())
        if form == "merged":
            lm.export(net, tmp_path / "net.onnx", x)
            session = onnxruntime.InferenceSession(tmp_path / "net.onnx", providers=["CPUExecutionProvider"])
            (given,) = session.get_inputs()
            (out,) = session.run(None, {given.name: x.numpy()})
            assert worst(net(x), torch.from_numpy(out)) <= 1e-5


def test_it_trains() -> None:
    _, trace = replaceable.traced(Activated)
    net = lm.rewrite(trace, [lm.plan(trace, BOTH)[key] for key in ACTIVATIONS]).train()
    net(pictures(3)).square().sum().backward()
    assert all(parameter.grad is not None for parameter in net.parameters())


def test_a_candidate_that_has_nothing_to_replace_is_refused() -> None:
    _, trace = replaceable.traced(Linear)
    menu = lm.plan(trace)
    for key, reason in (
        ("1-2:3x3g1", "no activation that another could stand in for follows it"),
        ("1-2:identity", "nothing of it is kept, so that no activation of its own follows"),
    ):
        with pytest.raises(SurgeryError, match=rf"^candidate .* is not legal here: {reason}$"):
            lm.rewrite(trace, [replace(menu[key], replaced="activation")])
    with pytest.raises(SurgeryError, match=r"its layers compute no gate, or some of them are kept$"):
        lm.rewrite(trace, [replace(menu["1-2:identity"], replaced="gate")])
