"""onnxruntime on the CPU or CUDA."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from layermerge.runtimes.base import RuntimeSettings
from layermerge.runtimes.onnx_file import OnnxRuntimeBase, as_array


class OnnxRuntime(OnnxRuntimeBase):
    """An inference session over the exported file."""

    name = "onnxruntime"
    package = "onnxruntime"
    extra = "layermerge[export]"

    def session(self, path: Path) -> tuple[list[str], Any]:
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


class OnnxFile:
    """An exported file that is called like the network it came from: tensors in, tensors out."""

    def __init__(self, path: Path, threads: int = 1) -> None:
        self._names, self._run = OnnxRuntime(RuntimeSettings(threads=threads)).session(path)

    def __call__(self, *inputs: Tensor) -> Tensor | tuple[Tensor, ...]:
        outputs = self._run({name: as_array(value) for name, value in zip(self._names, inputs, strict=True)})
        tensors = tuple(torch.from_numpy(output) for output in outputs)
        return tensors[0] if len(tensors) == 1 else tensors
