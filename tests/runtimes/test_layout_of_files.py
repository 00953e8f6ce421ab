"""A file does not depend on the memory layout that its network was trained in."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import onnx
import torch
from torch import nn

import layermerge as lm


def operators(path: Path) -> Counter[str]:
    return Counter(node.op_type for node in onnx.load(path).graph.node)


def network() -> nn.Module:
    head = (nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 5))
    return nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.ReLU6(), *head).eval()


def test_channels_last_leaves_no_trace_in_a_file(tmp_path: Path) -> None:
    x, net = torch.randn(2, 3, 8, 8), network()
    usual = lm.export(net, tmp_path / "usual.onnx", x)
    laid_out = net.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    last = lm.export(laid_out, tmp_path / "last.onnx", x)
    assert operators(last) == operators(usual)
    weight = net.get_parameter("0.weight")
    assert weight.is_contiguous(memory_format=torch.channels_last)  # the network itself stays as it was
