"""The verbs of single stages: plan, latency, solve, merge, export."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import Annotated, Any

import typer

from layermerge.cli.app import InputOption, JsonOption, ModelArgument, WeightsOption, app, console, print_json, report


class RuleSet(str, Enum):
    """Which rules the plan follows."""

    ours = "ours"
    paper = "paper"


class Method(str, Enum):
    """What the plan may offer."""

    layermerge = "layermerge"
    depth = "depth"
    layeronly = "layeronly"


class ObjectiveChoice(str, Enum):
    """What the solver sums."""

    exp = "exp"
    delta = "delta"


@app.command()
def plan(
    model: ModelArgument,
    input: InputOption = None,
    rules: Annotated[RuleSet, typer.Option(help="Our rules, or those of the paper.")] = RuleSet.ours,
    method: Annotated[Method, typer.Option(help="Which candidates to choose from.")] = Method.layermerge,
    pin: Annotated[
        list[str] | None, typer.Option(metavar="GLOB", help="Layers to leave as they are; repeatable.")
    ] = None,
    exclude: Annotated[
        list[str] | None, typer.Option(metavar="GLOB", help="Layers to leave out of the table; repeatable.")
    ] = None,
    max_kernel: Annotated[int | None, typer.Option(help="Largest side of a merged kernel; 0 for no bound.")] = None,
    weights: WeightsOption = None,
    run_dir: Annotated[Path | None, typer.Option(metavar="DIR", help="Write plan.json and original.onnx here.")] = None,
    with_weights: Annotated[bool, typer.Option("--with-weights", help="Keep the weights in original.onnx.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Show every layer, what it can merge with, and why not further.

    Example: layermerge plan timm:resnet34 --input 3x224x224 --pin 'layer4.*'
    """
    from dataclasses import replace

    from layermerge.models import load_model, parse_shape
    from layermerge.planning.listing import plan_document, plan_table
    from layermerge.planning.plan import plan as make_plan
    from layermerge.planning.rules import Rules
    from layermerge.tracing.trace import trace

    chosen = Rules.paper() if rules is RuleSet.paper else Rules()
    chosen = replace(chosen, pin=tuple(pin or ()), exclude=tuple(exclude or ()))
    if max_kernel is not None:
        chosen = replace(chosen, max_kernel=max_kernel or None)
    shape = parse_shape(input) if input is not None else None
    loaded = load_model(model, weights, shape)
    traced = trace(loaded.module, loaded.example_inputs)
    menu = make_plan(traced, chosen, method.value)
    if run_dir is not None:
        from layermerge.runs.directory import write_plan

        write_plan(run_dir, traced, menu, with_weights=with_weights)
    if as_json:
        print_json(plan_document(menu))
    else:
        whose = "the paper's" if rules is RuleSet.paper else "our"
        title = f"{model}: {whose} rules, method {method.value}"
        console().print(plan_table(menu, traced.blocks, title))


PlannedArgument = Annotated[Path, typer.Argument(metavar="RUN_DIR", help="A run directory with plan.json.")]


@app.command()
def latency(
    run_dir: PlannedArgument,
    runtime: Annotated[str, typer.Option(help="onnxruntime, openvino or tensorrt.")] = "onnxruntime",
    batch: Annotated[int, typer.Option("--batch", "-b", min=1, help="Batch size.")] = 1,
    threads: Annotated[int, typer.Option(min=1, help="Threads of the runtime.")] = 1,
    as_json: JsonOption = False,
) -> None:
    """Measure the latency table on this machine, from plan.json and original.onnx alone; goes on where it stopped.

    Example: layermerge latency runs/a --runtime onnxruntime --threads 1
    """
    from layermerge.runs.directory import LATENCY, measure_run
    from layermerge.runtimes.base import RuntimeSettings
    from layermerge.runtimes.registry import make_runtime

    table = measure_run(run_dir, make_runtime(runtime, RuntimeSettings(threads=threads)), batch)
    if not as_json:
        print(f"{table}; written to {run_dir / LATENCY}")
        return
    print_json(
        {
            "entries": sum(work is not None for work in table.workloads.values()),
            "measured": table.distinct_workloads,
            "original_ms": table.original_ms,
            "fixed_ms": table.fixed_ms,
            "scale": table.scale,
        }
    )


@app.command()
def solve(
    run_dir: PlannedArgument,
    budget: Annotated[str | None, typer.Option(help="60%, 1.8x or 12ms; without it, the frontier is listed.")] = None,
    objective: Annotated[ObjectiveChoice, typer.Option(help="exp, as the paper, or delta.")] = ObjectiveChoice.exp,
    tick: Annotated[
        float | None, typer.Option(metavar="MS", help="Round latencies up to this, for huge networks.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Find the best choice of candidates for every budget at once, from the run's latency and importance tables.

    Example: layermerge solve runs/a --budget 60%
    """
    from layermerge.runs.directory import solve_run

    frontier = solve_run(run_dir, objective.value, tick)
    if budget is None:
        if as_json:
            print_json(frontier.to_document())
        else:
            print(frontier)
        return
    solution = frontier.at(budget)
    facts: dict[str, Any] = {"latency_ms": solution.latency_ms, "importance": solution.importance}
    keys = [candidate.key for candidate in solution.candidates]
    convs = sum(len(candidate.kept) for candidate in solution.candidates)
    report(as_json, {**facts, "candidates": keys if as_json else len(keys), "convs_kept": convs})


RunArgument = Annotated[
    Path, typer.Argument(metavar="RUN_DIR", help="A run directory: plan.json, solution.json, model.safetensors.")
]
ModelOption = Annotated[str, typer.Option("--model", metavar="MODEL", help="The original network, named as for plan.")]


@app.command()
def merge(
    run_dir: RunArgument,
    model: ModelOption,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Where the merged network goes; RUN_DIR/merged by default.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Merge a saved, fine-tuned network into few convolutions, exactly, and save it.

    Example: layermerge merge runs/a --model timm:resnet34
    """
    from layermerge.models import load_model
    from layermerge.runs.saving import load, save

    loaded = load(run_dir, load_model(model).module)
    fast = _merged(loaded)
    target = out or run_dir / "merged"
    save(target, fast)
    report(as_json, {"convs_before": _count_convs(loaded), "convs_after": _count_convs(fast), "saved_to": str(target)})


@app.command()
def export(
    run_dir: RunArgument,
    model: ModelOption,
    to: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="A .onnx, .pt2 or .safetensors file; RUN_DIR/model.onnx by default."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Export a saved network, merged first if it is not, as a file that other runtimes read.

    Example: layermerge export runs/a --model timm:resnet34 --to resnet34.onnx
    """
    from layermerge.files import read_document
    from layermerge.models import load_model
    from layermerge.runs.plan_file import PlanFile
    from layermerge.runs.saving import PLAN, load
    from layermerge.runtimes.exporting import export as write_export

    fast = _merged(load(run_dir, load_model(model).module))
    path = write_export(fast, to or run_dir / "model.onnx", read_document(run_dir / PLAN, PlanFile).example_inputs)
    report(as_json, {"convs": _count_convs(fast), "exported_to": str(path), "bytes": path.stat().st_size})


def _merged(module: Any) -> Any:
    from layermerge.surgery.merge import MergedModule
    from layermerge.surgery.merge import merge as merge_module

    return module if isinstance(module, MergedModule) else merge_module(module)


def _count_convs(module: Any) -> int:
    from torch import nn

    return sum(isinstance(part, nn.Conv2d) for part in module.modules())
