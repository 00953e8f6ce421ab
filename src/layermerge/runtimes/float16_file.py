"""float16 files: a float32 ONNX network with weights and feature maps of 16 bits; its inputs and outputs stay float32.

OpenVINO computes with them in float16 where the processor does, otherwise in bfloat16 or float32: the file is half as large
either way.
"""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from layermerge.errors import ArtifactError, first_line, require_package

_FLOAT16 = 10
"""onnx's `TensorProto.FLOAT16`."""


def write_float16(source: Path, target: Path) -> None:
    """Converts a float32 file; weights beyond float16's range are brought to its ends."""
    onnx: Any = require_package("onnx", "float16 files", "layermerge[export]")
    converter: Any = require_package("onnxruntime.transformers.float16", "float16 files", "layermerge[export]")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of weights below float16's smallest number
            model = converter.convert_float_to_float16(onnx.load(str(source)), keep_io_types=True)
    except Exception as error:  # the converter's own
        raise ArtifactError(f"'{source.name}' cannot be converted to float16: {first_line(error)}") from error
    onnx.save(model, str(target))


def holds_float16(path: Path) -> bool:
    onnx: Any = require_package("onnx", "float16 files", "layermerge[export]")
    weights = onnx.load(str(path), load_external_data=False).graph.initializer
    return any(tensor.data_type == _FLOAT16 for tensor in weights)


@contextmanager
def in_float16(path: Path) -> Iterator[Path]:
    """A float16 file of the same network; the file itself where it is one."""
    if holds_float16(path):
        yield path
        return
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "float16.onnx"
        write_float16(path, target)
        yield target
