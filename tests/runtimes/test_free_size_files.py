"""Files of networks of free size: other runtimes run them at sizes that nobody exported, and agree."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import openvino
import pytest
import torch

import free_sizes
import layermerge as lm
from agreement import tensors, worst
from layermerge.errors import ArtifactError
from solutions import random_solution, randomise

TOLERANCE = 1e-4


def merged(name: str, seed: int = 1) -> Any:
    trace = lm.trace(randomise(free_sizes.build(name), 3), free_sizes.image(), free_size=True)
    return lm.merge(lm.rewrite(trace, random_solution(lm.plan(trace), random.Random(seed))))


@pytest.mark.parametrize("name", ["averaged", "same padding", "pyramid", "unet"])
@pytest.mark.filterwarnings("ignore")
def test_other_runtimes_agree_at_every_size(tmp_path: Path, name: str) -> None:
    net = merged(name)
    target = lm.export(net, tmp_path / "model.onnx", free_sizes.image())
    (image,) = onnx.load(target).graph.input
    batch, channels, *size = image.type.tensor_type.shape.dim
    assert batch.dim_param
    assert channels.dim_value == 3
    assert all(side.dim_param for side in size)
    session = onnxruntime.InferenceSession(str(target), providers=["CPUExecutionProvider"])
    compiled = openvino.Core().compile_model(str(target), "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    for high, wide in free_sizes.sizes(name)[1:4]:
        x = free_sizes.image(high, wide, batch=3)
        with torch.no_grad():
            expected = tensors(net(x))
        there = [torch.from_numpy(array) for array in session.run(None, {image.name: x.numpy()})]
        assert worst(expected, there) <= TOLERANCE, (high, wide)
        found = compiled({image.name: x.numpy()})
        assert worst(expected, [torch.from_numpy(np.array(found[port])) for port in compiled.outputs]) <= TOLERANCE


@pytest.mark.filterwarnings("ignore")
def test_pt2_takes_other_sizes(tmp_path: Path) -> None:
    net = merged("resized")
    again = torch.export.load(lm.export(net, tmp_path / "model.pt2", free_sizes.image())).module()
    x = free_sizes.image(13, 22)
    assert worst(net(x), again(x)) <= 1e-6


def test_a_network_of_free_size_may_be_exported_from_any_size(tmp_path: Path) -> None:
    target = lm.export(merged("plain"), tmp_path / "model.onnx", free_sizes.image(9, 14))
    session = onnxruntime.InferenceSession(str(target), providers=["CPUExecutionProvider"])
    (out,) = session.run(None, {session.get_inputs()[0].name: free_sizes.image(21, 8).numpy()})
    assert out.shape == (2, 4, 21, 8)


@pytest.mark.filterwarnings("ignore")
def test_a_file_that_is_wrong_at_another_size_is_not_left(tmp_path: Path) -> None:
    """Torch's exporter knows pooling to 2x3 only for the size it exports."""
    message = (
        r"^the ONNX \(onnxruntime\) file differs from the module by .* at batch size 1 and size 17x19; not written$"
    )
    with pytest.raises(ArtifactError, match=message):
        lm.export(merged("depthwise"), tmp_path / "model.onnx", free_sizes.image())
    assert list(tmp_path.iterdir()) == []
