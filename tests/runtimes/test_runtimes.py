"""Runtimes: each computes what torch computes, says what it is, and refuses in one line what it cannot do."""

from __future__ import annotations

import copy
import importlib
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

import zoo
from agreement import call, worst
from layermerge.errors import LayerMergeError, MissingPackage, RuntimeUnavailable
from layermerge.runtimes.base import RuntimeSettings
from layermerge.runtimes.clock import ClockSettings
from layermerge.runtimes.registry import RUNTIMES, make_runtime
from layermerge.runtimes.writing import for_serving, write_onnx
from layermerge.surgery.merge import merge
from layermerge.surgery.rewrite import rewrite
from layermerge.tracing.inputs import Inputs

ONNX_READERS = ["onnxruntime", "openvino"]


def arrays(returned: Any) -> list[Tensor]:
    """What a pass of a runtime that reads ONNX gives back."""
    values = returned.values() if isinstance(returned, Mapping) else returned
    return [torch.from_numpy(np.array(value)) for value in values]


class Recorder(nn.Module):
    """Remembers every call of its copies, too."""

    calls: ClassVar[list[dict[str, Any]]] = []

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, padding=1)
        self.drop = nn.Dropout(0.9)

    def forward(self, x: Tensor, *, shift: Tensor | None = None) -> Tensor:
        out: Tensor = self.drop(self.conv(x if shift is None else x + shift))
        self.calls.append(
            {
                "x": x,
                "out": out,
                "threads": torch.get_num_threads(),
                "weight": self.conv.weight,
                "inference": torch.is_inference_mode_enabled(),
            }
        )
        return out


@pytest.fixture(autouse=True)
def _fresh_recorder() -> None:
    Recorder.calls.clear()


def small() -> tuple[nn.Module, Inputs]:
    module = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.Dropout(0.5), nn.ReLU())
    return module, Inputs((torch.randn(2, 3, 8, 9),), {})


# -- what they compute


def test_torch_runs_the_module_in_eval_mode_on_the_given_inputs() -> None:
    module, x = Recorder().train(), torch.randn(2, 3, 8, 8)
    expected = module.conv(x + 1)
    run = make_runtime("torch").prepare(module, Inputs((x,), {"shift": torch.ones(2, 3, 1, 1)}))
    assert Recorder.calls == []  # preparing is not running
    run()
    run()
    assert len(Recorder.calls) == 2
    for seen in Recorder.calls:
        assert torch.equal(seen["x"], x)
        assert worst(seen["out"], expected) <= 1e-6
        assert seen["inference"]
    assert module.training  # the caller's module is left as it was


def test_torch_uses_as_many_threads_as_it_was_told_and_leaves_those_of_the_process() -> None:
    before = torch.get_num_threads()
    runtime = make_runtime("torch", RuntimeSettings(threads=1))
    run, network = runtime.prepare(*_recorded()), runtime.serve(*_recorded())
    uses: list[Callable[[], object]] = [
        run,
        lambda: network(torch.randn(1, 3, 8, 8)),
        lambda: runtime.time({"a": run}, ClockSettings(1, 2, 2, 0)),
    ]
    try:
        torch.set_num_threads(2)
        for use in uses:
            Recorder.calls.clear()
            use()
            assert {seen["threads"] for seen in Recorder.calls} == {1}
            assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def _recorded() -> tuple[nn.Module, Inputs]:
    return Recorder(), Inputs((torch.randn(1, 3, 8, 8),), {})


@pytest.mark.parametrize("channels_last", [False, True])
def test_torch_lays_maps_and_weights_out_as_told(channels_last: bool) -> None:
    make_runtime("torch", RuntimeSettings(channels_last=channels_last)).prepare(*_recorded())()
    layout = torch.channels_last if channels_last else torch.contiguous_format
    assert Recorder.calls[0]["x"].is_contiguous(memory_format=layout)
    assert Recorder.calls[0]["weight"].is_contiguous(memory_format=layout)


def test_torch_runs_in_the_dtype_it_was_told() -> None:
    make_runtime("torch", RuntimeSettings(dtype="float64")).prepare(*_recorded())()
    assert Recorder.calls[0]["out"].dtype == torch.float64


@pytest.mark.parametrize("name", ONNX_READERS)
@pytest.mark.parametrize("quickly", [True, False])
def test_a_small_module_computes_what_it_does_in_torch(name: str, quickly: bool) -> None:
    module, inputs = small()
    run = make_runtime(name).prepare(module, inputs, small=quickly)
    (actual,) = arrays(run())
    with torch.no_grad():
        assert worst(module.eval()(*inputs.args), actual) <= 1e-5


@pytest.mark.parametrize("name", ONNX_READERS)
def test_a_small_module_with_two_inputs(name: str) -> None:
    class Sum(nn.Module):
        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            return 2 * x - y

    x, y = torch.randn(1, 2, 4, 4), torch.randn(1, 2, 4, 4)
    (actual,) = arrays(make_runtime(name).prepare(Sum(), Inputs((x, y), {}), small=True)())
    assert worst(2 * x - y, actual) <= 1e-6


@pytest.mark.parametrize("network", ["basic", "inputs_by_name", "time_shifted_block", "dict_output"])
def test_a_whole_network_computes_what_it_does_in_torch(network: str, tmp_path: Path) -> None:
    traced = zoo.traced(network)
    inputs = traced.inputs.resized(3)
    expected = pytree.tree_leaves(call(zoo.build(network).eval(), inputs.kwargs or inputs.args))
    write_onnx(for_serving(merge(rewrite(traced, []))), tmp_path / "a.onnx", inputs)
    for name in ONNX_READERS:
        actual = arrays(make_runtime(name).prepare_file(tmp_path / "a.onnx", inputs)())
        for one, other in zip(expected, actual, strict=True):
            assert worst(one, other) <= 1e-4


@pytest.mark.parametrize("network", ["basic", "inputs_by_name", "time_shifted_block"])
def test_torch_runs_whole_networks(network: str) -> None:
    traced = zoo.traced(network)
    make_runtime("torch").prepare(merge(rewrite(traced, [])), traced.inputs.resized(1))()


@pytest.mark.parametrize("name", ONNX_READERS)
def test_an_exported_file_runs_and_is_served_at_any_batch_size(
    name: str, file: tuple[nn.Module, Path], tmp_path: Path
) -> None:
    module, written = file
    path = Path(shutil.copy(written, tmp_path / "a.onnx"))
    x = torch.randn(5, 3, 8, 9)
    run, network = make_runtime(name).prepare_file(path, Inputs((x,), {})), make_runtime(name).serve_file(path)
    path.unlink()  # neither needs the file any more
    (actual,) = arrays(run())
    with torch.no_grad():
        assert worst(module(x), actual) <= 1e-5
        for batch in (x, x[:2], x[3:]):
            served = network(batch)
            assert isinstance(served, Tensor)
            assert worst(module(batch), served) <= 1e-5


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> tuple[nn.Module, Path]:
    module, inputs = small()
    path = tmp_path_factory.mktemp("written") / "a.onnx"
    write_onnx(for_serving(module), path, inputs)
    return module.eval(), path


# -- what they serve


@pytest.mark.parametrize("name", ["torch", *ONNX_READERS])
def test_a_module_is_served_by_its_runtime(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What computes a score is what the latency was measured on, and no other runtime."""
    for other in ONNX_READERS:
        if other != name:
            monkeypatch.setattr(RUNTIMES[other], "session", None)
    module, inputs = small()
    before = module.training
    network = make_runtime(name).serve(module, inputs)
    assert module.training == before
    for batch in (1, 3):
        x = torch.randn(batch, 3, 8, 9)
        with torch.no_grad():
            assert worst(copy.deepcopy(module).eval()(x), network(x)) <= 1e-5


def test_torch_serves_in_its_own_dtype_and_layout_and_hands_back_float32() -> None:
    settings = RuntimeSettings(dtype="bfloat16", channels_last=True)
    module, inputs = _recorded()
    served = make_runtime("torch", settings).serve(module, inputs)(*inputs.args)
    assert Recorder.calls[-1]["out"].dtype == torch.bfloat16
    assert Recorder.calls[-1]["x"].is_contiguous(memory_format=torch.channels_last)
    assert served.dtype == torch.float32


@pytest.mark.parametrize("name", ONNX_READERS)
def test_several_outputs_and_inputs_by_name_are_served(name: str) -> None:
    class Both(nn.Module):
        def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
            return 2 * x - y, x * y

    x, y = torch.randn(2, 2, 4, 4), torch.randn(2, 2, 4, 4)
    network = make_runtime(name).serve(Both(), Inputs((x, y), {}))
    for found in (network(x, y), network(y=y, x=x)):
        assert worst([2 * x - y, x * y], list(found)) <= 1e-6
    with pytest.raises(RuntimeUnavailable, match="takes 2 inputs, but 1 were given"):
        network(x)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's own, when it loads its compiler
def test_torch_compile_compiles_and_runs() -> None:
    module, inputs = small()
    make_runtime("torch-compile").prepare(module, inputs)()


# -- what they say


@pytest.mark.parametrize(
    ("name", "package"), [("torch", "torch"), ("onnxruntime", "onnxruntime"), ("openvino", "openvino")]
)
def test_a_runtime_describes_what_its_measurements_depend_on(name: str, package: str) -> None:
    facts = make_runtime(name, RuntimeSettings(threads=3)).describe()
    version = importlib.import_module(package).__version__
    assert facts["version"] == version
    wanted = {"runtime": name, "device": "cpu", "threads": 3, "dtype": "float32", "channels_last": False}
    assert wanted.items() <= facts.items()
    assert facts["processor"]


def test_a_runtime_is_taken_as_it_is() -> None:
    made = make_runtime("torch", RuntimeSettings(channels_last=True))
    assert make_runtime(made, RuntimeSettings(threads=2)) is made


def test_threads_are_given_to_onnxruntime(monkeypatch: pytest.MonkeyPatch) -> None:
    import onnxruntime

    given: list[Any] = []
    real = onnxruntime.InferenceSession

    def session(path: str, options: Any, **more: Any) -> Any:
        given.append(options)
        return real(path, options, **more)

    monkeypatch.setattr(onnxruntime, "InferenceSession", session)
    make_runtime("onnxruntime", RuntimeSettings(threads=2)).prepare(*small(), small=True)
    assert given[0].intra_op_num_threads == 2


# -- what they refuse


def hide(monkeypatch: pytest.MonkeyPatch, package: str) -> None:
    """As if it were not installed."""
    real = importlib.import_module

    def find(name: str) -> Any:
        if name == package:
            raise ModuleNotFoundError(f"No module named '{name}'")
        return real(name)

    monkeypatch.setattr(importlib, "import_module", find)


def refusal(name: str, settings: RuntimeSettings | None = None) -> str:
    with pytest.raises((RuntimeUnavailable, MissingPackage)) as refused:
        make_runtime(name, settings)
    assert "\n" not in str(refused.value)
    return str(refused.value)


def test_an_unknown_runtime_is_refused_and_the_known_ones_named() -> None:
    message = refusal("tflite")
    assert message.startswith("unknown runtime 'tflite'; choose one of ")
    assert all(name in message for name in RUNTIMES)


@pytest.mark.parametrize("name", ONNX_READERS)
def test_a_missing_package_is_one_line_that_says_what_to_install(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    hide(monkeypatch, name)
    message = refusal(name)
    assert message == f"runtime '{name}' needs {name}, which is not installed; try: pip install 'layermerge[export]'"


def test_tensorrt_without_a_gpu_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert refusal("tensorrt") == "runtime 'tensorrt' needs an NVIDIA GPU, and torch sees none; choose another runtime"


def test_tensorrt_without_its_package_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    hide(monkeypatch, "tensorrt")
    assert "needs tensorrt, which is not installed; try: pip install 'tensorrt'" in refusal("tensorrt")


def test_torch_reads_no_onnx_files() -> None:
    with pytest.raises(RuntimeUnavailable, match=r"^runtime 'torch' does not read ONNX files; measure it from Python"):
        make_runtime("torch").prepare_file(Path("deep") / "a.onnx", small()[1])
    with pytest.raises(RuntimeUnavailable, match=r"^runtime 'torch' does not read ONNX files"):
        make_runtime("torch").serve_file(Path("deep") / "a.onnx")


@pytest.mark.parametrize("threads", [0, -1, 1_000_000])
def test_a_senseless_number_of_threads_is_refused_at_once(threads: int) -> None:
    with pytest.raises(RuntimeUnavailable, match=rf"^threads is {threads}; give a number from 1 to \d+$"):
        RuntimeSettings(threads=threads)


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("openvino", RuntimeSettings(device="cuda")),
        ("onnxruntime", RuntimeSettings(dtype="float16")),
        ("onnxruntime", RuntimeSettings(channels_last=True)),
        ("torch", RuntimeSettings(dtype="float99")),
    ],
)
def test_what_a_runtime_does_not_know_it_refuses(name: str, settings: RuntimeSettings) -> None:
    """As RuntimeSettings promises: otherwise a table would carry a description of what was not measured."""
    with pytest.raises(RuntimeUnavailable):
        make_runtime(name, settings).prepare(*small(), small=True)


@pytest.mark.parametrize("name", ONNX_READERS)
def test_no_files_are_left_behind(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    make_runtime(name).prepare(*small(), small=True)()
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_lost_an_input_is_not_fed_by_position() -> None:
    class OneUnread(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(3, 4, 3)

        def forward(self, unread: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
            del unread
            return self.conv(x)  # type: ignore[no-any-return]

    inputs = Inputs((torch.randn(1, 3, 8, 8), torch.randn(1, 3, 8, 8)), {})
    with pytest.raises(LayerMergeError, match="takes 1 inputs, but 2 were given"):
        make_runtime("onnxruntime").prepare(OneUnread(), inputs, small=True)


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
def test_torch_refuses_to_compute_in_whole_numbers(dtype: str) -> None:
    with pytest.raises(
        RuntimeUnavailable, match=f"computes in floating point, not in {dtype}; try float32 or bfloat16"
    ):
        make_runtime("torch", RuntimeSettings(dtype=dtype))
