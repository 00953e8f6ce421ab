"""Labelling: a written ONNX file is given the axes and the metadata of the file that its network was read from."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from layermerge.errors import require_package
from layermerge.tracing.file_interface import FileInterface, Port


def label_like(path: Path, known: FileInterface) -> None:
    """Free axes get their names back, a batch that was fixed is fixed again, metadata is added; names are there already."""
    onnx: Any = require_package("onnx", "writing ONNX metadata", "layermerge[export]")
    model = onnx.load(path)
    _label(model.graph.input, known.inputs)
    _label(model.graph.output, known.outputs)
    del model.graph.value_info[:]  # which speaks of axes by the names that they had
    onnx.helper.set_model_props(model, {each.key: each.value for each in model.metadata_props} | dict(known.metadata))
    onnx.save(model, path)


def _label(values: Sequence[Any], ports: Sequence[Port]) -> None:
    by_name = {port.name: port.axes for port in ports}
    for value in values:
        dims, axes = value.type.tensor_type.shape.dim, by_name.get(value.name)
        for dim, axis in zip(dims, axes, strict=True) if axes is not None and len(axes) == len(dims) else ():
            if dim.HasField("dim_value"):
                continue  # the network was traced for this size alone
            if isinstance(axis, int):
                dim.dim_value = axis
            else:
                dim.dim_param = axis
