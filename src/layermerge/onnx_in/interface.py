"""What an ONNX file says of its inputs and outputs, and of itself: kept by the file that is written in its place."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from layermerge.errors import ModelError

Axis = int | str
"""A size, or the name of one that is free."""
_BATCH, _SIDES = 0, (2, 3)


@dataclass(frozen=True)
class Port:
    """An input or output: its name, and the size of each axis."""

    name: str
    axes: tuple[Axis, ...] | None
    """None where the file does not say."""

    def is_free(self, axis: int) -> bool:
        return self.axes is None or (axis < len(self.axes) and isinstance(self.axes[axis], str))


@dataclass(frozen=True)
class FileInterface:
    """Inputs and outputs by their order, and the metadata of the file."""

    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    metadata: tuple[tuple[str, str], ...] = ()

    @property
    def batch(self) -> int | None:
        """The one batch size that the file takes; None where it is free."""
        axes = self.inputs[0].axes
        return axes[_BATCH] if axes and isinstance(axes[_BATCH], int) else None

    @property
    def free_size(self) -> bool:
        """Whether height and width of every image are free."""
        images = [port for port in self.inputs if port.axes is not None and len(port.axes) == 4]
        return bool(images) and all(port.is_free(side) for port in images for side in _SIDES)

    @property
    def image_shape(self) -> tuple[int, ...] | None:
        """Of the one input without its batch, where the file says it."""
        axes = self.inputs[0].axes
        if len(self.inputs) != 1 or not axes or any(isinstance(axis, str) for axis in axes[1:]):
            return None
        return tuple(axis for axis in axes[1:] if isinstance(axis, int))


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
        raise ModelError(f"{place}: {side}put '{value.name}' is not a tensor; only networks of tensors can be read")
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
            raise ModelError(f"{place}: '{name}' has no values: its axis {number} is of size 0")
        found.append(size if size > 0 else dim.dim_param or f"{name}_{number}")
    return found
