"""INT8 files: weights have the bits that a processor can multiply without saturating, and files compute what they say."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from layermerge.errors import ArtifactError, RuntimeUnavailable
from layermerge.runtimes.instructions import INSTRUCTIONS, instructions_here, instructions_named, instructions_of
from layermerge.runtimes.int8_file import in_integers, observed_ranges, read_model
from onnx_networks import Array, constants, feeds, model_of, run

X86, VNNI = {"architecture": "x86_64", "avx2": True}, {"avx512_bw": True, "avx512_vnni": True}


@pytest.mark.parametrize(
    ("capabilities", "name", "scheme"),
    [
        (X86, "avx2", "U8S7"),
        (X86 | {"avx512_bw": True}, "avx512_bw", "U8S7"),
        (X86 | VNNI, "avx512_vnni", "U8S8"),
        (X86 | {"avx_vnni": True}, "avx_vnni", "U8S8"),
        (X86 | VNNI | {"amx_int8": True}, "amx_int8", "U8S8"),
        ({"architecture": "arm64", "neon": True, "dot": True}, "dot", "S8S8"),
        ({"architecture": "aarch64", "neon": True, "dot": False}, "neon", "S8S8"),
        ({"architecture": "x86_64", "cpu_name": "new"}, "unknown", "U8S7"),
    ],
)
def test_what_a_processor_has_decides(capabilities: dict[str, Any], name: str, scheme: str) -> None:
    found = instructions_of(capabilities)
    assert (found.name, found.scheme) == (name, scheme)


def test_instructions_are_those_of_this_machine_unless_named() -> None:
    assert instructions_named(None) == instructions_here()
    assert str(instructions_named("avx2")) == "avx2, no VNNI"
    with pytest.raises(RuntimeUnavailable, match="unknown instruction set 'sse9'; choose one of amx_int8, "):
        instructions_named("sse9")


# -- saturation


def saturating_dot(unsigned: Array, signed: Array) -> int:
    """What x86 processors without VNNI compute: products of two pairs are summed in 16 bits, which saturates (vpmaddubsw)."""
    pairs = (unsigned.astype(np.int64) * signed.astype(np.int64)).reshape(-1, 2).sum(1)
    return int(np.clip(pairs, -(1 << 15), (1 << 15) - 1).sum())


@pytest.mark.parametrize(
    ("name", "saturates"), [("avx2", False), ("avx512_bw", False), ("unknown", False), ("avx512_vnni", True)]
)
def test_weights_for_processors_without_vnni_do_not_saturate(name: str, saturates: bool) -> None:
    """The worst case: every input at its end, every weight as large as the largest."""
    conv = nn.Conv2d(4, 2, 2, bias=False)
    with torch.no_grad():
        conv.weight.fill_(1.0)[1].fill_(-0.5)
    images = torch.cat([torch.ones(4, 4, 3, 3), torch.zeros(4, 4, 3, 3)])
    model = model_of(nn.Sequential(conv), images[:1])
    integers = constants(in_integers(model, observed_ranges(model, feeds(model, images)), INSTRUCTIONS[name]))
    weights, inputs = integers["0.weight_quantized"], np.full(16, 255)
    assert weights.dtype == np.int8
    for channel in weights.reshape(2, -1):
        assert (saturating_dot(inputs, channel) != int((inputs * channel.astype(np.int64)).sum())) is saturates


# -- what a file computes


def _scales(values: Array) -> tuple[float, int]:
    """ONNX's asymmetric uint8 by its definition: zero is a number of its own, and both ends are in range."""
    low, high = min(float(values.min()), 0.0), max(float(values.max()), 0.0)
    scale = (high - low) / 255
    return scale, round(-low / scale)


def _faked(values: Array) -> Array:
    scale, zero = _scales(values)
    whole: Array = np.clip(np.rint(values / scale) + zero, 0, 255)
    return (whole - zero) * scale


@pytest.mark.parametrize("groups", [1, 4])
def test_a_conv_computes_what_rounding_by_hand_does(groups: int) -> None:
    """To half a step of the output, to which that is rounded. Weights of seven bits, which every processor multiplies alike."""
    torch.manual_seed(3)
    images = torch.randn(16, 4, 7, 7)
    conv = nn.Conv2d(4, 8, 3, padding=1, groups=groups)
    model = model_of(nn.Sequential(conv), images[:1])
    with torch.no_grad():
        expected = conv(images).numpy()
        steps = conv.weight.abs().amax((1, 2, 3), keepdim=True) / 64
        rounded = (conv.weight / steps).round() * steps
        conv.double().weight.copy_(rounded)
        by_hand = conv(torch.from_numpy(_faked(images.double().numpy()))).numpy()
    actual = run(in_integers(model, observed_ranges(model, feeds(model, images)), INSTRUCTIONS["avx2"]), images)
    step, zero = _scales(expected)
    within = np.clip(by_hand, -zero * step, (255 - zero) * step)
    assert np.abs(actual - within).max() <= 0.52 * step


def test_layers_that_are_left_out_have_the_weights_that_they_had() -> None:
    torch.manual_seed(3)
    images = torch.randn(8, 3, 7, 7)
    model = model_of(nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 4, 3)), images[:1])
    first, second = [node.name for node in model.graph.node if node.op_type == "Conv"]
    ranges = observed_ranges(model, feeds(model, images))
    names = set(constants(in_integers(model, ranges, INSTRUCTIONS["avx2"], left_out=[first])))
    assert {"0.weight", "2.weight_quantized"} <= names
    assert not {"0.weight_quantized", "2.weight"} & names
    assert run(in_integers(model, ranges, INSTRUCTIONS["avx2"], left_out=[first, second]), images) == pytest.approx(
        run(model, images), rel=1e-4, abs=1e-4
    )


def test_what_is_not_onnx_is_refused_in_one_line(tmp_path: Any) -> None:
    (tmp_path / "torn.onnx").write_bytes(b"\x08\x0a\x12")
    (tmp_path / "empty.onnx").write_bytes(b"")
    for name in ("torn", "empty"):
        with pytest.raises(ArtifactError, match=rf"{name}.onnx' (cannot be read as ONNX|is not an ONNX network)"):
            read_model(tmp_path / f"{name}.onnx")
