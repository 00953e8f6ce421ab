"""Biases: the shift of every channel is what rounding really does, image by image and place by place; and it is taken back."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from layermerge.quantization.biases import rounded_weights, shifts_of, with_shifts_taken_back
from layermerge.quantization.tensors import relative_loss
from layermerge.runtimes.instructions import INSTRUCTIONS
from layermerge.runtimes.int8_file import in_integers, observed_ranges
from onnx_networks import constants, feeds, model_of, run

IMAGES = torch.rand(30, 4, 11, 9, generator=torch.Generator().manual_seed(0))

CONVS: dict[str, dict[str, Any]] = {
    "plain": {"kernel_size": 3},
    "padded": {"kernel_size": 3, "padding": (1, 2)},
    "strided": {"kernel_size": 3, "padding": 1, "stride": (2, 1)},
    "dilated": {"kernel_size": 3, "padding": 2, "dilation": 2},
    "grouped": {"kernel_size": 3, "padding": 1, "groups": 2},
    "depthwise": {"kernel_size": 5, "padding": 2, "groups": 4},
}


def integers_of(model: Any) -> Any:
    return in_integers(model, observed_ranges(model, feeds(model, IMAGES)), INSTRUCTIONS["avx2"])


@pytest.mark.parametrize("name", CONVS)
def test_the_shift_of_a_conv_is_that_of_all_images_and_places(name: str) -> None:
    torch.manual_seed(2)
    conv = nn.Conv2d(4, 8, **CONVS[name])
    model = model_of(nn.Sequential(conv), IMAGES[:1])
    integers = integers_of(model)
    (shift,) = shifts_of(model, integers, feeds(model, IMAGES)).values()
    rounded = torch.from_numpy(_rounded_by_hand(integers, "0.weight"))
    conv.double()
    with torch.no_grad():
        exact = conv(IMAGES.double())
        conv.weight.copy_(rounded)
        expected = (conv(IMAGES.double()) - exact).mean((0, 2, 3)).numpy()
    assert np.abs(shift - expected).max() <= 1e-6 * np.abs(expected).max()


def _rounded_by_hand(integers: Any, name: str) -> Any:
    """ONNX's definition of DequantizeLinear along axis 0."""
    values = constants(integers)
    whole, scale = values[f"{name}_quantized"].astype(np.float64), values[f"{name}_scale"].astype(np.float64)
    assert not values[f"{name}_zero_point"].any()
    return whole * scale.reshape(-1, *[1] * (whole.ndim - 1))


def test_rounded_weights_are_within_half_a_step() -> None:
    torch.manual_seed(2)
    model = model_of(nn.Sequential(nn.Conv2d(4, 8, 3)), IMAGES[:1])
    integers = integers_of(model)
    weight = constants(model)["0.weight"]
    steps = np.abs(weight).reshape(8, -1).max(1) / 64
    off = np.abs(rounded_weights(integers)["0.weight"] - weight).reshape(8, -1).max(1)
    assert (off <= steps * 0.5001).all()


class Headed(nn.Module):
    """A linear layer behind the mean of a map; one conv has no bias."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(4)
        self.conv, self.head = nn.Conv2d(4, 16, 3, bias=False), nn.Linear(16, 5)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.conv(x).relu().mean((2, 3)))
        return out


def test_a_linear_layer_and_a_conv_without_a_bias() -> None:
    module = Headed()
    model = model_of(module, IMAGES[:1])
    integers = integers_of(model)
    shifts = shifts_of(model, integers, feeds(model, IMAGES))
    with torch.no_grad():
        mean = module.conv.double()(IMAGES.double()).relu().mean((0, 2, 3)).numpy()
    (name,) = [name for name in constants(model) if constants(model)[name].shape == (5, 16)]
    off = rounded_weights(integers)[name] - constants(model)[name]
    (linear,) = [shift for shift in shifts.values() if len(shift) == 5]
    assert np.abs(linear - off @ mean).max() <= 1e-5 * np.abs(linear).max()
    fixed = with_shifts_taken_back(model, shifts)
    corrected = in_integers(fixed, observed_ranges(model, feeds(model, IMAGES)), INSTRUCTIONS["avx2"])
    expected = run(model, IMAGES)
    assert relative_loss([run(corrected, IMAGES)], [expected]) < relative_loss([run(integers, IMAGES)], [expected])
