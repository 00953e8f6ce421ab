"""onnxruntime and OpenVINO serving INT8 files.

What they are given to time is float32; they quantise it immediately. How long integers take does not depend on their values, so
any ranges will do. What they are given to serve has to be already quantised, on images (`layermerge.quantize`).
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import ClassVar

from torch import nn

from layermerge.errors import RuntimeUnavailable
from layermerge.runtimes.instructions import instructions_here
from layermerge.runtimes.int8_file import is_quantised, read_model, write_int8_for_timing
from layermerge.runtimes.onnx_file import OnnxRuntimeBase, ServedFile
from layermerge.runtimes.onnx_runtime import OnnxRuntime
from layermerge.runtimes.openvino_runtime import OpenVino
from layermerge.tracing.inputs import Inputs


class _InIntegers(OnnxRuntimeBase):
    """What both have in common."""

    integers = True
    plain: ClassVar[type[OnnxRuntimeBase]]

    def for_float32(self) -> OnnxRuntimeBase:
        return self.plain(self.settings)

    def describe(self) -> dict[str, str | int | bool]:
        here = instructions_here()
        return super().describe() | {"dtype": "int8", "scheme": here.scheme, "instructions": here.name}

    @contextmanager
    def in_form(self, path: Path, inputs: Inputs) -> Iterator[Path]:
        """The file, quantised unless it is, for timing."""
        model = read_model(path)
        if is_quantised(model):
            yield path
            return
        with tempfile.TemporaryDirectory() as folder:
            target = Path(folder) / "int8.onnx"
            write_int8_for_timing(model, target, inputs.tensors, instructions_here())
            yield target

    def serve(self, module: nn.Module, inputs: Inputs) -> ServedFile:
        del module, inputs
        raise RuntimeUnavailable(
            f"runtime '{self.name}' serves files that were quantised on images; "
            "make one: layermerge.quantize(module, images, path)"
        )

    def serve_file(self, path: Path) -> ServedFile:
        if not is_quantised(read_model(path)):
            raise RuntimeUnavailable(
                f"'{path.name}' is not quantised, and runtime '{self.name}' serves INT8 files; "
                "make one: layermerge.quantize(file, images, path)"
            )
        return super().serve_file(path)


class OnnxRuntimeInt8(_InIntegers, OnnxRuntime):
    """An inference session over an INT8 file."""

    name = "onnxruntime-int8"
    plain = OnnxRuntime


class OpenVinoInt8(_InIntegers, OpenVino):
    """A compiled model over an INT8 file."""

    name = "openvino-int8"
    plain = OpenVino
    dtypes = ("float32",)
