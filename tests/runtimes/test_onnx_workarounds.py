"""Networks that torch's exporter or onnxruntime would get wrong: their files compute what they compute."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnxruntime
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import layermerge as lm
from agreement import worst

TOLERANCE = 1e-4


class Attending(nn.Module):
    """Attention among the pixels of each row, over as many dimensions as asked for; a mask tells rows apart."""

    mask: Tensor | None

    def __init__(self, dimensions: int, masked: bool) -> None:
        super().__init__()
        self.stem, self.last, self.dimensions = nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(4, 4, 3, padding=1), dimensions
        self.register_buffer("mask", torch.randn(6, 2, 5, 5) if masked else None)

    def tokens(self, x: Tensor) -> Any:
        """(batch, rows, 2 heads, 5 pixels, 2 values); what is ahead of the pixels as one or two for fewer dimensions."""
        found = torch.relu(self.stem(x)).permute(0, 2, 3, 1).reshape(-1, 6, 5, 2, 2).transpose(2, 3)
        return found.flatten(0, 5 - self.dimensions)

    def back(self, mixed: Tensor) -> Any:
        mixed = mixed.reshape(-1, 2, 5, 2).transpose(1, 2).reshape(-1, 6, 5, 4)
        return self.last(mixed.permute(0, 3, 1, 2))

    def forward(self, x: Tensor) -> Any:
        tokens = self.tokens(x)
        return self.back(F.scaled_dot_product_attention(tokens, tokens * 0.5, tokens + 1, attn_mask=self.mask))


@pytest.mark.parametrize(("dimensions", "masked"), [(3, False), (4, False), (5, False), (5, True)])
@pytest.mark.filterwarnings("ignore")
def test_attention_over_any_number_of_dimensions(tmp_path: Path, dimensions: int, masked: bool) -> None:
    """Of which torch's exporter knows four."""
    model = Attending(dimensions, masked).eval()
    net = lm.merge(lm.rewrite(lm.trace(model, torch.randn(2, 3, 6, 5)), []))
    target = lm.export(net, tmp_path / "model.onnx", torch.randn(2, 3, 6, 5))
    session = onnxruntime.InferenceSession(str(target), providers=["CPUExecutionProvider"])
    x = torch.randn(3, 3, 6, 5)
    (found,) = session.run(None, {session.get_inputs()[0].name: x.numpy()})
    with torch.no_grad():
        tokens = model.tokens(x)
        likeness = tokens @ (tokens * 0.5).transpose(-1, -2) / 2**0.5 + (0 if model.mask is None else model.mask)
        expected = model.back(likeness.softmax(-1) @ (tokens + 1))
    assert worst(expected, torch.from_numpy(found)) <= TOLERANCE


class Pooled(nn.Module):
    """Zeros around a map that is negative: they are what max pooling finds there."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(4, 4, 3, padding=1)

    def forward(self, x: Tensor) -> Any:
        return self.second(F.max_pool2d(F.pad(self.first(x) - 3, (0, 1, 0, 1)), 2, 1))


def test_padding_ahead_of_max_pooling_counts_as_zeros(tmp_path: Path) -> None:
    """Which onnxruntime would forget, were it to pad and pool in one step."""
    model, x = Pooled().eval(), torch.randn(3, 3, 6, 5)
    net = lm.merge(lm.rewrite(lm.trace(model, torch.randn(2, 3, 6, 5)), []))
    target = lm.export(net, tmp_path / "model.onnx", torch.randn(2, 3, 6, 5))
    session = onnxruntime.InferenceSession(str(target), providers=["CPUExecutionProvider"])
    (found,) = session.run(None, {session.get_inputs()[0].name: x.numpy()})
    with torch.no_grad():
        assert worst(model(x), torch.from_numpy(found)) <= TOLERANCE
