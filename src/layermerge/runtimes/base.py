"""A runtime: what will execute the network when it is served. One file each; this is what they have in common."""

from __future__ import annotations

import importlib
import importlib.util
import platform
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import ClassVar

from torch import nn

from layermerge.errors import RuntimeUnavailable
from layermerge.tracing.capture import Inputs

Pass = Callable[[], object]
"""One pass, finished when it returns. A float that it returns is its own time in milliseconds, as a GPU's events give it."""


@dataclass(frozen=True)
class RuntimeSettings:
    """How a runtime executes. What a runtime does not know, it refuses."""

    threads: int = 1
    device: str = "cpu"
    dtype: str = "float32"
    channels_last: bool = False

    def __post_init__(self) -> None:
        if self.threads < 1:
            raise RuntimeUnavailable(f"threads is {self.threads}; it must be at least 1")


class Runtime(ABC):
    """Builds modules and files into passes that can be timed."""

    name: ClassVar[str]
    package: ClassVar[str]
    extra: ClassVar[str]
    reads_onnx: ClassVar[bool] = False

    def __init__(self, settings: RuntimeSettings) -> None:
        self.settings = settings
        self.library = self._load()

    def _load(self) -> ModuleType:
        if importlib.util.find_spec(self.package.split(".")[0]) is None:
            raise RuntimeUnavailable(
                f"runtime '{self.name}' needs {self.package}, which is not installed; try: pip install '{self.extra}'"
            )
        return importlib.import_module(self.package)

    def describe(self) -> dict[str, str | int | bool]:
        """What a measurement depends on; part of every table's provenance."""
        return {
            "runtime": self.name,
            "version": str(getattr(self.library, "__version__", "unknown")),
            "device": self.settings.device,
            "processor": platform.processor() or platform.machine(),
            "threads": self.settings.threads,
            "dtype": self.settings.dtype,
            "channels_last": self.settings.channels_last,
        }

    @abstractmethod
    def prepare(self, module: nn.Module, inputs: Inputs, *, small: bool = False) -> Pass:
        """A pass of the module on these inputs; `small` graphs are built the quickest way there is."""

    def prepare_file(self, path: Path, inputs: Inputs) -> Pass:
        """A pass of an exported ONNX file on these inputs."""
        del path, inputs
        raise RuntimeUnavailable(
            f"runtime '{self.name}' does not read ONNX files; measure it from Python, where the model is"
        )
