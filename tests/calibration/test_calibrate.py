"""Calibrated networks: known answers, every kind of layer, never worse than before, exact when merged, saved and resumed."""

from __future__ import annotations

import copy
import json
import pickle
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree
from torch.utils.data import DataLoader, TensorDataset

import layermerge as lm
import zoo
from agreement import call, same_bits, same_outputs, tensors, worst
from layermerge.calibration.fits import Effort
from layermerge.errors import LayerMergeError
from layermerge.surgery.rewrite import RewrittenModule
from solutions import random_solution
from zoo_registry import random_tensor

KEY = "0-2:5x5g1"


def distance(net: nn.Module, original: nn.Module, inputs: Any) -> float:
    with torch.no_grad():
        pairs = zip(tensors(call(net.eval(), inputs)), tensors(call(original.eval(), inputs)), strict=True)
        return sum(float((a - b).square().sum() / b.square().sum()) for a, b in pairs if b.is_floating_point())


def plain(activation: nn.Module, width: int = 8) -> nn.Sequential:
    torch.manual_seed(0)
    first = [nn.Conv2d(3, width, 3, padding=1), activation, nn.Conv2d(width, width, 3, padding=1), nn.ReLU()]
    return nn.Sequential(*first, nn.Conv2d(width, 4, 3, padding=1)).eval()


def rewritten(model: nn.Module, key: str = KEY, side: int = 8) -> RewrittenModule:
    traced = lm.trace(model, random_tensor(2, 3, side, side))
    return lm.rewrite(traced, [lm.plan(traced)[key]]).eval()


# -- known answers


def test_a_range_that_is_linear_already_comes_back_exactly() -> None:
    """1x1 convs without an activation between them: what merges is what was there, so nothing is fitted."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 8, 1), nn.Identity(), nn.Conv2d(8, 4, 1), nn.ReLU(), nn.Conv2d(4, 4, 3)).eval()
    net = rewritten(model, "0-2:1x1g1")
    out = lm.calibrate(net, random_tensor(60, 3, 8, 8))
    assert out.surgery.fits == ()
    assert same_bits(out.state_dict(), net.state_dict())


def test_an_activation_that_never_clips_costs_nothing_but_the_border() -> None:
    """Hardtanh within wide bounds is the identity; valid convs have no border. The merged conv is the two convs."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Hardtanh(-1e6, 1e6), nn.Conv2d(8, 4, 3), nn.ReLU()).eval()
    net = rewritten(model)
    with torch.no_grad():  # so that there is something to find
        for parameter in net.parameters():
            parameter.mul_(1.3)
    x = random_tensor(60, 3, 8, 8, seed=8)
    out = lm.calibrate(net, random_tensor(200, 3, 8, 8))
    assert [fit.form for fit in out.surgery.fits] == ["kernel"]
    assert worst(model(x), out.eval()(x)) < 1e-5
    assert worst(model(x), lm.merge(out)(x)) < 1e-5


def test_what_reads_a_dropped_range_takes_up_scale_and_shift() -> None:
    """The dropped block is a 1x1 that scales and shifts each channel: the conv after it can do that too."""
    torch.manual_seed(0)
    scaling = nn.Conv2d(8, 8, 1, groups=8)
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), scaling, nn.Identity(), nn.Conv2d(8, 4, 3)).eval()
    net = rewritten(model, "1-2:identity")
    x = random_tensor(20, 3, 8, 8, seed=8)
    out = lm.calibrate(net, random_tensor(400, 3, 8, 8))
    assert [(fit.start, fit.end) for fit in out.surgery.fits] == [(2, 3)]
    assert list(out.state_dict()) == list(net.state_dict())
    assert worst(model(x), out.eval()(x)) < 1e-5


# -- every kind of layer

NETWORKS = [
    "plain",
    "functional_relu",
    "dilated",
    "asymmetric",
    "explicit_same_padding",
    "even_same_residual",
    "basic",
    "inverted",
    "functional_residual",
    "depthwise_chain",
    "grouped_chain",
    "unet",
    "time_shifted_block_conv_shortcut",
    "norms_of_every_kind",
    "squeeze_excite",
    "inputs_by_name",
    "two_inputs",
    "dict_output",
]


def batches(name: str, count: int = 2, size: int = 12) -> list[Any]:
    """Different inputs of a zoo network."""
    many = zoo.ZOO[name].inputs(size * count)

    def part(index: int) -> Any:
        rows = slice(size * index, size * (index + 1))
        return pytree.tree_map(lambda leaf: leaf[rows] if isinstance(leaf, Tensor) and leaf.dim() else leaf, many)

    return [part(index) for index in range(count)]


@pytest.mark.parametrize("name", NETWORKS)
def test_networks_of_every_kind_come_nearer_to_their_original(name: str, tmp_path: Path) -> None:
    traced = zoo.traced(name)
    menu, given = lm.plan(traced), batches(name)
    net = lm.rewrite(traced, random_solution(menu, random.Random(1))).eval()
    state = copy.deepcopy(net.state_dict())
    out = lm.calibrate(net, given)
    assert same_bits(net.state_dict(), state)
    before, after = (sum(distance(one, traced.module, batch) for batch in given) for one in (net, out))
    assert after < before or not out.surgery.fits
    merged = lm.merge(out)  # which compares it, region by region
    for form, module in (("rewritten", out), ("merged", merged)):
        lm.save(tmp_path / form, module)
        loaded = lm.load(tmp_path / form, zoo.build(name).eval())
        assert list(loaded.state_dict()) == list(module.state_dict())
        assert same_bits(loaded.state_dict(), module.state_dict())
        assert same_outputs(module, loaded, given[0])
        assert loaded.surgery.fits == out.surgery.fits


@pytest.mark.parametrize("most", [0, 6, 40])
def test_smaller_forms_fit_too_and_stay_one_conv(most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("layermerge.calibration.calibrate.THOROUGH", Effort(most_unknowns=most))
    model = plain(nn.ReLU())
    net, x = rewritten(model), random_tensor(40, 3, 8, 8, seed=8)
    out = lm.calibrate(net, random_tensor(200, 3, 8, 8))
    assert out.surgery.fits[0].form == {0: "affine", 6: "affine", 40: "mixing"}[most]
    assert distance(out, model, x) < distance(net, model, x)
    kernels = {part.kernel_size for part in lm.merge(out).modules() if isinstance(part, nn.Conv2d)}
    assert kernels == {(5, 5), (3, 3)}


def test_targets_behind_an_activation_are_at_least_as_good_as_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = plain(nn.ReLU()), random_tensor(40, 3, 8, 8, seed=8)
    net = rewritten(model)
    found = {}
    for rounds in (0, 2):
        monkeypatch.setattr("layermerge.calibration.calibrate.THOROUGH", Effort(rounds=rounds))
        found[rounds] = distance(lm.calibrate(net, random_tensor(400, 3, 8, 8)), model, x)
    assert found[2] < found[0] < distance(net, model, x)


# -- what comes back


@pytest.mark.parametrize("normed", [True, False])
def test_it_trains_with_a_norm_where_the_network_has_any_and_keeps_the_modes(tmp_path: Path, *, normed: bool) -> None:
    model = plain(nn.ReLU())
    if normed:
        model.append(nn.BatchNorm2d(4).eval())
    net = rewritten(model).train()
    net.get_submodule("4").eval()
    out = lm.calibrate(net, random_tensor(100, 3, 8, 8))
    assert out.training
    assert not out.get_submodule("4").training
    if normed:
        assert isinstance(out.get_submodule("2_norm"), nn.BatchNorm2d)
        assert out.get_submodule("2_norm").training
        assert set(out.state_dict()) >= {"2.weight", "2_norm.weight", "2_norm.running_mean", "4.weight", "4.bias"}
    else:
        assert set(out.state_dict()) == {"2.weight", "2.bias", "4.weight", "4.bias"}
    before = out.state_dict()["2.weight"].clone()
    out(random_tensor(4, 3, 8, 8)).square().sum().backward()
    torch.optim.SGD(out.parameters(), lr=0.1).step()
    assert not torch.equal(out.state_dict()["2.weight"], before)
    lm.merge(out)
    assert json.loads(_saved(tmp_path, out))["fits"][0] == {"start": 0, "end": 2, "form": "kernel"}


def _saved(place: Path, net: nn.Module) -> str:
    lm.save(place, net)
    return (place / "solution.json").read_text()


def test_it_may_be_calibrated_again() -> None:
    model, x = plain(nn.ReLU()), random_tensor(40, 3, 8, 8, seed=8)
    once = lm.calibrate(rewritten(model), random_tensor(200, 3, 8, 8))
    twice = lm.calibrate(once, random_tensor(200, 3, 8, 8, seed=4))
    assert list(twice.state_dict()) == list(once.state_dict())
    assert distance(twice, model, x) < 1.05 * distance(once, model, x)
    lm.merge(twice)


def test_a_calibrated_network_is_fine_tuned_and_resumed_and_exported(tmp_path: Path) -> None:
    torch.manual_seed(0)
    body = [nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 8, 3, padding=1), nn.ReLU()]
    model = nn.Sequential(*body, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 5)).eval()
    data = TensorDataset(random_tensor(80, 3, 8, 8), torch.arange(80) % 5)
    task, recipe = lm.tasks.Classification(data, data), lm.Recipe(steps=9, batch_size=16, lr=0.05)

    def calibrated() -> RewrittenModule:
        return lm.calibrate(rewritten(model), task)

    whole = lm.finetune(calibrated(), task, recipe)

    def stop(epoch: Any) -> None:
        if epoch.step:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        lm.finetune(calibrated(), task, recipe, directory=tmp_path / "run", on_epoch=stop)
    resumed = lm.finetune(calibrated(), task, recipe, directory=tmp_path / "run")
    assert same_bits(whole.state_dict(), resumed.state_dict())
    merged = lm.merge(resumed)
    lm.export(merged, tmp_path / "net.onnx", random_tensor(2, 3, 8, 8))
    assert (tmp_path / "net.onnx").is_file()


# -- images and teachers


def test_images_come_in_every_form() -> None:
    model = plain(nn.ReLU())
    net, x = rewritten(model), random_tensor(100, 3, 8, 8)
    labels = torch.arange(100) % 3
    given: dict[str, Any] = {
        "tensor": x,
        "batches": list(torch.split(x, 16)),
        "a generator": iter(torch.split(x, 16)),
        "a loader": DataLoader(TensorDataset(x, labels), batch_size=16),
        "one image at a time": DataLoader(TensorDataset(x), batch_size=1),
    }
    found = {form: lm.calibrate(net, images).surgery.fits for form, images in given.items()}
    assert len(set(found.values())) == 1
    held = lm.calibrate(net, x, count=50).state_dict()
    assert same_bits(held, lm.calibrate(net, x[:50]).state_dict())


def test_the_teacher_is_remembered_here_and_asked_for_elsewhere(tmp_path: Path) -> None:
    model, x = plain(nn.ReLU()), random_tensor(100, 3, 8, 8)
    net = rewritten(model)
    expected = lm.calibrate(net, x).state_dict()
    assert same_bits(lm.calibrate(copy.deepcopy(net), x).state_dict(), expected)
    traced = lm.trace(model, random_tensor(2, 3, 8, 8))
    for teacher in (model, traced):
        assert same_bits(lm.calibrate(net, x, teacher=teacher).state_dict(), expected)
    lm.save(tmp_path, net)
    loaded = lm.load(tmp_path, plain(nn.ReLU()))
    assert isinstance(loaded, RewrittenModule)
    with pytest.raises(LayerMergeError, match="its original is not known; give it: teacher=model"):
        lm.calibrate(loaded, x)
    assert same_bits(lm.calibrate(loaded, x, teacher=model).state_dict(), expected)
    assert pickle.loads(pickle.dumps(net.surgery)).origin.module is None
    with pytest.raises(LayerMergeError, match="the teacher is of another structure"):
        lm.calibrate(net, x, teacher=plain(nn.ReLU(), width=6))
