"""Running statistics taken anew are those of what the network computes."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import layermerge as lm
from layermerge.calibration.norms import follow, read_by_norms, settle_norms
from layermerge.calibration.sample import Sample
from layermerge.calibration.trials import Trials
from layermerge.calibration.walk import Walk
from layermerge.surgery.rewrite import RewrittenModule
from layermerge.tasks.base import relative_error
from layermerge.tracing.inputs import Inputs


def test_statistics_are_those_of_the_images() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 6, 3), nn.BatchNorm2d(6), nn.ReLU(), nn.Conv2d(6, 4, 3), nn.BatchNorm2d(4)
    ).eval()
    images = torch.randn(64, 3, 10, 10) * 3 + 1
    net = lm.rewrite(lm.trace(model, images[:2]), [])
    settle_norms(net, images, 64)
    fitted = images[torch.arange(64) % 5 != 4]  # every fifth is held out
    with torch.no_grad():
        maps = model[0](fitted)
        first: nn.BatchNorm2d = net.get_submodule("1")  # type: ignore[assignment]
        assert first.running_mean is not None
        assert first.running_var is not None
        assert torch.allclose(first.running_mean, maps.mean((0, 2, 3)), atol=1e-5)
        assert torch.allclose(first.running_var, maps.var((0, 2, 3)), rtol=1e-4)
        # The second reads what the first gives in training, normalised by the images themselves.
        again = (maps - maps.mean((0, 2, 3), keepdim=True)) / (
            maps.var((0, 2, 3), correction=0, keepdim=True) + 1e-5
        ).sqrt()
        deeper = model[3](torch.relu(again))
        second: nn.BatchNorm2d = net.get_submodule("4")  # type: ignore[assignment]
        assert second.running_mean is not None
        assert torch.allclose(second.running_mean, deeper.mean((0, 2, 3)), atol=1e-4)
    assert not net.training


def of_another_kind(count: int = 24) -> Tensor:
    """Images whose statistics are not those that the network was trained on."""
    return torch.randn(count, 3, 10, 10, generator=torch.Generator().manual_seed(7)) * 4 + 3


def with_norms() -> nn.Sequential:
    torch.manual_seed(3)
    blocks = [
        (nn.Conv2d(inside, 6, 3, padding=1, bias=False), nn.BatchNorm2d(6), nn.ReLU()) for inside in (3, 6, 6, 6, 6)
    ]
    model = nn.Sequential(*(part for block in blocks for part in block), nn.Conv2d(6, 4, 1))
    for _ in range(30):
        model.train()(torch.randn(32, 3, 10, 10))
    return model.eval()


def norms_of(net: RewrittenModule) -> dict[str, nn.BatchNorm2d]:
    return {name: part for name, part in net.named_modules() if isinstance(part, nn.BatchNorm2d)}


def test_a_network_that_nothing_has_changed_stays_as_it_is_on_images_of_any_kind() -> None:
    traced = lm.trace(with_norms(), of_another_kind()[:2])
    net, original = lm.rewrite(traced, []).eval(), traced.module.eval()
    batches = [Inputs((part,), {}) for part in torch.split(of_another_kind(), 8)]
    before = follow(norms_of(net), Walk(net, batches, 0), read_by_norms(original, Walk(original, batches, 0)))
    assert len(before) == 15, "mean, variance and count of five"
    for buffer, value in before.items():
        torch.testing.assert_close(buffer, value, rtol=1e-5, atol=1e-6)


def test_what_a_norm_gives_has_the_moments_of_the_original() -> None:
    model, images = with_norms(), of_another_kind()
    traced = lm.trace(model, images[:2])
    net, original = lm.rewrite(traced, []).eval(), traced.module.eval()
    batches = [Inputs((images,), {})]
    theirs = read_by_norms(original, Walk(original, batches, 0))
    with torch.no_grad():
        net.get_submodule("0").weight.mul_(-1.7)  # type: ignore[operator]
        follow(norms_of(net), Walk(net, batches, 0), theirs)
        given: dict[str, list[Tensor]] = {}
        for module in (net, original):
            for name in ("1", "4", "7", "10", "13"):
                module.get_submodule(name).register_forward_hook(
                    lambda _, __, out, name=name: given.setdefault(name, []).append(out)
                )
            module(images)
    for mine, wanted in given.values():
        assert not torch.allclose(mine, wanted, atol=0.1)
        torch.testing.assert_close(mine.mean((0, 2, 3)), wanted.mean((0, 2, 3)), rtol=1e-3, atol=1e-4)
        torch.testing.assert_close(mine.var((0, 2, 3)), wanted.var((0, 2, 3)), rtol=1e-3, atol=1e-4)


def test_a_small_change_is_a_small_divergence_on_images_of_any_kind() -> None:
    """Statistics of these images in place of those of the training moved every candidate as far as the images are off."""
    model = with_norms()
    with torch.no_grad():  # so that dropping it changes hardly anything
        conv, norm = model[3], model[4]
        assert isinstance(conv, nn.Conv2d)
        nn.init.dirac_(conv.weight)
        norm.load_state_dict(nn.BatchNorm2d(6).state_dict())
    images = of_another_kind(40)
    traced = lm.trace(model, images[:2])
    sample = Sample((Inputs((images[:16],), {}), Inputs((images[16:24],), {})), (Inputs((images[24:32],), {}),), 32)
    trials = Trials(traced.module.eval(), sample, [Inputs((images[32:],), {})], relative_error)
    found = trials.divergence(lm.rewrite(traced, [lm.plan(traced)["1-2:identity"]]))
    assert float(found.mean()) == pytest.approx(0.0, abs=1e-4)
