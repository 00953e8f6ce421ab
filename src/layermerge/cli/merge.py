"""The verb merge: a fine-tuned network with each of its ranges computed by one conv."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from layermerge.cli.app import JsonOption, app, report
from layermerge.cli.flags import Flags, RunArgument, takes


@app.command()
@takes("model", "budget", "method", "label", "license")
def merge(
    run_dir: RunArgument,
    out: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Where the merged network goes; beside the fine-tuned one by default."),
    ] = None,
    as_json: JsonOption = False,
    *,
    flags: Flags,
) -> None:
    """Merge a fine-tuned network into few convolutions, exactly, and save it.

    RUN_DIR is a run, whose network for a budget is meant, or a directory that `save` wrote.

    Example: layermerge merge runs/a --budget 60%
    """
    from layermerge.cli.cards import leave_card
    from layermerge.runs.networks import find_network, merged
    from layermerge.runs.saving import save
    from layermerge.runs.steps import count_convs

    found = find_network(run_dir, flags.recipe(run_dir), unmerged=True)
    tuned = found.load()
    fast = merged(tuned)
    target = out or found.merged_place
    save(target, fast)
    if out is None:
        leave_card(run_dir, found)
    report(as_json, {"convs_before": count_convs(tuned), "convs_after": count_convs(fast), "saved_to": str(target)})
