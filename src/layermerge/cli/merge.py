"""The verb merge: a fine-tuned network with each of its ranges computed by one conv."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from layermerge.cli.app import JsonOption, app, print_json
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
    from layermerge.cli.summary import on_run, show_next, show_summary
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
    before, after = count_convs(tuned), count_convs(fast)
    if as_json:
        print_json({"convs_before": before, "convs_after": after, "saved_to": str(target)})
        return
    checked = "merged equals unmerged, checked"
    show_summary(f"Merged network of {run_dir}", [("convolutions", str(before), str(after), checked)])
    words = [word for name in ("budgets", "method", "label") for word in flags.words(name)]
    place, words = (run_dir, words) if out is None else (out, [])
    show_next(
        (str(target), "the merged network"),
        (on_run("export", place, found.recipe, *words, "--to", "fast.onnx"), "a file that other runtimes read"),
    )
