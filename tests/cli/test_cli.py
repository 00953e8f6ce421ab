"""The command line: what it prints, what it exits with, and that every failure is one line."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, NoReturn

import pytest
import torch
from safetensors.torch import save_file

from command_line import SCRIPT, TINY, Result, Run, document, one_line, program
from layermerge import __version__
from layermerge.models import load_model, names
from real_networks import CONDITIONAL_CONFIG

# -- what it prints


def test_json_document_has_the_promised_fields(run: Run) -> None:
    plan = document(run("plan", "python:tiny:net", "--input", "3x8x8", "--json"))
    assert plan["layers"][0] == {
        "name": "0",
        "kernel": [3, 3],
        "stride": [1, 1],
        "groups": 1,
        "irreducible": True,
    }
    fields = {"start", "end", "layers", "kept", "kernel", "stride", "groups", "fixed"}
    assert all(fields <= candidate.keys() for candidate in plan["candidates"])
    (whole,) = [entry for entry in plan["candidates"] if entry["kept"] == ["0", "2", "4"]]
    assert (whole["start"], whole["end"], whole["layers"]) == (0, 3, ["0", "2", "4"])
    assert (whole["kernel"], whole["stride"], whole["groups"], whole["fixed"]) == ([7, 7], [1, 1], 1, False)
    identities = [entry for entry in plan["candidates"] if not entry["kept"]]
    assert {(entry["start"], entry["end"]) for entry in identities} == {(1, 2), (2, 3), (1, 3)}
    assert all(entry["kernel"] is entry["stride"] is entry["groups"] is None for entry in identities)
    assert plan["rejections"] == []


def test_rejections_are_listed(run: Run) -> None:
    plan = document(run("plan", "python:zoo:SharedConv", "--input", "3x8x8", "--json"))
    (rejection,) = plan["rejections"]
    assert (rejection["start"], rejection["end"]) == (0, 2)
    assert "'shared' is called more than once" in rejection["reason"]


def test_table_names_layers_blocks_and_reasons(run: Run) -> None:
    result = run("plan", "python:zoo:SharedConv", "--input", "3x8x8")
    assert result.code == 0
    assert "before" in result.out
    assert "'shared' is called more than once" in result.out
    assert "2 layers, 0 residual blocks" in result.out
    assert result.err == ""


def test_the_model_may_bring_its_own_inputs(run: Run) -> None:
    plan = document(run("plan", "python:tiny:net_and_inputs", "--json"))
    assert [layer["name"] for layer in plan["layers"]] == ["0", "2", "4"]


def test_paper_rules(run: Run) -> None:
    plan = document(run("plan", "timm:resnet34", "--input", "3x64x64", "--rules", "paper", "--json"))
    assert sum(not candidate["fixed"] for candidate in plan["candidates"]) == 150
    assert next(entry["layers"] for entry in plan["candidates"] if entry["fixed"]) == ["conv1"]


@pytest.mark.parametrize(
    ("options", "kernels"),
    [
        ((), {(3, 3), (5, 5), (7, 7)}),
        (("--max-kernel", "5"), {(3, 3), (5, 5)}),
        (("--max-kernel", "0"), {(3, 3), (5, 5), (7, 7)}),
        (("--method", "layeronly"), {(3, 3)}),
        (("--pin", "0", "--pin", "2"), {(3, 3)}),
        (("--exclude", "[02]"), {(3, 3)}),
    ],
)
def test_options_bound_the_menu(run: Run, options: tuple[str, ...], kernels: set[tuple[int, int]]) -> None:
    plan = document(run("plan", "python:tiny:net", "--input", "3x8x8", "--json", *options))
    assert {tuple(entry["kernel"]) for entry in plan["candidates"] if entry["kernel"]} == kernels


def test_what_may_be_replaced_is_said_by_a_flag(run: Run) -> None:
    command = ("plan", "python:zoo:SqueezeExciteNet", "--input", "3x8x8")
    plain = document(run(*command, "--json"))
    assert {entry["replaced"] for entry in plain["candidates"]} == {None}
    both = document(run(*command, "--json", "--replace", "activations", "--replace", "gates"))
    assert {entry["replaced"] for entry in both["candidates"]} == {None, "activation", "gate"}
    assert [entry for entry in both["candidates"] if not entry["replaced"]] == plain["candidates"]
    assert "1 replace the gate" in run(*command, "--replace", "gates").out
    refused = run(*command, "--replace", "convs")
    assert refused.code == 2
    assert "'convs' is not one of 'activations', 'gates'" in one_line(refused)


def test_excluded_layers_are_fixed(run: Run) -> None:
    plan = document(run("plan", "python:tiny:net", "--input", "3x8x8", "--json", "--exclude", "0"))
    assert [entry["layers"] for entry in plan["candidates"] if entry["fixed"]] == [["0"]]


def test_diffusers_configuration(run: Run, tmp_path: Path) -> None:
    config = {"_class_name": "UNet2DConditionModel", **CONDITIONAL_CONFIG}
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    plan = document(run("plan", "diffusers:config.json", "--json"))
    assert plan["layers"][0]["name"] == "conv_in"


def test_our_warnings_are_one_line_on_stderr(run: Run) -> None:
    result = run("plan", "python:zoo:AuxiliaryHead", "--input", "3x8x8", "--json")
    assert document(result)["layers"]
    assert result.err == (
        "warning: not part of the traced network, kept frozen under their names: aux; in train mode too the traced network "
        "returns what the model returns in eval mode (1 of 1 outputs come in train mode too and agree)\n"
    )


def test_version(run: Run) -> None:
    assert run("--version") == Result(0, f"layermerge {__version__}\n", "")


# -- weights


def state(heavy: str) -> dict[str, torch.Tensor]:
    """Weights of the tiny network, one of its two removable convs much heavier than the other."""
    tensors = {"0.weight": torch.ones(4, 3, 3, 3), "0.bias": torch.zeros(4)}
    for name in ("2", "4"):
        tensors[f"{name}.weight"] = torch.full((4, 4, 3, 3), 5.0 if name == heavy else 0.1)
        tensors[f"{name}.bias"] = torch.zeros(4)
    return tensors


@pytest.mark.parametrize("heavy", ["2", "4"])
@pytest.mark.parametrize("suffix", [".pth", ".safetensors"])
def test_weights_decide_what_is_kept(run: Run, tmp_path: Path, heavy: str, suffix: str) -> None:
    path = tmp_path / f"weights{suffix}"
    if suffix == ".pth":
        torch.save(state(heavy), path)
    else:
        save_file(state(heavy), path)
    plan = document(run("plan", "python:tiny:net", "--input", "3x8x8", "--json", "--weights", str(path)))
    kept = {tuple(entry["kept"]) for entry in plan["candidates"] if entry["layers"] == ["2", "4"]}
    assert kept == {(), (heavy,), ("2", "4")}


def without(key: str) -> dict[str, torch.Tensor]:
    return {name: tensor for name, tensor in state("2").items() if name != key}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (without("4.bias"), "lacks '4.bias'; it belongs to another model"),
        (without("4.bias") | {"9.bias": torch.zeros(4)}, "lacks '4.bias'"),
        (state("2") | {"9.bias": torch.zeros(4)}, "has unknown '9.bias'"),
        (state("2") | {"4.bias": torch.zeros(5)}, "has another shape for '4.bias'"),
        ({"model": {"nested": 1}}, "does not hold a plain state_dict"),
    ],
)
def test_weights_of_another_model_are_refused(run: Run, tmp_path: Path, content: Any, message: str) -> None:
    torch.save(content, tmp_path / "other.pth")
    result = run("plan", "python:tiny:net", "--input", "3x8x8", "--weights", "other.pth")
    assert message in one_line(result)


class Payload:
    """Anything but tensors: unpickling it would run code."""


@pytest.mark.parametrize("name", ["junk.pth", "junk.safetensors", "code.pth"])
def test_unreadable_weights_are_refused(run: Run, tmp_path: Path, name: str) -> None:
    if name == "code.pth":
        torch.save({"0.weight": Payload()}, tmp_path / name)
    else:
        (tmp_path / name).write_bytes(b"not weights at all")
    line = one_line(run("plan", "python:tiny:net", "--input", "3x8x8", "--weights", name))
    assert "cannot be read" in line
    assert "give a .safetensors file, or a .pth of tensors only" in line


# -- what it refuses


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("timm:resnt34",), "timm has no model 'resnt34'; did you mean"),
        (("torchvision:resnet35",), "torchvision has no model 'resnet35'; did you mean"),
        (("torchvision:qqqq",), "torchvision has no model 'qqqq'; it knows"),
        (("timm:test_resnet?num_classes",), "'?num_classes' is not of the form ?num_classes=10"),
        (("timm:test_resnet?num_classes=[",), "option 'num_classes' is '['; give a number"),
        (("timm:test_resnet?clases=3",), "model 'timm:test_resnet?clases=3' cannot be built: TypeError"),
        (("torchvision:resnet18?num_classes=many",), "option 'num_classes' is 'many'; give a number"),
        (("demo:shoes",), "the demo has no model 'shoes'"),
        (("keras:resnet34",), "is not of the form timm:..."),
        (("resnet34",), "is not of the form timm:..."),
        (("timm:",), "is not of the form timm:..."),
        (("python:tiny",), "is not of the form python:module:callable"),
        (("python:absent:net",), "cannot import 'absent'"),
        (("python:tiny:absent",), "has no callable 'absent'"),
        (("python:tiny:value",), "has no callable 'value'"),
        (("python:tiny:broken",), "failed: RuntimeError: no such luck"),
        (("python:tiny:number",), "returned int; return an nn.Module"),
        (("python:tiny:net",), "pass its input shape, for instance --input 3x224x224"),
        (("diffusers:absent.json",), "is not a diffusers configuration"),
        (("diffusers:tiny.py",), "is not a diffusers configuration"),
        (("python:tiny:net", "--input", "3xx8"), "input shape '3xx8' is not of the form 3x224x224"),
        (("python:tiny:net", "--input", "3x0x8"), "input shape '3x0x8' is not of the form"),
        (("python:tiny:net", "--input", "4x8x8"), "to have 3 channels, but got 4 channels instead; in '0'"),
        (("python:tiny:net", "--input", "3x8x8", "--weights", "absent.pth"), "'absent.pth' does not exist"),
        (("python:tiny:net", "--input", "3x8x8", "--pin", "zzz"), "pin 'zzz' matches no layer"),
        (("python:tiny:net", "--input", "3x8x8", "--pin", "*"), "every layer is pinned or excluded"),
        (("python:tiny:net", "--input", "3x8x8", "--max-kernel", "-1"), "max_kernel is -1"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(run: Run, arguments: tuple[str, ...], message: str) -> None:
    line = one_line(run("plan", *arguments))
    assert line.startswith("error: ")
    assert message in line


@pytest.mark.parametrize("text", ["{}", "[]", '{"_class_name": "DDPMScheduler"}', '{"_class_name": "os"}'])
def test_a_configuration_that_names_no_model_is_refused(run: Run, tmp_path: Path, text: str) -> None:
    (tmp_path / "config.json").write_text(text, encoding="utf-8")
    assert "does not name a diffusers model class" in one_line(run("plan", "diffusers:config.json"))


@pytest.mark.parametrize("arguments", [("plan",), ("plan", "timm:resnet34", "--rules", "mine"), ("bake",)])
def test_usage_errors_exit_with_2_and_no_traceback(run: Run, arguments: tuple[str, ...]) -> None:
    result = run(*arguments)
    assert result.code == 2
    assert "Traceback" not in result.err
    assert result.out == ""


def test_a_module_that_does_not_parse_is_one_line(run: Run, tmp_path: Path) -> None:
    (tmp_path / "askew.py").write_text("def net(:\n", encoding="utf-8")
    assert "askew" in one_line(run("plan", "python:askew:net"))


def test_a_defect_of_ours_is_one_line_and_exit_code_1(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: str) -> NoReturn:
        raise ZeroDivisionError("first\nsecond")

    monkeypatch.setitem(names._SOURCES, "timm", fail)
    line = one_line(run("plan", "timm:resnet34"), code=1)
    assert line == "failed: ZeroDivisionError: first (LAYERMERGE_DEBUG=1 shows the traceback)"


def test_debugging_shows_the_traceback(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: str) -> NoReturn:
        raise ZeroDivisionError("first")

    monkeypatch.setitem(names._SOURCES, "timm", fail)
    monkeypatch.setenv("LAYERMERGE_DEBUG", "1")
    with pytest.raises(ZeroDivisionError, match="first"):
        run("plan", "timm:resnet34")


# -- as a program


def test_help_does_not_import_torch() -> None:
    for command in (["-m", "layermerge", "--help"], [SCRIPT, "--help"], [SCRIPT, "plan", "--help"]):
        done = program(sys.executable, "-X", "importtime", *command)
        assert done.returncode == 0, done.stderr
        imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines() if "|" in line}
        assert "layermerge.cli" in imported
        assert not {"torch", "numpy", "timm", "torchvision", "diffusers"} & imported


def test_public_names_import_lazily() -> None:
    check = "import sys, layermerge, layermerge.cli; assert 'torch' not in sys.modules; print(layermerge.__version__)"
    assert program(sys.executable, "-c", check).stdout == f"{__version__}\n"


def test_program_prints_json_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "tiny.py").write_text(TINY, encoding="utf-8")
    done = program(SCRIPT, "plan", "python:tiny:net", "--input", "3x8x8", "--json", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert len(json.loads(done.stdout)["layers"]) == 3


def test_program_fails_in_one_line(tmp_path: Path) -> None:
    done = program(sys.executable, "-m", "layermerge", "plan", "python:absent:net", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: cannot import 'absent'")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("name", "classes", "channels"),
    [("timm:test_resnet?num_classes=7&in_chans=1", 7, 1), ("torchvision:resnet18?num_classes=7", 7, 3)],
)
def test_options_follow_a_models_name(name: str, classes: int, channels: int) -> None:
    loaded = load_model(name)
    assert loaded.example_inputs.shape[1] == channels
    with torch.no_grad():
        assert loaded.module.eval()(loaded.example_inputs[:1]).shape == (1, classes)
