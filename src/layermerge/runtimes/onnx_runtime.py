"""onnxruntime on the CPU or CUDA."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from layermerge.runtimes.onnx_file import OnnxRuntimeBase, Session


class OnnxRuntime(OnnxRuntimeBase):
    """An inference session over the exported file."""

    name = "onnxruntime"
    package = "onnxruntime"
    extra = "layermerge[export]"

    def session(self, path: Path) -> tuple[list[str], Session]:
        library: Any = self.library
        options = library.SessionOptions()
        options.intra_op_num_threads = self.settings.threads
        options.inter_op_num_threads = 1
        # Spinning threads would slow down whatever else the machine does, and so the clock itself.
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        providers = ["CPUExecutionProvider"]
        if self.settings.device.startswith("cuda"):
            providers.insert(0, "CUDAExecutionProvider")
        session = library.InferenceSession(str(path), options, providers=providers)
        names = [value.name for value in session.get_inputs()]
        return names, lambda feed: session.run(None, feed)
