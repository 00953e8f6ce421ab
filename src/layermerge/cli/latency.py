"""The verb latency: the latency table, on the machine that it is run on."""

from __future__ import annotations

from layermerge.cli.app import JsonOption, app, print_json
from layermerge.cli.flags import RUNTIME, Flags, RunArgument, takes


@app.command()
@takes(*RUNTIME)
def latency(run_dir: RunArgument, as_json: JsonOption = False, *, flags: Flags) -> None:
    """Measure the latency table on this machine; goes on where it stopped.

    For runtimes that read ONNX, plan.json and original.onnx are all it needs; runtime, batch size and threads are those of
    the run's recipe, unless flags say otherwise.

    Example: layermerge latency runs/a --runtime onnxruntime --threads 1
    """
    from layermerge.runs.directory import RunDirectory
    from layermerge.runs.opening import load_network
    from layermerge.runs.recipe_file import add_to_recipe, run_recipe
    from layermerge.runs.steps import measure_latency_from_files

    directory = RunDirectory(run_dir)
    recipe = run_recipe(directory, None, flags.changes)
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
        print(f"{table}; written to {directory.latency}")
        for predicted, measured_ms in table.networks():
            print(f"a merged network: predicted {predicted}, measured {measured_ms:.3f} ms")
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
