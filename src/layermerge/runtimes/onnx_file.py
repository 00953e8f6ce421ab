"""Runtimes that read ONNX: how a module becomes a file for them, and inputs become arrays."""

from __future__ import annotations

import tempfile
import warnings
from abc import abstractmethod
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from layermerge.errors import RuntimeUnavailable
from layermerge.runtimes.base import Pass, Runtime, RuntimeSettings
from layermerge.runtimes.exporting import for_serving, quiet, write_onnx
from layermerge.tracing.capture import Inputs


class OnnxRuntimeBase(Runtime):
    """Exports the module, then runs the file: what is timed is the artifact."""

    reads_onnx = True

    def __init__(self, settings: RuntimeSettings) -> None:
        if settings.dtype != "float32" or settings.channels_last:
            raise RuntimeUnavailable(
                f"runtime '{self.name}' takes float32 files in its own layout; drop dtype and channels_last"
            )
        super().__init__(settings)

    @abstractmethod
    def session(self, path: Path) -> tuple[list[str], Any]:
        """The file's input names, and a function from named arrays to a finished pass."""

    def prepare(self, module: nn.Module, inputs: Inputs, *, small: bool = False) -> Pass:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "graph.onnx"
            served = for_serving(module)
            if small:
                _export_quickly(served, path, inputs)
            else:
                write_onnx(served, path, inputs)
            return self.prepare_file(path, inputs)

    def prepare_file(self, path: Path, inputs: Inputs) -> Pass:
        names, run = self.session(path)
        arrays = [as_array(tensor) for tensor in inputs.tensors]
        if len(names) != len(
            arrays
        ):  # an input that the network never reads is gone from the file; which one is not known
            raise RuntimeUnavailable(
                f"the exported network takes {len(names)} inputs, but {len(arrays)} were given; leave out what it never reads"
            )
        feed = dict(zip(names, arrays, strict=True))
        return lambda: run(feed)


def as_array(tensor: Tensor) -> np.ndarray[Any, Any]:
    return np.ascontiguousarray(tensor.detach().cpu().numpy())


def _export_quickly(module: nn.Module, path: Path, inputs: Inputs) -> None:
    """The TorchScript exporter: 30 times faster than the other on graphs of a few operators, and the same file for those."""
    with quiet(), warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        torch.onnx.export(module, inputs.args, str(path), dynamo=False)
