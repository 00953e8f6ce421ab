"""Mean gates: a constant a channel in the gate's place, as by hand; folded into the conv beside it; saved, loaded, exported."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import onnxruntime
import pytest
import torch
from torch import Tensor, nn

import layermerge as lm
import replaceable
from agreement import same_bits, worst
from layermerge.models import load_model
from layermerge.surgery.mean_gates import lonely_gates
from layermerge.surgery.rewrite import RewrittenModule
from layermerge.tracing.operators import Role
from replaceable import BOTH, GATES, Gates, pictures, with_means
from solutions import random_solution, randomise


def means_of(net: nn.Module) -> dict[str, Tensor]:
    """By the gate's name, with other values than those they were given."""
    found = {name.removesuffix(".grow_mean"): one for name, one in net.named_parameters() if name.endswith("_mean")}
    with torch.no_grad():
        for parameter in found.values():
            parameter.copy_(torch.rand(parameter.shape) + 0.2)
    return {name: parameter.detach() for name, parameter in found.items()}


def rewritten(trace: lm.Trace, *keys: str) -> RewrittenModule:
    menu = lm.plan(trace, BOTH)
    return lm.rewrite(trace, [menu[key] for key in keys]).eval()


@pytest.mark.parametrize("keys", [[key] for key in GATES] + [list(GATES)])
def test_a_constant_takes_the_place_of_the_gate(keys: list[str]) -> None:
    model, trace = replaceable.traced(Gates)
    assert isinstance(model, Gates)
    net = rewritten(trace, *keys)
    means = means_of(net)
    assert means.keys() == {GATES[key] for key in keys}
    expected = with_means(model, means)(pictures(3))
    assert worst(expected, net(pictures(3))) <= 1e-12
    merged = lm.merge(net)
    assert worst(expected, merged(pictures(3))) <= 1e-10
    # Only the product between an activation and pooling stays.
    assert {name for name in merged.state_dict() if "mean" in name} == {"alone.grow_mean"} & {
        f"{GATES[key]}.grow_mean" for key in keys
    }
    gone = tuple(f"{GATES[key]}.{part}." for key in keys for part in ("reduce", "grow"))
    assert not any(name.startswith(gone) for name in net.state_dict())


def test_it_starts_with_the_gate_of_the_example_inputs() -> None:
    model, trace = replaceable.traced(Gates)
    assert isinstance(model, Gates)
    values: dict[str, Tensor] = {}
    for name in GATES.values():
        gate = model.get_submodule(name)
        gate.register_forward_hook(lambda one, given, _out, name=name: values.update({name: one.value(given[0])}))
    model(trace.inputs.args[0])
    net = rewritten(trace, *GATES)
    for name, value in values.items():
        torch.testing.assert_close(net.get_parameter(f"{name}.grow_mean").detach(), value[:1])


def test_a_product_folds_into_what_is_merged_around_it() -> None:
    """With any choice around it: also where the conv beside it is dropped, merged, or padded with its range."""
    _, trace = replaceable.traced(Gates)
    menu, folded = lm.plan(trace, BOTH), 0
    gates = [menu[key] for key in GATES]
    others = [
        one for one in menu.candidates if not any(one.start < gate.end and gate.start < one.end for gate in gates)
    ]
    menu = replace(menu, candidates=(*others, *gates), rejections=())
    for seed in range(20):
        net = lm.rewrite(trace, random_solution(menu, random.Random(seed))).eval()
        merged = lm.merge(net)
        assert worst(net(pictures(3)), merged(pictures(3))) <= 1e-10
        products = [node for node in merged.graph.nodes if node.meta["role"] is Role.NORM]
        folded += len(net.surgery.gates) - len(products)
    assert folded > 20


def test_only_what_folds_nowhere_is_lonely() -> None:
    _, trace = replaceable.traced(Gates)
    (lonely,) = lonely_gates(trace.structure)
    assert trace.layers[lonely.start].name == "alone.reduce"


@pytest.mark.parametrize("form", ["rewritten", "merged"])
def test_saved_loaded_and_exported_it_stays_the_same(tmp_path: Path, form: str) -> None:
    torch.manual_seed(2)
    trace, x = lm.trace(Gates().eval(), pictures(2).float()), pictures(4).float()
    net = rewritten(trace, *GATES)
    means_of(net)
    net = lm.merge(net) if form == "merged" else net  # type: ignore[assignment]
    lm.save(tmp_path, net)
    loaded = lm.load(tmp_path, Gates().eval())
    assert worst(net(x), loaded(x)) <= 1e-6
    assert same_bits(loaded.state_dict(), net.state_dict())
    if form == "merged":
        lm.export(net, tmp_path / "net.onnx", x)
        session = onnxruntime.InferenceSession(tmp_path / "net.onnx", providers=["CPUExecutionProvider"])
        (given,) = session.get_inputs()
        (out,) = session.run(None, {given.name: x.numpy()})
        assert worst(net(x), torch.from_numpy(out)) <= 1e-5
    else:
        assert worst(lm.merge(loaded)(x), net(x)) <= 1e-5


def test_it_trains() -> None:
    _, trace = replaceable.traced(Gates)
    net = rewritten(trace, *GATES).train()
    net(pictures(3)).square().sum().backward()
    for name in GATES.values():
        gradient = net.get_parameter(f"{name}.grow_mean").grad
        assert gradient is not None
        assert gradient.abs().sum() > 0


def test_a_published_network_loses_all_its_gates() -> None:
    x = torch.randn(2, 3, 64, 64)
    model = randomise(load_model("timm:mobilenetv3_small_050").module.eval(), 1, x).eval()
    trace = lm.trace(model, x)
    menu = lm.plan(trace, BOTH)
    gates = [candidate for candidate in menu.candidates if candidate.replaced == "gate"]
    assert len(gates) == len(trace.structure.gates) == 9
    net = lm.rewrite(trace, gates).eval()
    merged = lm.merge(net)
    assert not any(name.endswith("_mean") for name in merged.state_dict())
    assert worst(net(x), merged(x)) <= 1e-5
    lm.merge(lm.rewrite(trace, random_solution(menu, random.Random(3), max_weights=300_000)))
