"""The verb export: a network as a file that other runtimes read, with its figures where it belongs to a run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from layermerge.cli.app import JsonOption, app, report
from layermerge.cli.flags import Flags, RunArgument, takes

if TYPE_CHECKING:
    from layermerge.runs.networks import FoundNetwork


@app.command()
@takes("model", "weights", "input", "free_size", "data", "images", "budget", "method", "label")
def export(
    run_dir: RunArgument,
    to: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="A .onnx, .pt2 or .safetensors file; model.onnx beside the network by default."
        ),
    ] = None,
    as_json: JsonOption = False,
    *,
    flags: Flags,
) -> None:
    """Export a network, merged first if it is not, as a file that other runtimes read.

    RUN_DIR is a run, whose network for a budget is meant, or a directory that `save` wrote. In a run, what is exported is
    also measured and scored, for the report.

    Example: layermerge export runs/a --budget 60% --to fast.onnx
    """
    from layermerge.files import write_files
    from layermerge.runs.networks import find_network, merged
    from layermerge.runs.steps import count_convs
    from layermerge.runtimes.exporting import export as write_export

    found = find_network(run_dir, flags.recipe(run_dir))
    facts: dict[str, Any] = {}
    if found.variant is not None and found.recipe.data is not None:
        fast, facts = _served(run_dir, found)
    else:
        fast = merged(found.load())
    exported = (found.variant or found.place).exported
    path = to or exported
    if facts and exported.is_file() and path.suffix == exported.suffix:
        if path != exported:
            write_files({path: lambda file: _copy(exported, file)})
    else:
        write_export(fast, path, found.place.read_plan().example_inputs)
    report(as_json, {"convs": count_convs(fast), "exported_to": str(path), "bytes": path.stat().st_size, **facts})


def _copy(source: Path, target: Path) -> None:
    target.write_bytes(source.read_bytes())


def _served(run_dir: Path, found: FoundNetwork) -> tuple[Any, dict[str, Any]]:
    """What is exported, measured and scored as compress does, into result.json."""
    from layermerge.runs.networks import merged
    from layermerge.runs.opening import open_run
    from layermerge.runs.steps import serve, stamp_of, start_of

    assert found.variant is not None
    context = open_run(found.recipe, run_dir, found.recipe.method)
    fast = merged(found.load(context.model))
    recipe, variant = context.settings.finetune, found.variant.read_variant()
    stamp = stamp_of(context, start_of(context, fast.surgery.candidates), recipe)
    result = serve(context, variant, fast, recipe, stamp).report
    return fast, {"measured_ms": result.measured_ms, "budget_kept": result.budget_kept, "score": result.score.value}
