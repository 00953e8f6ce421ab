"""The command line's `merge` and `export`: end to end on a tiny network, and every refusal in one line."""

from __future__ import annotations

import random
import re
from pathlib import Path
from typing import Any

import onnxruntime
import pytest
import torch
from safetensors.torch import load_file

import layermerge as lm
from agreement import worst
from command_line import Run, document, one_line
from layermerge.models import load_model
from solutions import random_solution


def tiny() -> Any:
    return load_model("python:tiny:net").module


@pytest.fixture
def saved(run: Run, tmp_path: Path) -> Any:
    """A rewritten network in the directory `a`, as fine-tuning leaves it."""
    del run
    traced = lm.trace(tiny(), torch.randn(2, 3, 8, 8))
    (whole,) = [entry for entry in lm.plan(traced).candidates if entry.kept == ("0", "2", "4")]
    net = lm.rewrite(traced, [whole]).eval()
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.add_(0.05 * torch.randn(parameter.shape))
    lm.save(tmp_path / "a", net)
    return net


def test_merge(run: Run, saved: Any, tmp_path: Path) -> None:
    facts = document(run("merge", "a", "--model", "python:tiny:net", "--json"))
    assert facts == {"convs_before": 3, "convs_after": 1, "saved_to": "a/merged"}
    assert {path.name for path in (tmp_path / "a/merged").iterdir()} == {
        "plan.json",
        "solution.json",
        "model.safetensors",
    }
    x = torch.randn(3, 3, 8, 8)
    with torch.no_grad():
        assert worst(saved(x), lm.load("a/merged", tiny())(x)) <= 1e-5


@pytest.mark.usefixtures("saved")
def test_merge_into_another_directory_says_what_became_of_it(run: Run, tmp_path: Path) -> None:
    result = run("merge", "a", "--model", "python:tiny:net", "--out", "elsewhere")
    assert (result.code, result.err) == (0, "")
    lines = [line.split() for line in result.out.splitlines()]
    assert ["convolutions", "3", "1"] in [line[:3] for line in lines]
    assert ["layermerge", "export", "elsewhere", "--to", "fast.onnx"] in [line[:5] for line in lines]
    assert lm.load(tmp_path / "elsewhere", tiny())


@pytest.mark.usefixtures("saved")
def test_merging_a_merged_network_again_changes_nothing(run: Run, tmp_path: Path) -> None:
    run("merge", "a", "--model", "python:tiny:net")
    facts = document(run("merge", "a/merged", "--model", "python:tiny:net", "--out", "b", "--json"))
    assert (facts["convs_before"], facts["convs_after"]) == (1, 1)
    first, second = (load_file(tmp_path / place / "model.safetensors") for place in ("a/merged", "b"))
    assert first.keys() == second.keys()
    assert all(torch.equal(first[key], second[key]) for key in first)


def test_export_merges_first(run: Run, saved: Any, tmp_path: Path) -> None:
    facts = document(run("export", "a", "--model", "python:tiny:net", "--json"))
    assert facts == {
        "convs": 1,
        "exported_to": "a/model.onnx",
        "bytes": (tmp_path / "a/model.onnx").stat().st_size,
    }
    session = onnxruntime.InferenceSession("a/model.onnx", providers=["CPUExecutionProvider"])
    x = torch.randn(5, 3, 8, 8)
    (actual,) = session.run(None, {session.get_inputs()[0].name: x.numpy()})
    with torch.no_grad():
        assert worst(saved(x), torch.from_numpy(actual)) <= 1e-4


@pytest.mark.parametrize("name", ["weights.safetensors", "program.pt2"])
def test_export_to_a_named_file(run: Run, saved: Any, tmp_path: Path, name: str) -> None:
    result = run("export", "a", "--model", "python:tiny:net", "--to", name)
    assert (result.code, result.err) == (0, "")
    assert re.search(rf"^file +[\d.]+ kB +{re.escape(name)}$", result.out, re.MULTILINE)
    assert re.search(r"^convolutions +1$", result.out, re.MULTILINE)
    if name == "weights.safetensors":
        merged = lm.merge(saved).state_dict()
        stored = load_file(tmp_path / name)
        assert stored.keys() == merged.keys()
        assert all(torch.equal(stored[key], merged[key]) for key in merged)


@pytest.mark.parametrize("verb", ["merge", "export"])
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("absent", "--model", "python:tiny:net"), "plan.json' does not exist; is 'absent' a run directory?"),
        (("a", "--model", "python:zoo:FunctionalRelu"), "was saved from another network than this FunctionalRelu"),
        (("a", "--model", "python:tiny:absent"), "has no callable 'absent'"),
        (("a", "--model", "tiny"), "is not of the form"),
    ],
)
@pytest.mark.usefixtures("saved")
def test_bad_input_is_one_line_and_exit_code_2(
    run: Run,
    tmp_path: Path,
    verb: str,
    arguments: tuple[str, ...],
    message: str,
) -> None:
    before = sorted(path.name for path in tmp_path.rglob("*"))
    line = one_line(run(verb, *arguments))
    assert line.startswith("error: ")
    assert message in line
    left = [path.name for path in tmp_path.rglob("*") if "__pycache__" not in str(path)]
    assert sorted(left) == [name for name in before if "pyc" not in name]


@pytest.mark.usefixtures("saved")
def test_exporting_again_replaces_the_file(run: Run, tmp_path: Path) -> None:
    assert document(run("export", "a", "--model", "python:tiny:net", "--json"))["convs"] == 1
    before = (tmp_path / "a/model.onnx").read_bytes()
    lm.save(tmp_path / "a", lm.rewrite(lm.trace(tiny(), torch.randn(2, 3, 8, 8)), []))
    assert document(run("export", "a", "--model", "python:tiny:net", "--json"))["convs"] == 3
    assert (tmp_path / "a/model.onnx").read_bytes() != before


@pytest.mark.usefixtures("saved")
def test_a_bad_suffix(run: Run, tmp_path: Path) -> None:
    line = one_line(run("export", "a", "--model", "python:tiny:net", "--to", "model.tflite"))
    assert line == "error: cannot export to 'model.tflite'; give a name that ends in .onnx, .pt2, .safetensors"
    assert not (tmp_path / "model.tflite").exists()


@pytest.mark.usefixtures("saved")
def test_torn_weights(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "a/model.safetensors"
    path.write_bytes(path.read_bytes()[:50])
    assert "cannot be read" in one_line(run("merge", "a", "--model", "python:tiny:net"))
    assert not (tmp_path / "a/merged").exists()


@pytest.mark.parametrize("verb", ["merge", "export"])
@pytest.mark.usefixtures("saved")
def test_the_model_must_be_named_where_no_recipe_does(run: Run, verb: str) -> None:
    assert "model: is missing; give it in the recipe or as --model" in one_line(run(verb, "a"))


def test_a_random_solution_of_a_published_network(run: Run, tmp_path: Path) -> None:
    model = load_model("timm:mobilenetv2_050", input_shape=(3, 33, 33)).module.eval()
    traced = lm.trace(model, torch.randn(2, 3, 33, 33))
    lm.save(tmp_path / "b", lm.rewrite(traced, random_solution(lm.plan(traced), random.Random(3))))
    facts = document(run("merge", "b", "--model", "timm:mobilenetv2_050", "--json"))
    assert facts["convs_after"] < facts["convs_before"] <= 52
