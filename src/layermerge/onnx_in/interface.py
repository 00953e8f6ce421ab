"""Inputs, outputs and metadata of an ONNX file, as the network that is read from it carries them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from layermerge.errors import ModelError
from layermerge.onnx_in.reading import shown
from layermerge.tracing.file_interface import Axis, FileInterface, Port


def interface_of(model: Any, place: str) -> FileInterface:
    """Reads it from a ModelProto. Inputs that are weights, as old files list them, are left out."""
    graph = model.graph
    weights = {tensor.name for tensor in graph.initializer}
    inputs = tuple(_port(each, place, "in") for each in graph.input if each.name not in weights)
    outputs = tuple(_port(each, place, "out") for each in graph.output)
    if not inputs or not outputs:
        raise ModelError(f"{place} has no {'outputs' if inputs else 'inputs'}; it is not a network")
    metadata = tuple((each.key, each.value) for each in model.metadata_props)
    return FileInterface(inputs, outputs, metadata)


def _port(value: Any, place: str, side: str) -> Port:
    if not value.type.HasField("tensor_type"):
        raise ModelError(
            f"{place}: {side}put '{shown(value.name)}' is not a tensor; only networks of tensors can be read"
        )
    kind = value.type.tensor_type
    if not kind.HasField("shape"):
        return Port(value.name, None)
    return Port(value.name, tuple(_axis(value.name, place, kind.shape.dim)))


def _axis(name: str, place: str, dims: Sequence[Any]) -> list[Axis]:
    """Some exporters write -1 or '?' for what is free, others leave it out."""
    found: list[Axis] = []
    for number, dim in enumerate(dims):
        size = dim.dim_value if dim.HasField("dim_value") else -1
        if size == 0:
            raise ModelError(f"{place}: '{shown(name)}' has no values: its axis {number} is of size 0")
        found.append(size if size > 0 else dim.dim_param or f"{name}_{number}")
    return found
