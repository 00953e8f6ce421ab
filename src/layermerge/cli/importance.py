"""The verb importance: how much each candidate changes what the network is for."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from layermerge.cli.app import JsonOption, app, print_json
from layermerge.cli.flags import Flags, RecipeOption, RunArgument, takes


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
    """Measure the importance table; goes on where it stopped. What latency rules out is spared.

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
        print(f"{cost}; written to {shard_path(context.directory.importance, part)}")
