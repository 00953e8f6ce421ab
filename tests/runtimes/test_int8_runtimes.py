"""Runtimes that serve INT8 and float16 files: they quantise what they time, serve what was quantised, and say what they are."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest
import torch
from torch import Tensor, nn

from layermerge.conv import ConvSpec
from layermerge.errors import RuntimeUnavailable
from layermerge.runtimes.base import RuntimeSettings
from layermerge.runtimes.float16_file import holds_float16, write_float16
from layermerge.runtimes.instructions import instructions_here
from layermerge.runtimes.int8_file import is_quantised
from layermerge.runtimes.int8_runtimes import OnnxRuntimeInt8
from layermerge.runtimes.registry import make_runtime
from layermerge.tables.workloads import ADD, Follower, Sandwich, Workload, call, empty
from layermerge.tracing.inputs import Inputs
from onnx_networks import constants, model_of

NAMES = ["onnxruntime-int8", "openvino-int8"]
X = torch.randn(2, 3, 9, 9, generator=torch.Generator().manual_seed(0))


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.stem, self.first, self.second = (nn.Conv2d(size, 8, 3, padding=1) for size in (3, 8, 8))

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x).relu()
        out: Tensor = (self.second(self.first(x).relu()) + x).relu()
        return out


@pytest.fixture
def file(tmp_path: Path) -> Path:
    onnx.save(model_of(Block(), X[:1]), str(tmp_path / "block.onnx"))
    return tmp_path / "block.onnx"


@pytest.mark.parametrize("name", NAMES)
def test_what_is_timed_is_in_integers(name: str, file: Path) -> None:
    runtime = make_runtime(name)
    with runtime.in_form(file, Inputs.of(X)) as served:  # type: ignore[attr-defined]
        assert is_quantised(onnx.load(str(served)))
        found = constants(onnx.load(str(served))).items()
        assert [value.dtype.name for key, value in found if key.endswith("weight_quantized")] == ["int8"] * 3
        with runtime.in_form(served, Inputs.of(X)) as again:  # type: ignore[attr-defined]
            assert again == served  # quantised once
    assert not is_quantised(onnx.load(str(file)))
    runtime.prepare_file(file, Inputs.of(X))()


@pytest.mark.parametrize("name", NAMES)
def test_operators_in_integers_belong_to_their_convs(name: str, file: Path) -> None:
    recording = make_runtime(name).record_file(file, Inputs.of(X))
    assert recording is not None
    recording()
    (operators,) = recording.passes()
    assert {operator.owner for operator in operators if operator.is_conv} == {"stem", "first", "second"}
    adds = [operator.owner for operator in operators if not operator.is_conv and operator.owner]
    assert set(adds) <= {"second"}  # and not to the conv that its shortcut comes from


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("follow", [(), (Follower("ReLU"),), (ADD, Follower("ReLU")), (Follower("SiLU"),)], ids=str)
def test_workloads_are_timed_between_quantised_neighbours(name: str, follow: tuple[Follower, ...]) -> None:
    runtime = make_runtime(name)
    sandwich = Sandwich(
        Workload(ConvSpec(8, 16, (3, 3), padding=(1, 1, 1, 1)), (8, 9, 9), follow), told=True, fuses=True
    )
    recording = runtime.record(sandwich, sandwich.inputs(1), small=True)
    assert recording is not None
    for _ in range(3):
        recording()
    operators = recording.passes()[-1]
    assert {"before", "conv", "after"} <= {operator.owner for operator in operators if operator.is_conv}
    assert 0 <= sandwich.own_ms(operators) <= sum(operator.ms for operator in operators)


@pytest.mark.parametrize("name", NAMES)
def test_graphs_with_nothing_to_quantise_run_as_they_are(name: str) -> None:
    runtime = make_runtime(name)
    for module, shape in ((call(), (1, 1, 1, 1)), (empty(4), (1, 4, 5, 5))):
        runtime.prepare(module, Inputs.of(torch.zeros(shape)), small=True)()


@pytest.mark.parametrize("name", NAMES)
def test_tables_tell_them_from_float32(name: str) -> None:
    plain, own = make_runtime(name.removesuffix("-int8")).describe(), make_runtime(name).describe()
    here = instructions_here()
    assert own == plain | {"runtime": name, "dtype": "int8", "scheme": here.scheme, "instructions": here.name}


def test_float32_is_not_served_as_integers(file: Path) -> None:
    runtime = make_runtime("onnxruntime-int8")
    with pytest.raises(
        RuntimeUnavailable, match=r"'block.onnx' is not quantised, and runtime 'onnxruntime-int8' serves INT8"
    ):
        runtime.serve_file(file)
    with pytest.raises(
        RuntimeUnavailable, match=r"serves files that were quantised on images; make one: layermerge.quantize"
    ):
        runtime.serve(Block(), Inputs.of(X))
    assert isinstance(runtime, OnnxRuntimeInt8)
    assert runtime.for_float32().name == "onnxruntime"


@pytest.mark.parametrize(
    ("name", "dtype", "words"),
    [
        ("onnxruntime", "int8", "computes in float32, not in int8; for int8 there are the runtimes onnxruntime-int8"),
        ("openvino", "int8", "computes in float32 or float16, not in int8; for int8 there are the runtimes"),
        ("onnxruntime", "float16", "computes in float32, not in float16; drop dtype"),
        ("openvino-int8", "float16", "computes in float32, not in float16; drop dtype"),
    ],
)
def test_dtypes_that_a_runtime_does_not_have_are_refused(name: str, dtype: str, words: str) -> None:
    with pytest.raises(RuntimeUnavailable, match=words):
        make_runtime(name, RuntimeSettings(dtype=dtype))


def test_files_have_a_layout_of_their_own() -> None:
    with pytest.raises(RuntimeUnavailable, match="runtime 'openvino' has a layout of its own; drop channels_last"):
        make_runtime("openvino", RuntimeSettings(channels_last=True))


# -- float16


def test_a_float16_file_is_half_as_large_and_computes_nearly_the_same(file: Path, tmp_path: Path) -> None:
    write_float16(file, tmp_path / "half.onnx")
    assert holds_float16(tmp_path / "half.onnx")
    assert not holds_float16(file)
    weights = {
        key: value for key, value in constants(onnx.load(str(tmp_path / "half.onnx"))).items() if value.ndim == 4
    }
    assert {value.dtype.name for value in weights.values()} == {"float16"}
    served = make_runtime("openvino", RuntimeSettings(dtype="float16")).serve_file(tmp_path / "half.onnx")
    with torch.no_grad():
        expected = Block()(X)
    actual = served(X)
    assert isinstance(actual, Tensor)
    assert actual.dtype == torch.float32
    assert (actual - expected).abs().max() <= 2e-2 * expected.abs().max()  # bfloat16 has eight bits


def test_openvino_times_float16_and_tables_say_what_it_computes_in(file: Path) -> None:
    runtime = make_runtime("openvino", RuntimeSettings(dtype="float16"))
    with runtime.in_form(file, Inputs.of(X)) as served:  # type: ignore[attr-defined]
        assert holds_float16(served)
    runtime.prepare_file(file, Inputs.of(X))()
    own = runtime.describe()
    assert own["dtype"] == "float16"
    assert own["arithmetic"] in ("float16", "bfloat16", "float32")
    assert "arithmetic" not in make_runtime("openvino").describe()
