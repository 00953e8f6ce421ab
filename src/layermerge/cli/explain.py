"""The verb explain: why not more; layer by layer what could be saved, what that loses, and what stands in the way."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from layermerge.cli.app import JsonOption, app, print_json
from layermerge.cli.flags import Flags, takes

if TYPE_CHECKING:
    from layermerge.reporting.change_words import ChangeWords
    from layermerge.reporting.explaining import Explanation


@app.command()
@takes("input", "free_size", "data", "images", "weights", "method")
def explain(
    subject: Annotated[
        str, typer.Argument(metavar="RUN_OR_MODEL", help="A run directory, or a model, named as for plan.")
    ],
    layer: Annotated[
        str | None, typer.Argument(metavar="[LAYER]", help="A layer: its name, a part of it, or its number in plan.")
    ] = None,
    as_json: JsonOption = False,
    *,
    flags: Flags,
) -> None:
    """Explain why not more is removed and merged: what each layer could save, what that loses, and what to change.

    Without LAYER, the layers that take most of the time are listed. Of a run that has its tables, savings are in milliseconds
    and losses are estimated; of a model, shares are of its multiplications. Rules are tried by --set rules.max_kernel=31.

    Example: layermerge explain timm:resnet34 layer1.0.conv1
    """
    from layermerge.cli.explanation_tables import show_layer, show_overview
    from layermerge.cli.summary import show_next
    from layermerge.files import plain

    found, words = _of_run(Path(subject)) if _is_run(subject) else (_of_model(subject, flags), None)
    chosen = None if layer is None else found.layer(layer)
    given = [*flags.words("input"), *flags.words("weights")]
    again = ["layermerge", "explain", subject, *given]
    if as_json:
        layers = [chosen] if chosen else found.layers
        facts = {"original_ms": found.original_ms, "fixed_ms": found.fixed_ms}
        print_json({**facts, "layers": [plain(each) for each in layers]})
        return
    if chosen is None:
        show_overview(subject, found, words)
        heaviest = found.heaviest[0].facts.layer.name
        ahead = [(shlex.join([*again[:3], heaviest, *again[3:]]), "all that can be done with one layer")]
    else:
        show_layer(chosen, words)
        ahead = [(shlex.join(again), "all layers")]
    show_next(*ahead, _after(subject, given, found.timed))


def _is_run(subject: str) -> bool:
    """Models are named by their source and a colon, which a path may hold too."""
    return ":" not in subject or Path(subject).is_dir()


def _of_run(run_dir: Path) -> tuple[Explanation, ChangeWords | None]:
    from layermerge.reporting.change_words import words_for
    from layermerge.reporting.explaining import explain as explain_plan
    from layermerge.runs.directory import RunDirectory

    directory = RunDirectory(run_dir)
    plan = directory.read_plan()
    latency = directory.read_latency(plan) if directory.latency.is_file() else None
    importance = directory.read_importance(plan) if directory.importance.is_file() else None
    score = directory.known_score()
    words = words_for(importance.provenance, score.score if score else None) if importance else None
    return explain_plan(plan.plan, latency, importance), words


def _of_model(model: str, flags: Flags) -> Explanation:
    from layermerge.reporting.explaining import explain as explain_plan
    from layermerge.runs.opening import open_plan
    from layermerge.stages import expect

    expect(("network",))
    _, plan = open_plan(Flags({**flags.changes, "model": model}).recipe(None))
    return explain_plan(plan)


def _after(subject: str, given: list[str], timed: bool) -> tuple[str, str]:
    from layermerge.cli.summary import on_run

    if not _is_run(subject):
        compress = shlex.join(["layermerge", "compress", "--model", subject, *given])
        return f"{compress} --images DIR --budget 60%", "measure it, and make it faster"
    run = Path(subject)
    if timed:
        return on_run("solve", run), "the best of it all, for every budget"
    return on_run("latency", run), "what each candidate takes, in milliseconds"
