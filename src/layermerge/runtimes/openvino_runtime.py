"""OpenVINO on the CPU."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

from layermerge.errors import RuntimeUnavailable
from layermerge.runtimes.base import RuntimeSettings
from layermerge.runtimes.float16_file import in_float16
from layermerge.runtimes.onnx_file import Feed, OnnxRuntimeBase, ServedFile, Session
from layermerge.runtimes.onnx_owners import owner_named, owners_of
from layermerge.runtimes.recording import Operator, Recording
from layermerge.runtimes.signal_stack import kept_signal_stack
from layermerge.tracing.inputs import Inputs


class OpenVino(OnnxRuntimeBase):
    """A compiled model over the exported file."""

    name = "openvino"
    package = "openvino"
    extra = "layermerge[export]"
    dtypes: ClassVar[Sequence[str]] = ("float32", "float16")

    def __init__(self, settings: RuntimeSettings) -> None:
        if settings.device != "cpu":
            raise RuntimeUnavailable(f"runtime '{self.name}' runs on the cpu here, not on '{settings.device}'")
        super().__init__(settings)

    def describe(self) -> dict[str, str | int | bool]:
        return super().describe() | ({"arithmetic": self._arithmetic} if self.settings.dtype == "float16" else {})

    @property
    def _arithmetic(self) -> str:
        """What it really computes in, where it is asked for float16: the nearest that the processor has."""
        library: Any = self.library
        has = library.Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES")
        return "float16" if "FP16" in has else "bfloat16" if "BF16" in has else "float32"

    def for_float32(self) -> OnnxRuntimeBase:
        return OpenVino(replace(self.settings, dtype="float32"))

    def in_form(self, path: Path, inputs: Inputs) -> AbstractContextManager[Path]:
        """Where it computes in float16, a file of float16 weights."""
        return in_float16(path) if self.settings.dtype == "float16" else super().in_form(path, inputs)

    def session(self, path: Path) -> tuple[list[str], Session]:
        compiled = self._compiled(path)
        request = compiled.create_infer_request()
        return _names(compiled), lambda feed: request.infer(feed, share_inputs=True).to_tuple()

    def recorded(self, path: Path, inputs: Inputs) -> Recording:
        compiled = self._compiled(path, PERF_COUNT=True)
        request = compiled.create_infer_request()
        feed = ServedFile(_names(compiled), lambda given: request.infer(given).to_tuple()).feed(inputs.tensors)
        return _Profile(request, feed, owners_of(path))

    def _compiled(self, path: Path, **more: Any) -> Any:
        library: Any = self.library
        settings = {
            "INFERENCE_NUM_THREADS": self.settings.threads,
            "INFERENCE_PRECISION_HINT": {"float32": "f32", "float16": "f16"}[self.settings.dtype],
            "PERFORMANCE_HINT": "LATENCY",
        }
        with kept_signal_stack():
            return library.Core().compile_model(str(path), "CPU", settings | more)


def _names(compiled: Any) -> list[str]:
    return [value.any_name for value in compiled.inputs]


@dataclass(frozen=True)
class _Profile(Recording):
    """What the request says of its last pass, read after each."""

    request: Any
    feed: Feed
    owners: dict[str, str]
    found: list[Sequence[Operator]] = field(default_factory=list)

    def __call__(self) -> None:
        self.request.infer(self.feed, share_inputs=True)
        ran = (one for one in self.request.profiling_info if str(one.status).endswith(".EXECUTED"))
        self.found.append([self._operator(one) for one in ran])

    def _operator(self, one: Any) -> Operator:
        taken_ms = one.real_time.total_seconds() * 1e3
        return Operator(owner_named(self.owners, one.node_name), "Convolution" in one.node_type, taken_ms)

    def passes(self) -> list[Sequence[Operator]]:
        return self.found
