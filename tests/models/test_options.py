"""Options after a model's name: architectures can be described, files and code cannot be named."""

from __future__ import annotations

import os
from pathlib import Path
from urllib.parse import urlencode

import pytest
import torch

from layermerge.errors import ModelError
from layermerge.models import load_model
from layermerge.models.libraries import _SAFE_TIMM
from layermerge.models.options import parse_options
from layermerge.models.torchvision_operators import import_library


@pytest.mark.parametrize(
    ("text", "options"),
    [
        ("", {}),
        ("num_classes=10&in_chans=1", {"num_classes": 10, "in_chans": 1}),
        ("drop_rate=0.5&drop_path_rate=0.1", {"drop_rate": 0.5, "drop_path_rate": 0.1}),
        ("pretrained=false&features_only=True", {"pretrained": False, "features_only": True}),
        ("global_pool=max&act_layer=silu", {"global_pool": "max", "act_layer": "silu"}),
    ],
)
def test_numbers_booleans_and_known_words(text: str, options: dict[str, object]) -> None:
    assert parse_options(text) == options


@pytest.mark.parametrize("text", ["num_classes", "=3", "num_classes=", "a b=3", "a" * 300 + "=3", "x.y=1"])
def test_what_is_not_an_option(text: str) -> None:
    with pytest.raises(ModelError, match=r"is not of the form \?num_classes=10") as caught:
        parse_options(text)
    assert len(str(caught.value)) < 160


@pytest.mark.parametrize(
    "text",
    ["checkpoint_path=evil.pth", "pretrained_cfg=evil", "pretrained_cfg_overlay={file: evil.pth}", "cache_dir=here"]
    + ["weights=DEFAULT", "weights=true", "weights_backbone=true", "hf_hub_id=a/b", "url=x", "custom_load=evil.pth"]
    + ["checkpoint_path=3", "act_layer2=evil", "out_indices=[1, 2]", "num_classes=many"],
)
def test_what_could_name_a_file_or_load_code_is_refused(text: str) -> None:
    name, _, value = text.partition("=")
    with pytest.raises(ModelError, match=f"option '{name}'"):
        parse_options(urlencode({name: value}))


class Evil:
    """Creates a file when it is unpickled."""

    def __reduce__(self) -> tuple[object, ...]:
        return os.mkdir, ("hacked",)


@pytest.mark.parametrize(
    "option",
    [
        {"checkpoint_path": "evil.pth"},
        {"pretrained": "true", "pretrained_cfg_overlay": "{file: evil.pth}"},
        {"pretrained": "true", "pretrained_cfg": "{file: evil.pth}"},
    ],
)
def test_no_pickle_runs(option: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """timm before 1.0.26 unpickled what these options name."""
    monkeypatch.chdir(tmp_path)
    torch.save({"state_dict": Evil()}, "evil.pth")

    def unpickle(_model: object, path: str, **_: object) -> None:
        torch.load(path, weights_only=False)

    monkeypatch.setattr(import_library("timm").models._factory, "load_checkpoint", unpickle)  # as earlier versions did
    with pytest.raises(ModelError, match="could load files or code"):
        load_model(f"timm:test_resnet?{urlencode(option)}")
    assert not Path("hacked").exists()
    import_library("timm").create_model("test_resnet", checkpoint_path="evil.pth")
    assert Path("hacked").exists(), "the payload is harmless, so this test shows nothing"


def test_weights_are_not_downloaded_by_a_library_that_unpickles_them(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ModelError, match="pretrained is refused; load weights from a file"):
        load_model("torchvision:resnet18?pretrained=true")
    monkeypatch.setattr(import_library("timm"), "__version__", "1.0.20")
    with pytest.raises(
        ModelError, match=r"timm 1\.0\.20 may run code in weights that it downloads; upgrade to 1\.0\.26"
    ):
        load_model("timm:test_resnet?pretrained=true")
    assert load_model("timm:test_resnet?pretrained=false").module


def test_the_project_asks_for_a_timm_that_unpickles_nothing() -> None:
    project = Path(__file__).parents[2] / "pyproject.toml"
    assert f"timm>={_SAFE_TIMM}" in project.read_text(encoding="utf-8")


def test_a_download_that_fails_is_one_line(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(ModelError, match=r"cannot be built: .*; load weights from a file with --weights") as caught:
        load_model("timm:test_resnet?pretrained=true")
    assert "\n" not in str(caught.value)
    assert capfd.readouterr() == ("", "")
