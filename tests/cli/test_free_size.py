"""`--free-size` on the command line: the flag is in the run from its first verb to its last."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import onnx
import pytest
import torch

import layermerge as lm
import tiny_runs
from agreement import worst
from command_line import Run, document, one_line, write_data, write_recipe

PLANNED = ("plan", "python:tiny:net", "--input", "3x8x8", "--run-dir", "a", "--free-size", "--json")


def free_sides(path: Path) -> list[bool]:
    (image,) = onnx.load(path).graph.input
    return [bool(side.dim_param) for side in image.type.tensor_type.shape.dim]


def test_a_run_of_free_size(run: Run, tmp_path: Path) -> None:
    assert run(*PLANNED).code == 0
    assert json.loads((tmp_path / "a" / "plan.json").read_text())["free_size"] is True
    assert "free_size: true" in (tmp_path / "a" / "recipe.yaml").read_text()
    assert free_sides(tmp_path / "a" / "original.onnx") == [True, False, True, True]


@pytest.fixture
def _priced() -> Iterator[None]:
    with tiny_runs.priced_runtimes():
        yield


@pytest.mark.usefixtures("_priced")
def test_a_whole_run_of_free_size(run: Run, tmp_path: Path) -> None:
    """The file at the end takes images of other sizes, and computes what the network it was merged from does."""
    write_data(tiny_runs.arrays())
    write_recipe(tmp_path / "mine.yaml")
    document(run("compress", "mine.yaml", "--allow-python", "--free-size", "--run-dir", "a", "--json"))
    done = tmp_path / "a" / "layermerge" / "70pct" / "plain"
    assert free_sides(done / "model.onnx") == [True, False, True, True]
    unmerged = lm.load(done / "unmerged", tiny_runs.network()).eval()
    for high, wide in ((12, 12), (17, 23), (9, 30)):
        images = torch.randn(3, 3, high, wide)
        with torch.no_grad():
            expected = unmerged(images)
        served = torch.from_numpy(tiny_runs.served_logits(done / "model.onnx", images.numpy()))
        assert worst(expected, served) <= 1e-4, (high, wide)


def test_without_the_flag_sizes_are_fixed(run: Run, tmp_path: Path) -> None:
    assert run(*PLANNED[:-2], "--json").code == 0
    assert free_sides(tmp_path / "a" / "original.onnx") == [True, False, False, False]


def test_a_run_of_fixed_size_does_not_go_on_with_free_sizes(run: Run) -> None:
    assert run(*PLANNED[:-2], "--json").code == 0
    assert one_line(run(*PLANNED)) == (
        "error: 'a' holds a run that fixes height and width; give another run directory, or trace as it did"
    )


@pytest.mark.parametrize("verb", ["plan", "compress", "compare", "importance", "finetune", "export"])
def test_verbs_that_take_an_input_shape_take_the_flag(run: Run, verb: str) -> None:
    assert "--free-size" in run(verb, "--help").out
