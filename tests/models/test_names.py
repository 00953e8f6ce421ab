"""Models by name: each source's mistakes are one line, and what a library prints stays away from the user."""

from __future__ import annotations

import builtins
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from layermerge.errors import LayerMergeError, MissingPackage, ModelError
from layermerge.models import load_model

SMALL: dict[str, Any] = {
    "_class_name": "UNet2DModel",
    "sample_size": 8,
    "block_out_channels": [8],
    "layers_per_block": 1,
    "norm_num_groups": 2,
    "down_block_types": ["DownBlock2D"],
    "up_block_types": ["UpBlock2D"],
}


def refusal(name: str) -> str:
    with pytest.raises(LayerMergeError) as caught:
        load_model(name)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("name", ["keras:resnet34", "resnet34", "timm:", ":", "", "x" * 5000])
def test_a_name_of_no_source(name: str) -> None:
    line = refusal(name)
    assert "is not of the form timm:..., torchvision:..., diffusers:..., python:..., onnx:..., demo:..." in line
    assert len(line) < 250


@pytest.mark.parametrize(
    "name", ["timm:hf-hub:evil/model", "timm:hf_hub:evil/model", "timm:local-dir:evil", "timm:../evil"]
)
def test_timm_builds_only_architectures_that_it_knows(name: str) -> None:
    """It also takes names of repositories and directories, which choose their own weights."""
    assert "timm has no model" in refusal(name)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "is not a diffusers configuration"),
        ("[" * 100_000, "is not a diffusers configuration"),
        ('{"sample_size": ' + "9" * 5000 + "}", "is not a diffusers configuration"),
        ("[]", "does not name a diffusers model class"),
        ('{"_class_name": "DDPMScheduler"}', "does not name a diffusers model class"),
        (json.dumps(SMALL | {"sample_size": 1_000_000_000}), "are the most that fit"),
        (json.dumps(SMALL | {"in_channels": "many"}), "diffusers cannot build"),
    ],
)
def test_a_configuration_that_builds_no_model(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "config.json"
    path.write_text(text, encoding="utf-8")
    assert message in refusal(f"diffusers:{path}")


@pytest.mark.parametrize("package", ["timm", "torchvision", "diffusers"])
def test_a_library_that_is_not_installed(package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, package, None)  # the import system then says that there is none
    with pytest.raises(
        MissingPackage, match=f"needs {package}, which is not installed; try: pip install 'layermerge.mod"
    ):
        load_model(f"{package}:anything")


# -- the user's own code

MINE = """
import sys
from torch import nn

def leaves():
    sys.exit(3)

def fails():
    raise ValueError("one\\ntwo")

def net():
    return nn.Conv2d(3, 3, 1)
"""


@pytest.fixture
def _mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine.py").write_text(MINE, encoding="utf-8")
    (tmp_path / "leaves.py").write_text("raise SystemExit(0)\n", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    for name in ("mine", "leaves", "sees"):
        monkeypatch.delitem(sys.modules, name, raising=False)


@pytest.mark.usefixtures("_mine")
@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("mine:leaves", "'mine:leaves()' failed: SystemExit: 3"),
        ("mine:fails", "'mine:fails()' failed: ValueError: one"),
        ("leaves:net", "cannot import 'leaves': SystemExit: 0"),
        ("mine:absent", "module 'mine' has no callable 'absent'"),
        ("mine", "is not of the form python:module:callable"),
    ],
)
def test_whatever_the_users_code_raises_is_an_error_of_the_model(name: str, message: str) -> None:
    assert message in refusal(f"python:{name}")


SEES = """
import vision

def net():
    from torch import nn
    return nn.Conv2d(3, 3, 1)
"""

VISION = """
import builtins
import vision.parts

if not builtins.declared:
    raise RuntimeError("operator torchvision::nms does not exist")
assert vision.parts.whole is vision
"""


@pytest.mark.usefixtures("_mine")
def test_a_module_that_imports_torchvision_whose_operators_are_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Imported once more after the operators were declared, with no half-imported package in the way."""
    declared: list[bool] = []
    (tmp_path / "sees.py").write_text(SEES, encoding="utf-8")
    (tmp_path / "vision").mkdir()
    (tmp_path / "vision" / "__init__.py").write_text(VISION, encoding="utf-8")
    (tmp_path / "vision" / "parts.py").write_text("import sys\nwhole = sys.modules['vision']\n")
    monkeypatch.setattr(builtins, "declared", declared, raising=False)
    monkeypatch.setattr("layermerge.models.torchvision_operators._declare_operators", lambda: declared.append(True))
    assert load_model("python:sees:net").module is not None
    assert declared == [True]


def test_what_the_model_is_called_with(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(SMALL), encoding="utf-8")
    sample, times = load_model(f"diffusers:{tmp_path}").example_inputs
    assert (sample.shape, times.shape) == ((2, 3, 8, 8), (2,))
    with pytest.raises(ModelError, match="pass its input shape, for instance --input"):
        _ = load_model("python:torch.nn:Identity").example_inputs
