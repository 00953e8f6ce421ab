"""Runtimes that read ONNX: how a module becomes a file for them, and tensors become arrays."""

from __future__ import annotations

import tempfile
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from layermerge.errors import RuntimeUnavailable
from layermerge.runtimes.base import Copies, Pass, Runtime, RuntimeSettings
from layermerge.runtimes.recording import Recording
from layermerge.runtimes.writing import for_serving, write_onnx, write_onnx_quickly
from layermerge.tracing.inputs import Inputs

Array = np.ndarray[Any, Any]
Feed = Mapping[str, Array]
Read = TypeVar("Read")
Session = Callable[[Feed], Sequence[Array]]
"""Runs a file on arrays by the names of its inputs."""


@dataclass(frozen=True)
class ServedFile:
    """An exported file that is called like the network it came from: tensors by position or by name, tensors out."""

    names: Sequence[str]
    session: Session

    def __call__(self, *inputs: Tensor, **named: Tensor) -> Tensor | tuple[Tensor, ...]:
        outputs = self.session(self.feed(inputs) | {name: as_array(value) for name, value in named.items()})
        tensors = tuple(torch.from_numpy(np.array(output)) for output in outputs)
        return tensors[0] if len(tensors) == 1 else tensors

    def feed(self, inputs: Sequence[Tensor]) -> dict[str, Array]:
        """Inputs by position. One that the network never reads is gone from the file; which one is not known."""
        if inputs and len(self.names) != len(inputs):
            raise RuntimeUnavailable(
                f"the exported network takes {len(self.names)} inputs, but {len(inputs)} were given; "
                "leave out what it never reads"
            )
        return {name: as_array(tensor) for name, tensor in zip(self.names, inputs, strict=False)}


@dataclass(frozen=True)
class InParts:
    """A file that takes batches of one size, called with any number of images: part by part."""

    network: Callable[..., Any]
    batch: int

    def __call__(self, *inputs: Tensor) -> Tensor | tuple[Tensor, ...]:
        count, found = len(inputs[0]), list[tuple[Tensor, ...]]()
        for start in range(0, count, self.batch):
            rows = torch.arange(start, start + self.batch).clamp(max=count - 1)  # the last part is filled up
            outputs = self.network(*(tensor[rows] for tensor in inputs))
            several = outputs if isinstance(outputs, tuple) else (outputs,)
            found.append(tuple(tensor[: count - start] for tensor in several))
        joined = tuple(torch.cat(column) for column in zip(*found, strict=True))
        return joined if len(joined) > 1 else joined[0]


class OnnxRuntimeBase(Runtime):
    """Exports the module, then runs the file: what is timed is the artifact."""

    reads_onnx = True
    dtypes: ClassVar[Sequence[str]] = ("float32",)
    """What it computes in, at choice."""
    integers: ClassVar[bool] = False
    """Whether it serves INT8 files."""

    def __init__(self, settings: RuntimeSettings) -> None:
        if settings.channels_last:
            raise RuntimeUnavailable(f"runtime '{self.name}' has a layout of its own; drop channels_last")
        if settings.dtype not in self.dtypes:
            integers = "; for int8 there are the runtimes onnxruntime-int8 and openvino-int8"
            raise RuntimeUnavailable(
                f"runtime '{self.name}' computes in {' or '.join(self.dtypes)}, not in {settings.dtype}"
                f"{integers if settings.dtype == 'int8' else '; drop dtype'}"
            )
        super().__init__(settings)

    def for_float32(self) -> OnnxRuntimeBase:
        """The same library, computing float32 files as such; INT8 files too."""
        return self

    def in_form(self, path: Path, inputs: Inputs) -> AbstractContextManager[Path]:
        """The file that it serves in place of a float32 one: another form of the same network, for as long as it is read."""
        del inputs
        return nullcontext(path)

    @abstractmethod
    def session(self, path: Path) -> tuple[list[str], Session]:
        """The file's input names, and the session that runs it."""

    def bound(self, session: Session, feed: Feed) -> Pass:
        """A pass on these arrays, which need not be handed over again."""
        return lambda: session(feed)

    def recorded(self, path: Path, inputs: Inputs) -> Recording | None:
        """Passes of the file in which each operator is timed; None where the runtime does not report it."""
        del path, inputs
        return None

    def prepare(self, module: nn.Module, inputs: Inputs, *, small: bool = False) -> Pass:
        return self._exported(module, inputs, lambda path: self.prepare_file(path, inputs), small=small)

    def prepare_file(self, path: Path, inputs: Inputs) -> Pass:
        with self.in_form(path, inputs) as served:
            return self._pass(ServedFile(*self.session(served)), inputs)

    def _pass(self, network: ServedFile, inputs: Inputs) -> Pass:
        return self.bound(network.session, network.feed(inputs.tensors))

    def record(self, module: nn.Module, inputs: Inputs, *, small: bool = False) -> Recording | None:
        if self.settings.device != "cpu":
            return None
        return self._exported(module, inputs, lambda path: self.record_file(path, inputs), small=small)

    def copies_of(self, module: nn.Module, inputs: Inputs, *, passes: int, recordings: int = 0) -> Copies:
        def copies(path: Path) -> Copies:
            return self.copies_of_file(path, inputs, passes=passes, recordings=recordings)

        return self._exported(module, inputs, copies)

    def copies_of_file(self, path: Path, inputs: Inputs, *, passes: int, recordings: int = 0) -> Copies:
        with self.in_form(path, inputs) as served:
            return super().copies_of_file(served, inputs, passes=passes, recordings=recordings)

    def record_file(self, path: Path, inputs: Inputs) -> Recording | None:
        with self.in_form(path, inputs) as served:
            return self.recorded(served, inputs)

    def _exported(
        self, module: nn.Module, inputs: Inputs, read: Callable[[Path], Read], *, small: bool = False
    ) -> Read:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "graph.onnx"
            write = write_onnx_quickly if small else write_onnx
            write(for_serving(module), path, inputs)
            return read(path)

    def serve(self, module: nn.Module, inputs: Inputs) -> ServedFile:
        return self._exported(module, inputs, self.serve_file)

    def serve_file(self, path: Path) -> ServedFile:
        return ServedFile(*self.session(path))


def as_array(tensor: Tensor) -> Array:
    return np.ascontiguousarray(tensor.detach().cpu().numpy())
