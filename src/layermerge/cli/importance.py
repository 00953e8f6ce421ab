"""The verb importance: how much each candidate changes what the network is for."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from layermerge.cli.app import JsonOption, app, print_json
from layermerge.cli.flags import Flags, RecipeOption, RunArgument, takes

if TYPE_CHECKING:
    from layermerge.runs.directory import RunDirectory
    from layermerge.tables.cost import TableCost


@app.command()
@takes("model", "weights", "input", "free_size", "data", "images", "method", "workers", "executor", "address")
def importance(
    run_dir: RunArgument,
    recipe: RecipeOption = None,
    shard: Annotated[str | None, typer.Option(help="Measure part 2/4 only, into a file of its own.")] = None,
    as_json: JsonOption = False,
    *,
    flags: Flags,
) -> None:
    """Measure the importance table; continues where it stopped. What latency rules out is spared.

    Example: layermerge importance runs/a --recipe recipes/cifar10_resnet20.yaml --workers 2
    """
    from layermerge.runs.opening import open_run
    from layermerge.runs.recipe_file import add_to_recipe
    from layermerge.runs.steps import measure_importance_step, measure_latency_step, menu_of
    from layermerge.stages import expect
    from layermerge.tables.cost import table_cost
    from layermerge.tables.shards import WHOLE_TABLE, parse_shard, shard_path

    part = WHOLE_TABLE if shard is None else parse_shard(shard)
    chosen = flags.recipe(run_dir, recipe)
    expect(("network", "plan", "latency", "importance"))
    context = open_run(chosen, run_dir, chosen.method)
    menu = menu_of(context, chosen.method)
    latency = measure_latency_step(context, menu)
    cost = table_cost(menu.plan, measure_importance_step(context, menu, latency, part), latency)
    add_to_recipe(context.directory, chosen)
    if as_json:
        print_json(asdict(cost))
    else:
        _show(cost, context.directory, shard_path(context.directory.importance, part))


def _show(cost: TableCost, directory: RunDirectory, written: Path) -> None:
    from layermerge.cli.summary import Line, on_run, show_next, show_summary
    from layermerge.stages import in_words

    lines: list[Line] = [
        ("candidates", "", str(cost.entries), ""),
        ("scored", "", str(cost.scored), f"in {in_words(cost.importance_seconds)} of processor time"),
        ("ruled out", "", str(cost.ruled_out), "by latency: not faster than what they stand for"),
        ("failed", "", str(cost.failed), "left off the menu" if cost.failed else ""),
        ("operations timed", "", str(cost.workloads), f"in {in_words(cost.latency_seconds)}"),
    ]
    show_summary(f"Importance table of {directory.path}", lines, ("", ""))
    show_next(
        (str(written), "the table"),
        (on_run("solve", directory.path), "what every budget would keep"),
        (on_run("explain", directory.path), "layer by layer: what removing it saves and loses"),
    )
