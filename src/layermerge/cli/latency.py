"""The verb latency: the latency table, on the machine that it is run on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from layermerge.cli.app import JsonOption, app, print_json
from layermerge.cli.flags import RUNTIME, Flags, RunArgument, takes

if TYPE_CHECKING:
    from layermerge.runs.directory import RunDirectory
    from layermerge.runs.recipe import RunRecipe
    from layermerge.tables.latency import LatencyTable


@app.command()
@takes(*RUNTIME)
def latency(run_dir: RunArgument, as_json: JsonOption = False, *, flags: Flags) -> None:
    """Measure the latency table on this machine; continues where it stopped.

    For runtimes that read ONNX, plan.json and original.onnx are all it needs; runtime, batch size and threads are those of
    the run's recipe, unless flags say otherwise.

    Example: layermerge latency runs/a --runtime onnxruntime --threads 1
    """
    from layermerge.runs.directory import RunDirectory
    from layermerge.runs.opening import load_network
    from layermerge.runs.recipe_file import add_to_recipe, run_recipe
    from layermerge.runs.steps import measure_latency_from_files
    from layermerge.stages import expect

    directory = RunDirectory(run_dir)
    recipe = run_recipe(directory, None, flags.changes)
    expect(("latency",))
    table = measure_latency_from_files(
        directory,
        recipe.make_runtime(),
        recipe.batch_size,
        lambda: load_network(flags.recipe(run_dir)).module,
        recipe.stakes(),
    )
    if directory.recipe.is_file():
        add_to_recipe(directory, recipe)
    if not as_json:
        _show(table, directory, recipe)
        return
    print_json(
        {
            "entries": sum(workload is not None for workload in table.workloads.values()),
            "measured": table.distinct_workloads,
            "bounded": table.bounded,
            "original_ms": table.original_ms,
            "error_ms": table.original.error_ms,
            "fixed_ms": table.fixed_ms,
            "scale": table.scale,
        }
    )


def _show(table: LatencyTable, directory: RunDirectory, recipe: RunRecipe) -> None:
    from layermerge.cli.summary import Line, on_run, show_next, show_summary

    bounded = f"{table.bounded} of them only bounded: clearly slower than their layers" if table.bounded else ""
    entries = sum(workload is not None for workload in table.workloads.values())
    lines: list[Line] = [
        ("original network", "", f"{table.original} ms", f"{recipe.runtime}, batch {recipe.batch_size}"),
        ("fixed cost", "", f"{table.fixed_ms:.3f} ms", "what no choice changes: pooling, classifier and so on"),
        ("candidates", "", str(entries), ""),
        ("operations timed", "", str(table.distinct_workloads), bounded),
        ("scale of rows", "", f"{table.scale:.3f}", "so that the layers add up to the network"),
    ]
    for predicted, measured_ms in table.networks():
        lines.append(("a merged network", "", f"{measured_ms:.3f} ms", f"predicted {predicted} ms"))
    show_summary(f"Latency table of {directory.path}", lines, ("", ""))
    data = () if recipe.data is not None else ("--data", "SOURCE")
    show_next(
        (str(directory.latency), "the table; it comes back from a device"),
        (on_run("importance", directory.path, recipe, *data), "how much each candidate changes the answers"),
    )
