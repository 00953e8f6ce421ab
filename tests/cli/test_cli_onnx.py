"""An ONNX file and a folder of images in, a faster ONNX file out: no Python model, no labels, no training."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
import yaml
from onnx import helper
from torch import Tensor, nn

import layermerge as lm
import tiny_detector
import tiny_runs
from command_line import Run, one_line
from layermerge.runs.data_recipe import DataRecipe
from onnx_files import answers, exported, graph_file

FLAGS = (
    "--images",
    "photos",
    "--budget",
    "70%",
    "--finetune",
    "none",
    "--set",
    "runtime=priced",
    "--set",
    "data.crop_pct=1.0",
)


class TwoMaps(nn.Module):
    """What a file can return of the detector: boxes and scores of one level."""

    def __init__(self) -> None:
        super().__init__()
        self.detector = tiny_detector.network()
        del self.detector.down

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        parts = self.detector
        x = torch.relu(parts.stem(x))
        boxes, scores, _ = parts._read(torch.relu(x + parts.second(torch.relu(parts.first(x)))))
        return boxes, scores


@pytest.fixture(scope="module", autouse=True)
def _runtimes() -> Iterator[None]:
    with tiny_runs.priced_runtimes():
        yield


@pytest.fixture(autouse=True)
def _photos(run: Run) -> None:
    del run
    tiny_detector.write_folder(Path("photos"))


def write(path: str, axes: Any) -> Any:
    names: Any = {"input_names": ["image in"], "output_names": ["boxes", "scores/0"]}
    example = tiny_detector.images(1)
    exported(TwoMaps().eval(), Path(path), example, new=False, opset=12, dynamic_axes=axes, **names)
    model = onnx.load(path)
    helper.set_model_props(model, {"classes": "a\nb"})
    onnx.save(model, path)
    return model


def ports(values: Any) -> list[Any]:
    return [(each.name, [dim.dim_value or dim.dim_param for dim in each.type.tensor_type.shape.dim]) for each in values]


def test_a_file_of_one_batch_size_becomes_a_faster_file_of_that_size(run: Run) -> None:
    before = write("net.onnx", None)
    (shown,) = json.loads(run("compress", "--model", "onnx:net.onnx", *FLAGS, "--run-dir", "a", "--json").out)
    assert shown["convs_after"] < shown["convs_before"]
    assert shown["original_score"]["value"] == 0.0
    assert 0 < shown["score"]["value"] < 1
    recipe = yaml.safe_load(Path("a/recipe.yaml").read_text(encoding="utf-8"))
    assert recipe["model"] == "onnx:net.onnx"

    # A verb that follows needs the directory alone, and no leave to run code.
    assert run("export", "a", "--to", "fast.onnx", "--budget", "70%").code == 0
    after = onnx.load("fast.onnx")
    assert ports(after.graph.input) == ports(before.graph.input) == [("image in", [1, 3, 12, 12])]
    assert ports(after.graph.output) == ports(before.graph.output)
    assert {each.key: each.value for each in after.metadata_props}["classes"] == "a\nb"

    # The score is that of the file, asked image by image.
    recipe["data"] |= {"size": 12}
    task = DataRecipe(**recipe["data"]).open(lm.from_onnx("net.onnx"))
    session = onnxruntime.InferenceSession("fast.onnx", providers=["CPUExecutionProvider"])

    def served(images: Tensor) -> tuple[Tensor, ...]:
        rows = [session.run(None, {"image in": images[n : n + 1].numpy()}) for n in range(len(images))]
        return tuple(torch.from_numpy(np.concatenate(column)) for column in zip(*rows, strict=True))

    assert task.test(served).value == pytest.approx(shown["score"]["value"], rel=1e-5)


@pytest.mark.slow
def test_free_axes_stay_free(run: Run) -> None:
    free = {0: "n", 2: "high", 3: "wide"}
    axes = {"image in": free, "boxes": {0: "n", 1: "places"}, "scores/0": free}
    before = write("net.onnx", axes)
    said = run("compress", "--model", "onnx:net.onnx", "--input", "3x12x12", *FLAGS, "--run-dir", "a")
    assert said.code == 0, said.err
    (file,) = Path("a").rglob("model.onnx")
    after = onnx.load(file)
    assert ports(after.graph.input) == ports(before.graph.input)
    assert ports(after.graph.output) == [("boxes", ["n", "places", 4]), ("scores/0", ["n", 3, "high", "wide"])]
    x = torch.randn(3, 3, 16, 20)
    assert [each.shape for each in answers(file, x)] == [each.shape for each in answers(Path("net.onnx"), x)]


def test_plan_reads_a_file(run: Run) -> None:
    write("net.onnx", None)
    plan = json.loads(run("plan", "onnx:net.onnx", "--json").out)
    expected = lm.plan(lm.trace(TwoMaps().eval(), tiny_detector.images(2)))
    assert len(plan["candidates"]) == len(expected.candidates)


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--model", "onnx:none.onnx"), "'none.onnx' does not exist; give the path of an .onnx file"),
        (("--model", "onnx:photos"), "'photos' is a folder"),
        (("--model", "onnx:mine.yaml"), "'mine.yaml' is truncated or not an ONNX file"),
        (("--model", "onnx:net.onnx", "--input", "3x16x16"), "input 'image in' is 3x12x12, not 3x16x16"),
        (("--model", "onnx:net.onnx", "--batch", "4"), "the network's file takes batches of 1; set batch_size: 1"),
        (("--model", "onnx:odd.onnx"), "'odd.onnx': operator TopK of node 'best' cannot be read"),
    ],
)
def test_what_does_not_fit_is_one_line(run: Run, flags: tuple[str, ...], words: str) -> None:
    write("net.onnx", None)
    Path("mine.yaml").write_text("model: timm:resnet18", encoding="utf-8")
    best = helper.make_node("TopK", ["x", "k"], ["y", "where"], name="best")
    graph_file(Path("odd.onnx"), [best], {"k": np.array([2])})
    assert words in one_line(run("compress", *flags, *FLAGS, "--run-dir", "a"))
    assert not Path("a").exists()
