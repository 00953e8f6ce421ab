"""Quantize: modules and files become INT8 files near float32; remedies help where they must; refusals are one line."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from onnx import helper
from PIL import Image
from torch import Tensor, nn

import layermerge as lm
import tiny_runs
from layermerge.quantization.quantize import Quantized
from layermerge.runtimes.base import RuntimeSettings
from layermerge.runtimes.registry import make_runtime
from onnx_networks import constants, model_of, run, uneven

pytestmark = pytest.mark.usefixtures("quick_clocks")

IMAGES = torch.randn(60, 3, 12, 12, generator=torch.Generator().manual_seed(0))


def network() -> nn.Sequential:
    torch.manual_seed(1)
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(16, 16, 3, padding=1, groups=16),
        nn.ReLU(),
        nn.Conv2d(16, 8, 1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(8, 4),
    ).eval()


def file_of(module: nn.Module, folder: Path) -> Path:
    """The module as a file, by the exporter that takes no second."""
    path = folder / "in.onnx"
    onnx.save(model_of(module, IMAGES[:1]), str(path))
    return path


def loss(path: Path, module: nn.Module, images: Tensor) -> float:
    """Noise over signal, of the file by itself in onnxruntime."""
    with torch.no_grad():
        expected = module(images).double().numpy()
    return float(np.square(run(onnx.load(str(path)), images) - expected).sum() / np.square(expected).sum())


def test_a_module_becomes_a_file_that_computes_nearly_the_same(tmp_path: Path) -> None:
    made = lm.quantize(network(), IMAGES, tmp_path / "a.onnx")
    assert made.path == tmp_path / "a.onnx"
    assert (made.layers, made.left_in_float32, made.runtime) == (4, (), "onnxruntime")
    assert made.loss <= min(0.01, made.plain_loss)
    assert loss(made.path, network(), IMAGES) <= 0.01
    kinds = {
        name: value.dtype for name, value in constants(onnx.load(str(made.path))).items() if name.endswith("_quantized")
    }
    assert sum(kind == np.int8 for kind in kinds.values()) == 4
    onnx.checker.check_model(str(made.path), full_check=True)


@pytest.mark.parametrize("runtime", ["onnxruntime", "openvino"])
def test_both_runtimes_read_the_file_at_any_batch_size(runtime: str, tmp_path: Path) -> None:
    lm.quantize(file_of(network(), tmp_path), IMAGES, tmp_path / "a.onnx", runtime=runtime)
    served = make_runtime(f"{runtime}-int8").serve_file(tmp_path / "a.onnx")
    with torch.no_grad():
        expected = network()(IMAGES)
    for size in (1, 7):
        actual = served(IMAGES[:size])
        assert ((actual - expected[:size]).square().sum() / expected[:size].square().sum()) <= 0.05


def test_the_same_images_give_the_same_file(tmp_path: Path) -> None:
    source = file_of(network(), tmp_path)
    files = [lm.quantize(source, IMAGES, tmp_path / f"{name}.onnx").path.read_bytes() for name in "ab"]
    assert files[0] == files[1]


def test_uneven_channels_are_equalised(tmp_path: Path) -> None:
    """Channels that differ ten-thousandfold: without the remedy most of them are rounded to nothing."""
    module = network()
    uneven(module, "0", "2", torch.logspace(-2, 2, 16))
    source = file_of(module, tmp_path)
    plain = lm.quantize(source, IMAGES, tmp_path / "plain.onnx", remedies=False)
    made = lm.quantize(source, IMAGES, tmp_path / "made.onnx", most_loss=0.5)
    assert plain.loss == plain.plain_loss == made.plain_loss
    assert (plain.equalised, plain.biases_corrected) == (0, False)
    assert made.equalised >= 1
    assert made.loss < 0.1 * made.plain_loss
    assert loss(made.path, network(), IMAGES) < 0.1 * loss(plain.path, network(), IMAGES)


def test_layers_that_hurt_stay_in_float32(tmp_path: Path) -> None:
    """A map behind a bound, which cannot be equalised."""
    module = network()
    module[1] = nn.Hardtanh(0, 1e6)
    uneven(module, "0", "2", torch.logspace(-2, 2, 16))
    made = lm.quantize(file_of(module, tmp_path), IMAGES, tmp_path / "made.onnx", most_loss=0.003)
    assert made.plain_loss > 0.003 >= made.loss
    assert 1 <= len(made.left_in_float32) < made.layers
    names = constants(onnx.load(str(made.path)))
    assert all(f"{layer}.weight" in names for layer in made.left_in_float32)
    assert f"{len(made.left_in_float32)} left in float32 ({made.left_in_float32[0]}" in str(made)


def test_a_bound_that_only_float32_keeps_writes_nothing(tmp_path: Path) -> None:
    with pytest.raises(lm.LayerMergeError, match="every layer would have to stay in float32; allow a larger loss"):
        lm.quantize(file_of(network(), tmp_path), IMAGES, tmp_path / "a.onnx", most_loss=1e-12)
    assert [path.name for path in tmp_path.iterdir()] == ["in.onnx"]


def test_another_processor_gets_other_weights(tmp_path: Path) -> None:
    largest = {}
    for name in ("avx512_vnni", "avx2"):
        made = lm.quantize(file_of(network(), tmp_path), IMAGES, tmp_path / f"{name}.onnx", instructions=name)
        values = constants(onnx.load(str(made.path)))
        largest[made.scheme] = max(
            int(np.abs(one.astype(int)).max()) for one in values.values() if one.dtype == np.int8
        )
    assert largest == {"U8S8": 127, "U8S7": 64}


def test_a_task_scores_both_files(tmp_path: Path) -> None:
    task, module = tiny_runs.task(), tiny_runs.network()
    made = lm.quantize(file_of(module, tmp_path), task, tmp_path / "a.onnx")
    own = make_runtime("onnxruntime").serve_file(made.path)
    assert made.float32_score == pytest.approx(task.evaluate(module))
    assert made.int8_score == task.evaluate(own)
    assert f"score {made.float32_score:.4f} -> {made.int8_score:.4f}" in str(made)


def test_a_record_says_where_integers_are_slower() -> None:
    made = Quantized(
        path=Path("a"),
        scheme="U8S7",
        instructions="avx2, no VNNI",
        layers=3,
        left_in_float32=(),
        equalised=0,
        biases_corrected=False,
        loss=0.001,
        plain_loss=0.002,
        runtime="onnxruntime",
        float32_ms=1.0,
        int8_ms=1.5,
    )
    assert not made.faster
    assert "float32 1.000 -> INT8 1.500 ms on onnxruntime: SLOWER than float32 on this machine (avx2, no VNNI)" in str(
        made
    )


# -- files


def saved(model: Any, path: Path) -> Path:
    onnx.save(model, str(path))
    return path


def test_a_file_is_quantised_as_its_module_is(tmp_path: Path) -> None:
    made = lm.quantize(file_of(network(), tmp_path), IMAGES, tmp_path / "out.onnx")
    assert (made.layers, made.left_in_float32) == (4, ())
    assert loss(made.path, network(), IMAGES) <= 0.01


def test_norms_of_a_file_are_folded(tmp_path: Path) -> None:
    model = model_of(network(), IMAGES[:1])
    conv = model.graph.node[0]
    norm = helper.make_node("BatchNormalization", ["plain", *"sbmv"], [conv.output[0]], name="norm")
    conv.output[0] = "plain"
    model.graph.node.insert(1, norm)
    for name, value in zip("sbmv", (2.0, 0.1, 0.2, 3.0), strict=True):
        model.graph.initializer.append(onnx.numpy_helper.from_array(np.full(16, value, np.float32), name))
    made = lm.quantize(saved(model, tmp_path / "in.onnx"), IMAGES, tmp_path / "out.onnx")
    assert "BatchNormalization" not in {node.op_type for node in onnx.load(str(made.path)).graph.node}
    expected, actual = run(model, IMAGES), run(onnx.load(str(made.path)), IMAGES)
    assert np.square(expected - actual).sum() <= 0.01 * np.square(expected).sum()


def test_a_file_of_an_old_opset_is_converted(tmp_path: Path) -> None:
    model = model_of(network()[:6], IMAGES[:1])
    model.opset_import[0].version = 11  # the same operators were there
    made = lm.quantize(saved(model, tmp_path / "in.onnx"), IMAGES, tmp_path / "out.onnx")
    assert made.loss <= 0.01
    assert next(one.version for one in onnx.load(str(made.path)).opset_import if not one.domain) >= 13


def test_images_of_a_folder(tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    (tmp_path / "images").mkdir()
    for number in range(24):
        pixels = generator.integers(0, 255, (20, 16, 3), np.uint8)
        Image.fromarray(pixels).save(tmp_path / "images" / f"{number}.png")
    assert lm.quantize(file_of(network(), tmp_path), tmp_path / "images", tmp_path / "out.onnx").loss <= 0.01


class Two(nn.Module):
    """Two inputs, and two outputs."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(2)
        self.first, self.second = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 4, 3, padding=1)

    def forward(self, x: Tensor, shift: Tensor) -> tuple[Tensor, Tensor]:
        x = self.first(x).relu() + shift
        return x, self.second(x)


def test_several_inputs_by_name(tmp_path: Path) -> None:
    batches = [{"x": part, "shift": torch.rand(len(part), 8, 1, 1)} for part in torch.split(IMAGES, 20)]
    made = lm.quantize(Two(), batches, tmp_path / "out.onnx")
    session = onnxruntime.InferenceSession(str(made.path), providers=["CPUExecutionProvider"])
    assert {given.name for given in session.get_inputs()} == {"x", "shift"}
    assert made.loss <= 0.01


# -- NNCF


def test_nncf_quantises_for_openvino(tmp_path: Path) -> None:
    pytest.importorskip("nncf")
    made = lm.quantize(file_of(network(), tmp_path), IMAGES, tmp_path / "out.onnx", runtime="openvino", library="nncf")
    assert made.loss <= 0.01
    assert not made.biases_corrected  # by NNCF itself
    assert loss(made.path, network(), IMAGES) <= 0.02


def test_nncf_that_is_not_installed_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "nncf", None)
    with pytest.raises(
        lm.LayerMergeError, match=r"quantising by NNCF needs nncf, .*; try: pip install 'layermerge\[nncf\]'"
    ):
        lm.quantize(file_of(network(), tmp_path), IMAGES, tmp_path / "out.onnx", library="nncf")


# -- refusals


def old(path: Path) -> Path:
    model = model_of(network(), IMAGES[:1])
    model.graph.node.append(helper.make_node("NoSuchOperator", ["x"], ["y"], domain=""))
    model.opset_import[0].version = 9
    return saved(model, path)


REFUSED: dict[str, tuple[Any, Any, str, str]] = {
    "suffix": (network(), IMAGES, "a.int8", r"cannot quantise to 'a.int8'; give a name that ends in .onnx"),
    "no file": ("absent.onnx", IMAGES, "a.onnx", "'absent.onnx' is not a file; give a module or an ONNX file"),
    "few images": ("in.onnx", IMAGES[:5], "a.onnx", "5 images are too few"),
    "no images": ("in.onnx", [], "a.onnx", "0 images are too few"),
    "size": ("in.onnx", IMAGES[:, :, :9], "a.onnx", r"shape \(60, 3, 9, 12\), but the network was traced with"),
    "nothing": (
        nn.Sequential(nn.ReLU(), nn.AvgPool2d(2)),
        IMAGES,
        "a.onnx",
        "has nothing to quantise: no conv and no linear",
    ),
    "old": ("old.onnx", IMAGES, "a.onnx", "has opset 9, quantising per channel needs 13, and onnx cannot convert it"),
    "twice": ("int8.onnx", IMAGES, "a.onnx", "'int8.onnx' is already quantised; give the float32 network"),
    "folder": (network(), "images", "a.onnx", "a folder does not say which size this network takes"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refusals_are_one_line_and_write_nothing(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    source, images, target, words = REFUSED[name]
    if source == "old.onnx":
        old(tmp_path / "old.onnx")
    elif source == "in.onnx":
        file_of(network(), tmp_path)
    elif source == "int8.onnx":
        lm.quantize(file_of(network(), tmp_path), IMAGES, "int8.onnx")
    before = set(tmp_path.iterdir())
    with pytest.raises(lm.LayerMergeError, match=words) as caught:
        lm.quantize(source, images, target)
    assert "\n" not in str(caught.value)
    assert set(tmp_path.iterdir()) == before


def test_runtimes_that_read_no_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(
        lm.LayerMergeError, match="runtime 'torch' does not read ONNX files; give onnxruntime or openvino"
    ):
        lm.quantize(network(), IMAGES, tmp_path / "a.onnx", runtime="torch")
    with pytest.raises(lm.LayerMergeError, match="unknown instruction set 'mmx'"):
        lm.quantize(network(), IMAGES, tmp_path / "a.onnx", instructions="mmx")
    with pytest.raises(lm.LayerMergeError, match="most_loss is 2; give a number between 0 and 1"):
        lm.quantize(network(), IMAGES, tmp_path / "a.onnx", most_loss=2)
    assert make_runtime("openvino-int8", RuntimeSettings(threads=2)).settings.threads == 2
