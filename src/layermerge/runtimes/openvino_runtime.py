"""OpenVINO on the CPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from layermerge.errors import RuntimeUnavailable
from layermerge.runtimes.base import RuntimeSettings
from layermerge.runtimes.onnx_file import OnnxRuntimeBase, Session
from layermerge.runtimes.signal_stack import kept_signal_stack


class OpenVino(OnnxRuntimeBase):
    """A compiled model over the exported file."""

    name = "openvino"
    package = "openvino"
    extra = "layermerge[export]"

    def __init__(self, settings: RuntimeSettings) -> None:
        if settings.device != "cpu":
            raise RuntimeUnavailable(f"runtime 'openvino' runs on the cpu here, not on '{settings.device}'")
        super().__init__(settings)

    def session(self, path: Path) -> tuple[list[str], Session]:
        library: Any = self.library
        settings = {
            "INFERENCE_NUM_THREADS": self.settings.threads,
            "INFERENCE_PRECISION_HINT": "f32",
            "PERFORMANCE_HINT": "LATENCY",
        }
        with kept_signal_stack():
            compiled = library.Core().compile_model(str(path), "CPU", settings)
        request = compiled.create_infer_request()
        names = [value.any_name for value in compiled.inputs]
        return names, lambda feed: request.infer(feed, share_inputs=True).to_tuple()
