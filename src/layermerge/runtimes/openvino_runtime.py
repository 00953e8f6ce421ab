"""OpenVINO on the CPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from layermerge.runtimes.onnx_file import OnnxRuntimeBase


class OpenVino(OnnxRuntimeBase):
    """A compiled model over the exported file."""

    name = "openvino"
    package = "openvino"
    extra = "layermerge[export]"

    def session(self, path: Path) -> tuple[list[str], Any]:
        library: Any = self.library
        settings = {
            "INFERENCE_NUM_THREADS": self.settings.threads,
            "INFERENCE_PRECISION_HINT": "f32",
            "PERFORMANCE_HINT": "LATENCY",
        }
        compiled = library.Core().compile_model(str(path), "CPU", settings)
        request = compiled.create_infer_request()
        return [value.any_name for value in compiled.inputs], lambda feed: request.infer(feed, share_inputs=True)
