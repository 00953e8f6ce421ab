"""Context: one network, one task, one directory and how to go about it; what every step of a run is given.

Opening it traces the network and measures nothing. A directory of another network is refused here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from torch import nn

from layermerge.runs.directory import RunDirectory
from layermerge.runs.recipe import Settings
from layermerge.runtimes.base import Runtime
from layermerge.surgery.merge import MergedModule, merge
from layermerge.surgery.rewrite import rewrite
from layermerge.tasks.base import Task
from layermerge.tracing.trace import Trace, trace


@dataclass(frozen=True)
class Context:
    """Immutable. `teacher` is whom distillation listens to: the network itself, unless it is a stage of another's run."""

    model: nn.Module
    task: Task
    inputs: Any
    trace: Trace
    directory: RunDirectory
    settings: Settings
    runtime: Runtime
    teacher: nn.Module
    untouched: Callable[[], MergedModule]
    """The network as it came, norms folded and checked; made once, when it is first asked for."""

    def with_settings(self, settings: Settings) -> Context:
        return replace(self, settings=settings)


def open_context(
    model: nn.Module, task: Task, run_dir: str | Path, settings: Settings, teacher: nn.Module | None = None
) -> Context:
    """Traces the network; settings that cannot be kept here are refused before any work."""
    settings.require_machine()
    task = task.for_original(teacher or model)
    runtime, directory, inputs = settings.make_runtime(), RunDirectory(Path(run_dir)), task.example_inputs()
    traced = trace(model, inputs, free_size=settings.free_size)
    directory.require_same_network(traced.structure, traced.inputs, type(model).__name__)
    untouched = cache(lambda: merge(rewrite(traced, [])))
    return Context(model, task, inputs, traced, directory, settings, runtime, teacher or model, untouched)
