"""Context: one network, one task, one directory and how to go about it; what every step of a run is given.

Opening it traces the network and measures nothing. A directory of another network is refused here.
"""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from torch import nn

from layermerge.errors import ArtifactError, RecipeError, TraceError
from layermerge.runs.directory import RunDirectory
from layermerge.runs.recipe import Settings
from layermerge.runtimes.base import Runtime
from layermerge.runtimes.writing import for_serving, write_onnx
from layermerge.surgery.merge import MergedModule, merge
from layermerge.surgery.rewrite import rewrite
from layermerge.tasks.base import Task
from layermerge.tracing.file_interface import file_interface_of
from layermerge.tracing.trace import Trace, trace


@dataclass(frozen=True)
class Context:
    """Immutable. Distillation learns from `teacher`: the network itself, unless it is a stage of another's run."""

    model: nn.Module
    task: Task
    inputs: Any
    trace: Trace
    directory: RunDirectory
    settings: Settings
    runtime: Runtime
    teacher: nn.Module
    untouched: Callable[[], MergedModule]
    """The network as it was given, norms folded and checked; made once, when it is first asked for."""

    def with_settings(self, settings: Settings) -> Context:
        return replace(self, settings=settings)


def trace_as_served(model: nn.Module, inputs: Any, *, free_size: bool) -> Trace:
    """Traces a network; one whose file leaves height and width free keeps them free, if torch can write such a file again."""
    known = file_interface_of(model)
    if free_size or known is None or not known.free_size:
        return trace(model, inputs, free_size=free_size)
    try:
        traced = trace(model, inputs, free_size=True)
        with tempfile.TemporaryDirectory() as folder:
            write_onnx(for_serving(traced.module), Path(folder) / "tried.onnx", traced.inputs)
        return traced
    except (TraceError, ArtifactError) as error:
        traced = trace(model, inputs)
        warnings.warn(f"height and width are fixed in the new file, though not in the given one: {error}", stacklevel=2)
        return traced


def open_context(
    model: nn.Module, task: Task, run_dir: str | Path, settings: Settings, teacher: nn.Module | None = None
) -> Context:
    """Traces the network; settings that cannot be kept here are refused before any work."""
    settings.require_machine()
    task = task.for_original(teacher or model)
    runtime, directory, inputs = settings.make_runtime(), RunDirectory(Path(run_dir)), task.example_inputs()
    known = file_interface_of(model)
    if known is not None and known.batch not in (None, settings.batch_size):
        raise RecipeError(f"the network's file takes batches of {known.batch}; set batch_size: {known.batch}")
    traced = trace_as_served(model, inputs, free_size=settings.free_size)
    directory.require_same_network(traced.structure, traced.inputs, type(model).__name__)
    untouched = cache(lambda: merge(rewrite(traced, [])))
    return Context(model, task, inputs, traced, directory, settings, runtime, teacher or model, untouched)
