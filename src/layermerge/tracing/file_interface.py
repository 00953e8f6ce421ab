"""File interface: what the file that a network was read from says of its inputs, outputs and itself.

A network that came from a file carries it, and the file that is written in its place keeps it.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

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

    @property
    def image_shape(self) -> tuple[int, ...] | None:
        """Without the batch; None where the file leaves a part of it free."""
        sizes = tuple(axis for axis in self.axes[1:] if isinstance(axis, int)) if self.axes else ()
        return sizes if self.axes and len(sizes) == len(self.axes) - 1 else None


@dataclass(frozen=True)
class FileInterface:
    """Inputs and outputs by their order, and the metadata of the file."""

    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    metadata: tuple[tuple[str, str], ...] = ()

    @property
    def batch(self) -> int | None:
        """The one batch size that the file takes; None where it is free."""
        first = self.inputs[0].axes[_BATCH] if self.inputs[0].axes else None
        return first if isinstance(first, int) else None

    @property
    def free_size(self) -> bool:
        """Whether height and width of every image are free."""
        images = [port for port in self.inputs if port.axes is not None and len(port.axes) == 4]
        return bool(images) and all(port.is_free(side) for port in images for side in _SIDES)


def file_interface_of(model: nn.Module) -> FileInterface | None:
    """Of a network that was read from a file; None of any other."""
    found = getattr(model, "file_interface", None)
    return found if isinstance(found, FileInterface) else None
