"""`--free-size` on the command line: the flag is in the run from its first verb to its last."""

from __future__ import annotations

import json
from pathlib import Path

import onnx
import pytest

from command_line import Run, one_line

PLANNED = ("plan", "python:tiny:net", "--input", "3x8x8", "--run-dir", "a", "--free-size", "--json")


def free_sides(path: Path) -> list[bool]:
    (image,) = onnx.load(path).graph.input
    return [bool(side.dim_param) for side in image.type.tensor_type.shape.dim]


def test_a_run_of_free_size(run: Run, tmp_path: Path) -> None:
    assert run(*PLANNED).code == 0
    assert json.loads((tmp_path / "a" / "plan.json").read_text())["free_size"] is True
    assert "free_size: true" in (tmp_path / "a" / "recipe.yaml").read_text()
    assert free_sides(tmp_path / "a" / "original.onnx") == [True, False, True, True]


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
