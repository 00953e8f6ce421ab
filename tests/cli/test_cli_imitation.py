"""Images without labels, from the command line and from Python: a network like a detector is compressed, served, reported."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
import yaml
from torch import Tensor

import layermerge as lm
import tiny_detector
import tiny_runs
from command_line import Run, document, one_line
from layermerge.errors import RecipeError, TableError
from layermerge.runs.data_recipe import DataRecipe
from layermerge.runs.directory import RunDirectory
from layermerge.tables.executors import LocalProcesses
from layermerge.tasks.base import Task

MODEL = ("--model", "python:tiny_detector:network_and_inputs", "--images", "photos")
SHORT = {
    "importance.steps": 2,
    "importance.batch_size": 8,
    "finetune.steps": 4,
    "finetune.batch_size": 8,
    "data.crop_pct": 1.0,
    "runtime": "priced",
}
FLAGS = (*MODEL, "--budget", "70%", *(word for key, value in SHORT.items() for word in ("--set", f"{key}={value}")))


@pytest.fixture(scope="module", autouse=True)
def _runtimes() -> Iterator[None]:
    with tiny_runs.priced_runtimes():
        yield


@pytest.fixture(autouse=True)
def _photos(run: Run) -> None:
    del run
    tiny_detector.write_folder(Path("photos"))


def seen(task: Task, test: bool) -> Any:
    """The images that a task shows a network."""
    shown: list[Tensor] = []

    class Watching(tiny_detector.Detector):
        def forward(self, x: Tensor) -> dict[str, Any]:
            shown.append(x.clone())
            return super().forward(x)

    (task.test if test else task.evaluate)(Watching())
    return torch.cat(shown)


def answers(network: torch.nn.Module, images: Tensor) -> list[Any]:
    """Images x what they are of (places of boxes, classes) x anchors."""
    with torch.no_grad():
        levels = network(images)["levels"]
    return [part.double().numpy() for boxes, scores, _ in levels for part in (boxes.transpose(1, 2), scores.flatten(2))]


def apart(mine: Any, theirs: Any, known: Any) -> float:
    """Images x kinds x anchors: one half of each error counts alike, the other by how unusual the original's answer is."""
    unit, usual = known.var(0, ddof=1).mean(1)[:, None], known.mean(0)

    def unusual(said: Any) -> Any:
        return ((said - usual) ** 2 / unit).mean(1)

    scale = (unusual(known) * (1 + unusual(known)) / 2).mean() / unusual(known).mean()
    error = ((mine - theirs) ** 2 / unit).mean(1)
    return float((error * (1 + unusual(theirs)) / 2).mean() / scale)


def test_a_folder_of_images_is_all_that_a_detector_needs(run: Run) -> None:
    (shown,) = json.loads(run("compress", *FLAGS, "--run-dir", "a", "--json").out)
    directory = Path("a/layermerge/70pct/plain")
    stored = json.loads((directory / "result.json").read_text(encoding="utf-8"))
    assert shown["score"] == stored["score"]
    assert stored["score"]["name"] == "distance to the original"
    assert stored["original_score"]["value"] == 0.0
    assert stored["measured_ms"] <= stored["budget_ms"]
    assert stored["convs_after"] < stored["convs_before"]

    # The score is that of the file as somebody else would run it: squared errors in units of the variance over held-out images,
    # of each kind of values, anchors counted by how unusual the original's answers are.
    recipe = yaml.safe_load(Path("a/recipe.yaml").read_text(encoding="utf-8"))
    assert recipe["data"] == {"crop_pct": 1.0, "task": "imitation", "source": "images:photos"}
    original = tiny_detector.network()
    task = DataRecipe(**recipe["data"], size=tiny_detector.SIDE).open(original)
    held_out, test = seen(task, test=False), seen(task, test=True)
    assert (len(held_out), len(test)) == (5, 6)
    known = answers(original, held_out)
    session = onnxruntime.InferenceSession(str(directory / "model.onnx"), providers=["CPUExecutionProvider"])
    served = session.run(None, {session.get_inputs()[0].name: test.numpy()})
    floats = [said.astype(np.float64) for said in served if said.dtype == np.float32]
    kinds = [said.transpose(0, 2, 1) if said.ndim == 3 else said.reshape(*said.shape[:2], -1) for said in floats]
    expected = np.mean([apart(*said) for said in zip(kinds, answers(original, test), known, strict=True)])
    assert stored["score"]["value"] == pytest.approx(expected, rel=1e-4)

    # Nothing is done again, and verbs need no more than the directory.
    before = tiny_runs.contents(Path("a"))
    again = run("compress", *FLAGS, "--run-dir", "a")
    assert again.code == 0, again.err
    assert tiny_runs.contents(Path("a")) == before
    (line,) = [line for line in again.out.splitlines() if line.startswith("distance to the original")]
    assert re.match(r"distance to the original +0 ", line)
    assert "6 test images" in line
    assert document(run("finetune", "a", "--allow-python", "--json"))["70%"]["score"] <= 0
    exported = document(run("export", "a", "--allow-python", "--to", "fast.onnx", "--json"))
    assert exported["score"] == stored["score"]["value"]
    assert run("importance", "a", "--allow-python").code == 0
    assert run("solve", "a").code == 0
    compared = run("compare", *FLAGS, "--run-dir", "a", "--method", "layermerge")
    assert compared.code == 0, compared.err
    written = Path("a/comparison-plain.md").read_text(encoding="utf-8")
    rows = [line.split("|") for line in written.splitlines() if line.startswith(("| layermerge | 70%", "| original |"))]
    assert [math.isfinite(float(row[6])) for row in rows] == [True, True]
    assert "distance to the original 0.0000 [0.0000, 0.0000] on 6" in written
    assert "distance to the original 0, " in compared.out
    assert "nan" not in compared.out.lower()
    assert run("report", "a").code == 0
    assert "distance to the original" in Path("a/report.html").read_text(encoding="utf-8")


def test_python_takes_images_instead_of_a_task(run: Run) -> None:
    """A folder is noted for the verbs; its images are of the size that the model says. Rows are the same from two processes."""
    del run
    model = tiny_detector.network()
    own = {"input_size": (3, 12, 12), "mean": (0, 0, 0), "std": (1, 1, 1), "crop_pct": 1.0}
    vars(model)["pretrained_cfg"] = own  # as timm's models have
    settings = tiny_runs.settings()
    result = lm.compress(model, images="photos", budget="70%", run_dir="a", settings=settings)
    assert result.report.score.name == "distance to the original"
    assert result.module(tiny_detector.images()[:2])["levels"][0][0].shape == (2, 144, 4)
    assert yaml.safe_load(Path("a/recipe.yaml").read_text(encoding="utf-8"))["data"]["source"] == "images:photos"

    task = DataRecipe.of_images("photos").open(model)
    trace = lm.trace(model, task.example_inputs())
    two = LocalProcesses(2)
    table = lm.measure_importance(trace, lm.plan(trace), task, recipe=settings.importance, path="b.jsonl", executor=two)
    rows = [json.loads(line) for line in Path("a/importance.jsonl").read_text(encoding="utf-8").splitlines()[1:]]
    scored = {row["key"]: row["value"] for row in rows if row["status"] == "ok"}
    assert len(scored) > 3
    assert scored == {key: table[key].value for key in scored}
    with pytest.raises(TableError, match=r"task.data_fingerprint"):
        lm.compress(model, images=tiny_detector.images(), budget="70%", run_dir="a", settings=settings)


# -- what does not fit


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--data", "cifar10:here"), "--data and --images both say on which images; give one of them"),
        (("--images", "empty"), "'empty' has no images"),
        (("--images", "nowhere"), "'nowhere' does not exist; give a folder of images"),
        (("--images", "few"), "9 images are too few to imitate with; give at least 20"),
        (("--set", "data.condition=labels"), "noise and condition are for diffusion"),
        (("--input", "1x12x12"), "input is 1x12x12, but the images of images:photos come as 3x12x12"),
        (("--model", "python:tiny_detector:unhelpful"), "without any floating-point tensor"),
    ],
)
def test_what_does_not_fit_is_one_line(run: Run, flags: tuple[str, ...], words: str) -> None:
    Path("empty").mkdir()
    tiny_detector.write_folder(Path("few"), count=9)
    assert words in one_line(run("compress", *FLAGS, "--run-dir", "a", *flags))


def test_images_take_the_size_that_the_input_says(run: Run) -> None:
    planned = run("plan", MODEL[1], "--images", "photos", "--input", "3x10x14", "--run-dir", "a", "--json")
    assert planned.code == 0, planned.err
    assert RunDirectory(Path("a")).read_plan().shapes == ((3, 10, 14),)


def test_labels_are_asked_for_where_they_are_needed(run: Run) -> None:
    Path("mine.yaml").write_text("data: {task: classification, source: 'images:photos'}", encoding="utf-8")
    said = one_line(run("compress", "mine.yaml", "--model", MODEL[1]))
    assert "data: images:photos has no labels, which classification needs; set task: imitation" in said
    for given in ({}, {"task": tiny_runs.task(), "images": tiny_detector.images()}):
        with pytest.raises(RecipeError, match="compress takes either a task or images; give one of them"):
            lm.compress(tiny_detector.network(), **given)  # type: ignore[arg-type]
