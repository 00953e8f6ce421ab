"""A timm model named on the command line, on a folder of photographs, with the runtime that would serve it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
from PIL import Image
from sklearn.datasets import load_sample_images

from command_line import Run

SIDE = 64
SHORT = {
    "importance.steps": 1,
    "importance.batch_size": 4,
    "finetune.steps": 2,
    "finetune.batch_size": 4,
    "finetune.lr": 0.001,
    "data.size": SIDE,
    "rules.max_kernel": 3,
}


def photographs(folder: Path) -> None:
    """Pieces of two real photographs, a class each, in ImageNet's layout."""
    generator = np.random.default_rng(0)
    for name, picture in zip(("temple", "flower"), load_sample_images().images, strict=True):
        for part, count in (("train", 8), ("val", 4)):
            place = folder / part / name
            place.mkdir(parents=True)
            for number in range(count):
                top, left = (int(generator.integers(0, side - 160)) for side in picture.shape[:2])
                Image.fromarray(picture[top : top + 160, left : left + 160]).save(place / f"{number}.jpg")


@pytest.mark.filterwarnings("default")
@pytest.mark.slow
def test_compress_a_timm_model_on_a_folder_of_photographs(run: Run) -> None:
    photographs(Path("photos"))
    short = [word for key, value in SHORT.items() for word in ("--set", f"{key}={value}")]
    said = run(
        *("compress", "--model", "timm:resnet18", "--data", "imagefolder:photos", "--budget", "70%"),
        *("--input", f"3x{SIDE}x{SIDE}", "--json", *short),
    )
    assert said.code == 0, said.err
    (report,) = json.loads(said.out)
    assert (report["budget"], report["runtime"], report["score"]["count"]) == ("70%", "onnxruntime", 8)
    assert report["convs_after"] < report["convs_before"]
    file = Path("runs/timm-resnet18/layermerge/70pct/plain/model.onnx")
    served = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
    (logits,) = served.run(None, {served.get_inputs()[0].name: np.zeros((2, 3, SIDE, SIDE), np.float32)})
    assert logits.shape == (2, 1000)
