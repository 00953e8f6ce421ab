"""A runtime: what will execute the network when it is served. One file each; this is what they have in common."""

from __future__ import annotations

import os
import platform
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

from torch import nn

from layermerge.arguments import checked
from layermerge.errors import RuntimeUnavailable, require_package
from layermerge.runtimes.clock import Clocks, ClockSettings, Rounds, Sample, run_side_by_side
from layermerge.runtimes.recording import Recording
from layermerge.tracing.inputs import Inputs

Pass = Callable[[], object]
"""One pass, finished when it returns. A float that it returns is its own time in milliseconds, as a GPU's events give it."""
Served = Callable[..., Any]
"""A network as it is served: tensors in, tensors out, like the module it came from."""


@dataclass(frozen=True)
class Copies:
    """A network that was built more than once: passes to time, and passes that are recorded."""

    passes: Sequence[Pass]
    recordings: Sequence[Recording]


MOST_AT_ONCE = max(64, 4 * (os.cpu_count() or 1))
"""Threads or processes that are worth starting here; a much larger number keeps the machine busy with starting them."""


@checked(RuntimeUnavailable)
@dataclass(frozen=True)
class RuntimeSettings:
    """How a runtime executes. What a runtime does not know, it refuses."""

    threads: int = 1
    device: str = "cpu"
    dtype: str = "float32"
    channels_last: bool = False

    def __post_init__(self) -> None:
        if not 1 <= self.threads <= MOST_AT_ONCE:
            raise RuntimeUnavailable(f"threads is {self.threads}; give a number from 1 to {MOST_AT_ONCE}")


class Runtime(ABC):
    """Builds modules and files into passes that can be timed, and into networks that can be called."""

    name: ClassVar[str]
    package: ClassVar[str]
    extra: ClassVar[str]
    reads_onnx: ClassVar[bool] = False
    clocks: ClassVar[Clocks] = Clocks()
    copies: ClassVar[int] = 3
    """How many are built of a network that is timed whole. Where it happens to lie in memory makes one faster than another."""
    fuses: ClassVar[bool] = True
    """Whether an activation runs within the conv before it."""

    now: Callable[[], float] = staticmethod(time.perf_counter)
    """The clock that its passes are timed by, in seconds."""

    def __init__(self, settings: RuntimeSettings) -> None:
        self.settings = settings
        self.library = self._load()

    def _load(self) -> ModuleType:
        return require_package(self.package, f"runtime '{self.name}'", self.extra)

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
        raise self._reads_no_files()

    def record(self, module: nn.Module, inputs: Inputs, *, small: bool = False) -> Recording | None:
        """Passes of the module in which each operator is timed; None where the runtime does not report it."""
        del module, inputs, small
        return None

    def record_file(self, path: Path, inputs: Inputs) -> Recording | None:
        """The same of an exported ONNX file."""
        del path, inputs
        return None

    def copies_of(self, module: nn.Module, inputs: Inputs, *, passes: int, recordings: int = 0) -> Copies:
        """This many passes of a whole network, each of a copy of its own; and recorded ones, where the runtime reports it."""
        told = (self.record(module, inputs) for _ in range(recordings))
        return Copies([self.prepare(module, inputs) for _ in range(passes)], [one for one in told if one is not None])

    def copies_of_file(self, path: Path, inputs: Inputs, *, passes: int, recordings: int = 0) -> Copies:
        """The same of an exported ONNX file."""
        told = (self.record_file(path, inputs) for _ in range(recordings))
        return Copies(
            [self.prepare_file(path, inputs) for _ in range(passes)], [one for one in told if one is not None]
        )

    @abstractmethod
    def serve(self, module: nn.Module, inputs: Inputs) -> Served:
        """The module as this runtime computes it, whose scores are those of what is served; `inputs` show how it is called."""

    def serve_file(self, path: Path) -> Served:
        """The network of an exported ONNX file."""
        del path
        raise self._reads_no_files()

    def _reads_no_files(self) -> RuntimeUnavailable:
        return RuntimeUnavailable(
            f"runtime '{self.name}' does not read ONNX files; measure it from Python, where the model is"
        )

    def time(
        self, runs: Mapping[str, Pass], settings: ClockSettings, *, between: Pass = lambda: None
    ) -> dict[str, Sample]:
        """Times passes of this runtime side by side, and leaves the process as it was."""
        return self.rounds(runs, settings, between=between).samples()

    def rounds(self, runs: Mapping[str, Pass], settings: ClockSettings, *, between: Pass = lambda: None) -> Rounds:
        """The same, pass by pass."""
        with self.running():
            return run_side_by_side(runs, settings, between=between, now=self.now, used=self.used)

    @property
    def used(self) -> Callable[[], float] | None:
        """Processor time, where passes take just that: of one thread on a processor."""
        return time.process_time if self.settings.threads == 1 and self.settings.device == "cpu" else None

    def elsewhere(self, number: int) -> AbstractContextManager[None]:
        """Within it, feature maps lie at other addresses, others for each number, where passes allocate them each time.

        Their distances decide which of them get into each other's way; runtimes that plan memory do that once for all copies.
        """
        del number
        return nullcontext()

    def running(self) -> AbstractContextManager[None]:
        """The state of the process in which passes run, where a runtime has its settings there."""
        return nullcontext()
