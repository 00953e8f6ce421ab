"""Published networks that take images of many sizes, captured with free height and width: exact at sizes nobody traced."""

from __future__ import annotations

import copy
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnxruntime
import pytest
import torch
from torch import Tensor

import layermerge as lm
from agreement import call, tensors, to_double, worst
from layermerge.errors import InputError
from solutions import random_solution, randomise, tame
from sweep.examination import EXACT, ONNX_EXACT
from sweep.networks import all_networks

Size = tuple[int, int]


@dataclass(frozen=True)
class Case:
    """The size that a network is traced at, five that it takes, and one at which its forward() would go another way."""

    traced: int
    sizes: tuple[Size, ...]
    another_way: tuple[Size, str] | None = None


ANY = Case(64, ((64, 64), (65, 97), (128, 33), (51, 80), (128, 111)))
OF_32 = Case(64, ((64, 64), (96, 128), (160, 96), (32, 224), (128, 192)))
"""A map is concatenated with one that was brought to twice its size, five halvings down."""
PYRAMID = Case(128, ((128, 128), (129, 193), (160, 97), (211, 128), (143, 255)))
"""Its coarsest level halves the size seven times."""
CASES = {
    "ultralytics:yolov8n": OF_32,
    "ultralytics:yolo11n": OF_32,
    "smp:Unet, resnet18": ANY,
    "smp:DeepLabV3Plus, resnet18": Case(64, ((64, 64), (96, 128), (80, 112), (48, 208), (144, 64))),
    "torchvision:lraspp_mobilenet_v3_large": ANY,
    "torchvision:fcn_resnet50": ANY,
    "torchvision:deeplabv3_mobilenet_v3_large": ANY,
    "torchvision:retinanet_resnet50_fpn, backbone": PYRAMID,
    "torchvision:fcos_resnet50_fpn, backbone": PYRAMID,
    "torchvision:retinanet_resnet50_fpn, with heads": PYRAMID,
    "diffusers:UNet2DModel": Case(16, ((16, 16), (18, 26), (24, 32), (30, 14), (22, 48))),
    "diffusers:UNet2DConditionModel": Case(
        16,
        ((16, 16), (18, 26), (24, 32), (30, 14), (22, 48)),
        ((17, 24), r"\(H % 2\) == 0: .* unet_2d_condition\.py:\d+ "),
    ),
    "diffusers:AutoencoderKL": Case(32, ((32, 32), (33, 65), (64, 37), (35, 48), (40, 79))),
}


def _resized(inputs: Any, size: Size, batch: int = 2) -> Any:
    """Images of another size; what else a network takes stays."""
    leaves = [torch.randn(batch, leaf.shape[1], *size) if leaf.dim() == 4 else leaf[:batch] for leaf in tensors(inputs)]
    return leaves[0] if isinstance(inputs, Tensor) else tuple(leaves)


def _run_file(path: Path, inputs: Any) -> Sequence[Tensor]:
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    named = {given.name: leaf.numpy() for given, leaf in zip(session.get_inputs(), tensors(inputs), strict=True)}
    return [torch.from_numpy(array) for array in session.run(None, named)]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", CASES)
@torch.no_grad()
def test_published_networks_of_free_size(name: str, tmp_path: Path) -> None:
    case, network = CASES[name], all_networks()[name]
    torch.manual_seed(5)
    model = network.build().eval()
    inputs = _resized(network.example(model), (case.traced, case.traced))
    randomise(model, 3, inputs)
    trace = lm.trace(model, inputs, free_size=True)
    for size in case.sizes:
        given = _resized(inputs, size, batch=1)
        assert worst(tensors(call(model, given)), tensors(call(trace.module, given))) <= 1e-6, size
    if case.another_way is not None:
        size, reason = case.another_way
        with pytest.raises(InputError, match=reason):
            call(trace.module, _resized(inputs, size))

    chosen = random_solution(lm.plan(trace), random.Random(0), max_weights=1_000_000)
    net = lm.rewrite(trace, chosen).eval()
    tame(net, inputs)
    wide = copy.deepcopy(net).double()
    merged = lm.merge(wide)
    for size in case.sizes:
        given = to_double(_resized(inputs, size, batch=1))
        assert worst(tensors(call(wide, given)), tensors(call(merged, given))) <= EXACT, size

    narrow = lm.merge(net)
    path = lm.export(narrow, tmp_path / "model.onnx", inputs)
    for size in case.sizes:
        given = _resized(inputs, size)
        assert worst(tensors(call(narrow, given)), _run_file(path, given)) <= ONNX_EXACT, size
