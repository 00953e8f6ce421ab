"""Exported files: other runtimes compute what the torch module computes, at any batch size; failures leave nothing."""

from __future__ import annotations

import copy
import os
import random
import shutil
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

import layermerge as lm
import real_networks
import zoo
from agreement import call, same_bits, tensors, worst
from layermerge.errors import ArtifactError, MissingPackage
from layermerge.runtimes import exporting
from layermerge.runtimes.onnx_runtime import OnnxRuntime
from solutions import random_solution, randomise
from zoo_registry import random_tensor

TOLERANCE = 1e-4
Array = np.ndarray[Any, Any]


def noisy(batch: int) -> tuple[Tensor, Tensor]:
    sample = torch.randn(batch, 3, 16, 16, generator=torch.Generator().manual_seed(batch))
    return sample, torch.tensor([10, 500, 900, 3, 77])[:batch]


def noisy_ddpm(batch: int) -> tuple[Tensor, Tensor]:
    sample = torch.randn(batch, 3, 32, 32, generator=torch.Generator().manual_seed(batch))
    return sample, torch.tensor([10, 500, 900, 3, 77])[:batch]


def images(batch: int) -> Tensor:
    return torch.randn(batch, 3, 37, 45, generator=torch.Generator().manual_seed(batch))


@dataclass(frozen=True)
class Exported:
    """A merged random solution, its ONNX file, and inputs; it was traced and exported at batch size 2."""

    module: Any
    file: Path
    inputs: Callable[[int], Any]

    def feed(self, batch: int) -> dict[str, Array]:
        given = self.inputs(batch)
        leaves = given if isinstance(given, tuple) else (given,)
        names = [value.name for value in onnx.load(self.file).graph.input]
        assert len(names) == len(leaves)
        return {name: leaf.numpy() for name, leaf in zip(names, leaves, strict=True)}

    def expected(self, batch: int) -> list[Tensor]:
        with torch.no_grad():
            return tensors(call(self.module, self.inputs(batch)))


def build(name: str) -> tuple[nn.Module, Callable[[int], Any]]:
    if name == "small unet":
        return randomise(real_networks.small_unet(), 5).eval(), noisy
    model, _ = real_networks.build(name, (37, 45))
    inputs = noisy_ddpm if name == "diffusers:ddpm" else images
    return randomise(model.eval(), 3, inputs(2)), inputs


@pytest.fixture(
    scope="module",
    params=[
        pytest.param("torchvision:resnet34", marks=pytest.mark.slow),
        "timm:mobilenetv2_100",
        "small unet",
        pytest.param("diffusers:ddpm", marks=pytest.mark.slow),
    ],
)
def exported(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Exported:
    model, inputs = build(request.param)
    traced = lm.trace(model, inputs(2))
    merged = lm.merge(lm.rewrite(traced, random_solution(lm.plan(traced), random.Random(6), max_weights=1_000_000)))
    target = tmp_path_factory.mktemp("exported") / "model.onnx"
    assert lm.export(merged, target, inputs(2)) == target
    return Exported(merged, target, inputs)


# -- other runtimes


@pytest.mark.parametrize("batch", [1, 3, 5])
def test_onnxruntime_agrees(exported: Exported, batch: int) -> None:
    session = onnxruntime.InferenceSession(str(exported.file), providers=["CPUExecutionProvider"])
    actual = [torch.from_numpy(array) for array in session.run(None, exported.feed(batch))]
    assert worst(exported.expected(batch), actual) <= TOLERANCE


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.filterwarnings("ignore")
def test_openvino_agrees(exported: Exported, batch: int) -> None:
    import openvino

    compiled = openvino.Core().compile_model(
        str(exported.file), "CPU", {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": 1}
    )
    found = compiled(exported.feed(batch))
    actual = [torch.from_numpy(np.array(found[port])) for port in compiled.outputs]
    assert worst(exported.expected(batch), actual) <= TOLERANCE


def test_the_graph_has_the_merged_convs_and_no_norms(exported: Exported) -> None:
    model = onnx.load(exported.file)
    onnx.checker.check_model(model)
    kinds = [node.op_type for node in model.graph.node]
    convs = sum(isinstance(part, nn.Conv2d) for part in exported.module.modules())
    assert kinds.count("Conv") == convs
    assert "BatchNormalization" not in kinds


def test_the_batch_is_free_and_nothing_else(exported: Exported) -> None:
    for value in onnx.load(exported.file).graph.input:
        batch, *rest = value.type.tensor_type.shape.dim
        assert batch.dim_param
        assert all(dimension.dim_value > 0 for dimension in rest)


def test_one_file_and_no_more(exported: Exported) -> None:
    assert [path.name for path in exported.file.parent.iterdir()] == ["model.onnx"]


# -- our own forms


@pytest.fixture(scope="module")
def merged() -> Any:
    traced = zoo.traced("basic")
    return lm.merge(lm.rewrite(traced, random_solution(lm.plan(traced), random.Random(2))))


def basic_inputs(batch: int) -> Any:
    return zoo.ZOO["basic"].inputs(batch)


@pytest.mark.filterwarnings("ignore")
def test_pt2_comes_back_the_same(tmp_path: Path, merged: Any) -> None:
    target = lm.export(merged, tmp_path / "model.pt2", basic_inputs(2))
    again = torch.export.load(target).module()
    for batch in (1, 4):
        assert worst(merged(basic_inputs(batch)), again(basic_inputs(batch))) <= 1e-6


def test_safetensors_hold_the_state(tmp_path: Path, merged: Any) -> None:
    stored = load_file(lm.export(merged, str(tmp_path / "model.safetensors"), basic_inputs(2)))
    assert stored.keys() == merged.state_dict().keys()
    assert same_bits(merged.state_dict(), {key: stored[key] for key in merged.state_dict()})


def test_a_rewritten_network_in_train_mode_is_exported_as_in_eval_mode(tmp_path: Path) -> None:
    traced = zoo.traced("plain")
    net = lm.rewrite(traced, random_solution(lm.plan(traced), random.Random(1))).train()
    state = {key: tensor.clone() for key, tensor in net.state_dict().items()}
    target = lm.export(net, tmp_path / "model.onnx", zoo.ZOO["plain"].inputs(2))
    assert net.training
    assert same_bits(state, net.state_dict())
    session = onnxruntime.InferenceSession(str(target), providers=["CPUExecutionProvider"])
    x = zoo.ZOO["plain"].inputs(3)
    (actual,) = session.run(None, {session.get_inputs()[0].name: x.numpy()})
    assert worst(net.eval()(x), torch.from_numpy(actual)) <= TOLERANCE


def test_a_loaded_network_is_exported_without_its_call_translation(tmp_path: Path, merged: Any) -> None:
    lm.save(tmp_path / "run", merged)
    loaded = lm.load(tmp_path / "run", zoo.build("basic"))
    target = lm.export(loaded, tmp_path / "model.onnx", basic_inputs(2))
    session = onnxruntime.InferenceSession(str(target), providers=["CPUExecutionProvider"])
    x = basic_inputs(3)
    (actual,) = session.run(None, {session.get_inputs()[0].name: x.numpy()})
    assert worst(merged(x), torch.from_numpy(actual)) <= TOLERANCE
    assert same_bits(merged.state_dict(), loaded.state_dict())


@pytest.mark.parametrize("name", ["two_inputs", "inputs_by_name", "dict_output"])
def test_several_inputs_and_outputs_by_name(tmp_path: Path, name: str) -> None:
    net = lm.merge(lm.rewrite(zoo.traced(name), ()))
    target = lm.export(net, tmp_path / "model.onnx", zoo.ZOO[name].inputs(2))
    session = onnxruntime.InferenceSession(str(target), providers=["CPUExecutionProvider"])
    given = zoo.ZOO[name].inputs(3)
    if name == "two_inputs":
        given = dict(zip(("image", "depth"), given, strict=True))
    elif name == "dict_output":
        given = {session.get_inputs()[0].name: given}
    assert {value.name for value in session.get_inputs()} == given.keys()
    actual = session.run(None, {key: tensor.numpy() for key, tensor in given.items()})
    with torch.no_grad():
        expected = call(net, zoo.ZOO[name].inputs(3))
    assert worst(expected, [torch.from_numpy(array) for array in actual]) <= TOLERANCE


# -- failures


@pytest.mark.parametrize("name", ["model.tflite", "model", "model.ONNX.bak"])
def test_an_unknown_suffix(tmp_path: Path, merged: Any, name: str) -> None:
    message = rf"^cannot export to '{name}'; give a name that ends in \.onnx, \.pt2, \.safetensors$"
    with pytest.raises(ArtifactError, match=message):
        lm.export(merged, tmp_path / name, basic_inputs(2))
    assert list(tmp_path.iterdir()) == []


class Askew:
    """A runtime whose answers are slightly wrong."""

    def __init__(self, *given: Any, **options: Any) -> None:
        self.session = REAL_SESSION(*given, **options)

    def get_inputs(self) -> Any:
        return self.session.get_inputs()

    def run(self, *given: Any) -> list[Array]:
        return [array * np.float32(1.01) for array in self.session.run(*given)]


REAL_SESSION = onnxruntime.InferenceSession


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory, merged: Any) -> Path:
    return lm.export(merged, tmp_path_factory.mktemp("written") / "model.onnx", basic_inputs(2))


@pytest.mark.parametrize("earlier", [True, False])
def test_a_file_that_disagrees_is_not_left(
    tmp_path: Path, merged: Any, written: Path, monkeypatch: pytest.MonkeyPatch, earlier: bool
) -> None:
    target = tmp_path / "model.onnx"
    monkeypatch.setattr(exporting, "write_onnx", lambda _module, path, _inputs: shutil.copy(written, path))
    if earlier:
        target.write_bytes(b"of an earlier run")
    monkeypatch.setattr(onnxruntime, "InferenceSession", Askew)
    with pytest.raises(
        ArtifactError, match=r"(?i)^the .*onnx.* file differs from the module by 1\.0e-02 .* not written$"
    ):
        lm.export(merged, target, basic_inputs(2))
    assert [path.read_bytes() for path in tmp_path.iterdir()] == ([b"of an earlier run"] if earlier else [])


def test_a_crash_leaves_the_earlier_file(tmp_path: Path, merged: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "model.safetensors"
    lm.export(merged, target, basic_inputs(2))
    before = target.read_bytes()

    def full(_state: Any, path: Path, **_: Any) -> None:
        Path(path).write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("layermerge.runtimes.exporting.save_file", full)
    with pytest.raises(ArtifactError, match=r"cannot write .*: No space left on device"):
        lm.export(merged, target, basic_inputs(2))
    assert [path.read_bytes() for path in tmp_path.iterdir()] == [before]


def test_a_place_that_cannot_be_written(tmp_path: Path, merged: Any) -> None:
    (tmp_path / "file").write_text("mine", encoding="utf-8")
    with pytest.raises(ArtifactError, match="cannot write"):
        lm.export(merged, tmp_path / "file" / "model.safetensors", basic_inputs(2))


@pytest.mark.parametrize("suffix", [".onnx", ".pt2"])
def test_inputs_that_the_network_cannot_take(tmp_path: Path, merged: Any, suffix: str) -> None:
    with pytest.raises(lm.LayerMergeError) as caught:
        lm.export(merged, tmp_path / f"model{suffix}", torch.randn(2, 7, 16, 16))
    assert "\n" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


class Diagonal(nn.Module):
    """Writes to a diagonal of a map, which torch does not express in ONNX."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(4, 4, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        y = torch.relu(self.first(x))
        torch.diagonal(y, dim1=2, dim2=3).zero_()
        result: Tensor = self.second(y)
        return result


def test_what_torch_cannot_write_is_one_line_and_leaves_nothing(tmp_path: Path) -> None:
    given = torch.randn(2, 3, 8, 8)
    network = lm.merge(lm.rewrite(lm.trace(Diagonal(), given), []))
    with pytest.raises(ArtifactError, match=r"^torch cannot write this network as ONNX: .*nothing written") as caught:
        lm.export(network, tmp_path / "a.onnx", given)
    assert "\n" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []
    lm.export(network, tmp_path / "a.pt2", given)


def test_a_missing_package_is_named(tmp_path: Path, merged: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "onnxscript", None)
    message = r"^exporting to ONNX needs onnxscript, which is not installed; try: pip install 'layermerge\[export\]'$"
    with pytest.raises(MissingPackage, match=message):
        lm.export(merged, tmp_path / "model.onnx", basic_inputs(2))
    assert list(tmp_path.iterdir()) == []


# -- Ctrl-C


def swallowing(*_given: Any, **_options: Any) -> None:
    """As torch's exporters do now and then: the exception comes where Python drops it."""
    try:
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.01)
    except KeyboardInterrupt:
        return


@pytest.mark.parametrize(
    ("exporter", "use"),
    [
        ("torch.onnx.export", lambda net, path: lm.export(net, path / "model.onnx", basic_inputs(2))),
        ("torch.export.export", lambda net, path: lm.export(net, path / "model.pt2", basic_inputs(2))),
        ("torch.export.export", lambda _net, _path: lm.trace(zoo.build("basic"), basic_inputs(2))),
    ],
    ids=["onnx", "pt2", "trace"],
)
def test_ctrl_c_during_an_export_is_never_lost(
    exporter: str, use: Callable[[Any, Path], object], tmp_path: Path, merged: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exporter, swallowing)
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        use(merged, tmp_path)
    assert signal.getsignal(signal.SIGINT) is before
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10))
def test_ctrl_c_at_a_random_moment_of_a_real_export(tmp_path: Path, merged: Any, seed: int) -> None:
    child = os.fork()
    if child == 0:
        try:
            lm.export(merged, tmp_path / "model.onnx", basic_inputs(2))
        except KeyboardInterrupt:
            os._exit(1)
        os._exit(0)
    time.sleep(random.Random(seed).uniform(0.0, 3.0))
    with suppress(ProcessLookupError):
        os.kill(child, signal.SIGINT)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert code in (0, 1)
    assert [path.name for path in tmp_path.iterdir()] == (["model.onnx"] if code == 0 else [])


class Steep(nn.Module):
    """A map of probabilities that are near 0 or 1, as detectors of text give: what is rounded before it grows thousandfold."""

    def __init__(self, slope: float) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.slope = slope
        self.body = nn.Sequential(*(nn.Conv2d(16, 16, 3, padding=1) for _ in range(6)))

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.body(x)
        return torch.sigmoid(self.slope * (y - y.mean((2, 3), keepdim=True)) / y.std((2, 3), keepdim=True))


def test_a_network_that_rounds_coarsely_is_held_to_its_own_rounding(tmp_path: Path) -> None:
    network, x = Steep(2000.0).eval(), random_tensor(2, 16, 40, 40)
    with torch.no_grad():
        own = worst(copy.deepcopy(network).double()(x.double()).float(), network(x))
    assert own > TOLERANCE, "or the network says nothing"
    assert lm.export(network, tmp_path / "model.onnx", x).is_file()


@pytest.mark.parametrize(("slope", "apart"), [(1.0, 2e-4), (2000.0, 0.02), (1e8, 0.02)])
def test_a_wrong_file_is_refused_however_coarsely_the_network_rounds(
    slope: float, apart: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def wrongly(self: OnnxRuntime, path: Path) -> Any:
        served = serve(self, path)

        def call(*args: Any, **kwargs: Any) -> Any:
            (said,) = tensors(served(*args, **kwargs))
            return said * (1 + apart)

        call.names = served.names  # type: ignore[attr-defined]
        return call

    serve = OnnxRuntime.serve_file
    monkeypatch.setattr(OnnxRuntime, "serve_file", wrongly)
    with pytest.raises(ArtifactError, match="differs from the module by"):
        lm.export(Steep(slope).eval(), tmp_path / "model.onnx", random_tensor(2, 16, 12, 12))
    assert list(tmp_path.iterdir()) == []
