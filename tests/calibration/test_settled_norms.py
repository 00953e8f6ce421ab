"""Running statistics taken anew are those of what the network computes."""

from __future__ import annotations

import torch
from torch import nn

import layermerge as lm
from layermerge.calibration.norms import settle_norms


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
