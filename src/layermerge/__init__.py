"""layermerge makes trained convolutional networks shallower and faster on the machine they will be served on."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from layermerge import tasks as tasks
    from layermerge.calibration.calibrate import calibrate as calibrate
    from layermerge.conv import ConvSpec as ConvSpec
    from layermerge.errors import LayerMergeError as LayerMergeError
    from layermerge.onnx_in.importing import from_onnx as from_onnx
    from layermerge.planning.candidate import Candidate as Candidate
    from layermerge.planning.plan import Plan as Plan
    from layermerge.planning.plan import plan as plan
    from layermerge.planning.rules import Rules as Rules
    from layermerge.quantization.quantize import quantize as quantize
    from layermerge.runs.compare import compare as compare
    from layermerge.runs.compress import compress as compress
    from layermerge.runs.recipe import Settings as Settings
    from layermerge.runs.saving import load as load
    from layermerge.runs.saving import save as save
    from layermerge.runtimes.exporting import export as export
    from layermerge.solving.frontier import Frontier as Frontier
    from layermerge.solving.frontier import Solution as Solution
    from layermerge.solving.meet_budget import meet_budget as meet_budget
    from layermerge.solving.solve import solve as solve
    from layermerge.surgery.merge import merge as merge
    from layermerge.surgery.rewrite import rewrite as rewrite
    from layermerge.tables.importance import measure_importance as measure_importance
    from layermerge.tables.measuring import measure_latency as measure_latency
    from layermerge.tasks.base import Task as Task
    from layermerge.tracing.trace import Trace as Trace
    from layermerge.tracing.trace import trace as trace
    from layermerge.tuning.loop import finetune as finetune
    from layermerge.tuning.recipe import Recipe as Recipe

__version__ = "0.1.0"

_HOMES = {
    "Candidate": "layermerge.planning.candidate",
    "ConvSpec": "layermerge.conv",
    "LayerMergeError": "layermerge.errors",
    "Plan": "layermerge.planning.plan",
    "Rules": "layermerge.planning.rules",
    "Frontier": "layermerge.solving.frontier",
    "Solution": "layermerge.solving.frontier",
    "measure_latency": "layermerge.tables.measuring",
    "meet_budget": "layermerge.solving.meet_budget",
    "solve": "layermerge.solving.solve",
    "export": "layermerge.runtimes.exporting",
    "from_onnx": "layermerge.onnx_in.importing",
    "load": "layermerge.runs.saving",
    "merge": "layermerge.surgery.merge",
    "rewrite": "layermerge.surgery.rewrite",
    "save": "layermerge.runs.saving",
    "Recipe": "layermerge.tuning.recipe",
    "Settings": "layermerge.runs.recipe",
    "Task": "layermerge.tasks.base",
    "calibrate": "layermerge.calibration.calibrate",
    "compress": "layermerge.runs.compress",
    "compare": "layermerge.runs.compare",
    "finetune": "layermerge.tuning.loop",
    "measure_importance": "layermerge.tables.importance",
    "Trace": "layermerge.tracing.trace",
    "plan": "layermerge.planning.plan",
    "quantize": "layermerge.quantization.quantize",
    "tasks": "layermerge.tasks",
    "trace": "layermerge.tracing.trace",
}

__all__ = ["__version__", *sorted(_HOMES)]  # noqa: PLE0604


def __getattr__(name: str) -> Any:
    """Imports a public name when it is first used: torch takes seconds to import, `layermerge --help` must not."""
    if name not in _HOMES:
        raise AttributeError(f"module 'layermerge' has no attribute '{name}'")
    home = import_module(_HOMES[name])
    value = home if name == "tasks" else getattr(home, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return list(__all__)
