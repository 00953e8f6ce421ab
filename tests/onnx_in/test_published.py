"""Published networks in files of torch's old and new exporter: they give the candidates that they gave before."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import layermerge as lm
from layermerge.models import load_model
from onnx_files import answers, exported, settled

SIDE = 64


@dataclass(frozen=True)
class Exported:
    """A network, by which exporter and to which version of operators; `fixed` leaves no axis free."""

    name: str
    new: bool
    opset: int
    fixed: bool = False

    def __str__(self) -> str:
        return f"{self.name} {'new' if self.new else 'old'}-{self.opset}{' fixed' if self.fixed else ''}"


QUICK = [Exported("timm:test_resnet", False, 11), Exported("timm:test_efficientnet", True, 18)]
BATCH_NORMED = [
    Exported("timm:resnet18", False, 11),
    Exported("timm:resnet18", True, 18),
    Exported("timm:resnet18", False, 13, fixed=True),
    Exported("timm:resnet50", True, 20),
    Exported("timm:resnetv2_50d", False, 12),
    Exported("timm:mobilenetv3_small_100", False, 11),
    Exported("timm:mobilenetv3_small_100", False, 14, fixed=True),
    Exported("timm:mobilenetv3_small_100", True, 19),
    Exported("timm:efficientnet_b0", False, 12),
    Exported("timm:tf_efficientnet_lite0", False, 15),
    Exported("timm:regnety_002", False, 16),
    Exported("timm:ghostnet_050", False, 17),
    Exported("timm:repvgg_a0", False, 13),
    Exported("timm:lcnet_050", True, 18),
    Exported("timm:hardcorenas_a", False, 18),
    Exported("timm:cspresnet50", False, 16),
    Exported("timm:dla34", False, 13),
    Exported("timm:selecsls42", False, 20),
    Exported("timm:skresnet18", False, 13),
    Exported("timm:densenet121", False, 15),
    Exported("torchvision:mobilenet_v2", False, 12),
    Exported("torchvision:shufflenet_v2_x0_5", False, 11),
    Exported("torchvision:shufflenet_v2_x0_5", True, 18),
    Exported("torchvision:mnasnet0_5", True, 18),
    Exported("torchvision:regnet_y_400mf", False, 14),
    Exported("torchvision:googlenet?aux_logits=false", False, 13),
]
OTHERS = [
    Exported("timm:convnext_atto", False, 17),
    Exported("timm:convnext_atto", True, 20),
    Exported("torchvision:squeezenet1_1", False, 11),
    Exported("timm:resnetv2_50d_gn", False, 13),
]
"""Without BatchNorm; their norms are decomposed in places, so that their numbers need not be the same."""


def candidates(model: nn.Module) -> list[Any]:
    plan = lm.plan(lm.trace(model, torch.randn(2, 3, SIDE, SIDE)))
    return sorted((each.start, each.end, len(each.kept), str(each.spec)) for each in plan.candidates)


def read(case: Exported, folder: Path) -> tuple[nn.Module, nn.Module]:
    """The network and what its file is read as, which computes what onnxruntime computes on the file."""
    torch.manual_seed(0)
    original = settled(load_model(case.name).module)
    how = {"dynamic_axes": None} if case.fixed else {}
    example = torch.randn(1 if case.fixed else 2, 3, SIDE, SIDE)
    file = exported(original, folder / "a.onnx", example, new=case.new, opset=case.opset, **how)
    network = lm.from_onnx(file)
    with torch.no_grad():
        mine = network(example)
    (theirs,) = answers(file, example)
    assert abs(mine.numpy() - theirs).max() <= 1e-4 * abs(theirs).max()
    return original, network


def compare(case: Exported, folder: Path) -> None:
    original, network = read(case, folder)
    assert candidates(network) == candidates(original)


@pytest.mark.parametrize("case", QUICK, ids=str)
def test_a_network_of_each_exporter(case: Exported, tmp_path: Path) -> None:
    compare(case, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("case", BATCH_NORMED, ids=str)
def test_candidates_are_those_of_the_network_that_was_exported(case: Exported, tmp_path: Path) -> None:
    compare(case, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("case", OTHERS, ids=str)
def test_networks_without_batch_norm_give_candidates(case: Exported, tmp_path: Path) -> None:
    _, network = read(case, tmp_path)
    assert candidates(network)


# -- files that others made; DATA in the variable is a folder that holds them

REAL = {
    "common_det.onnx": ((3, 416, 416), 83, 250),
    "ch_PP-OCRv4_det_infer.onnx": ((3, 320, 320), 62, 400),
    "ch_PP-OCRv4_rec_infer.onnx": ((3, 48, 320), 38, 500),
    "ch_ppocr_mobile_v2.0_cls_infer.onnx": ((3, 48, 192), 53, 120),
}
"""From the packages ddddocr 1.6.1 and rapidocr_onnxruntime 1.4.4: the shape to plan for, convs, and fewest candidates."""
FOLDER = os.environ.get("LAYERMERGE_ONNX_FILES")


@pytest.mark.slow
@pytest.mark.skipif(FOLDER is None, reason="LAYERMERGE_ONNX_FILES names no folder with them")
@pytest.mark.parametrize("name", REAL)
def test_files_of_other_exporters_give_candidates(name: str) -> None:
    shape, convs, fewest = REAL[name]
    traced = lm.trace(lm.from_onnx(Path(FOLDER or "") / name, shape), torch.randn(2, *shape))
    assert len(traced.layers) == convs
    assert len(lm.plan(traced).candidates) >= fewest
