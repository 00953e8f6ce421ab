"""The verb plan: every layer, what it can merge with, and why not further; with a run directory, where a run begins."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from layermerge.cli.app import JsonOption, app, print_json
from layermerge.cli.flags import RUNTIME, Flags, ModelArgument, takes

if TYPE_CHECKING:
    from layermerge.planning.rules import Rules


class RuleSet(str, Enum):
    """Which rules the plan follows."""

    ours = "ours"
    paper = "paper"


class Replaceable(str, Enum):
    """What the plan may replace."""

    activations = "activations"
    gates = "gates"


class Menu(str, Enum):
    """What the plan may offer."""

    layermerge = "layermerge"
    depth = "depth"
    layeronly = "layeronly"


@app.command()
@takes("input", "free_size", "data", "images", "weights", *RUNTIME)
def plan(
    model: ModelArgument,
    rules: Annotated[RuleSet, typer.Option(help="Our rules, or those of the paper.")] = RuleSet.ours,
    method: Annotated[Menu, typer.Option(help="Which candidates to choose from.")] = Menu.layermerge,
    pin: Annotated[
        list[str] | None, typer.Option(metavar="GLOB", help="Layers to leave as they are; repeatable.")
    ] = None,
    exclude: Annotated[
        list[str] | None, typer.Option(metavar="GLOB", help="Layers to leave out of the table; repeatable.")
    ] = None,
    max_kernel: Annotated[int | None, typer.Option(help="Largest side of a merged kernel; 0 for no bound.")] = None,
    replace: Annotated[
        list[Replaceable] | None, typer.Option(help="Also offer cheaper activations, or mean gates; repeatable.")
    ] = None,
    run_dir: Annotated[
        Path | None,
        typer.Option("--run-dir", metavar="DIR", help="Begin a run: recipe.yaml, plan.json, original.onnx."),
    ] = None,
    with_weights: Annotated[bool, typer.Option("--with-weights", help="Keep the weights in original.onnx.")] = False,
    as_json: JsonOption = False,
    *,
    flags: Flags,
) -> None:
    """Show every layer, what it can merge with, and why not further. With --run-dir, a run begins there.

    Example: layermerge plan timm:resnet34 --input 3x224x224 --pin 'layer4.*'
    """
    from layermerge.cli.plan_table import show_plan
    from layermerge.planning.listing import plan_document
    from layermerge.runs.opening import open_plan
    from layermerge.stages import expect

    chosen = _rules(rules, max_kernel, pin=pin, exclude=exclude, replace=[one.value for one in replace or ()])
    changes = {**flags.changes, "model": model, "rules": chosen, "method": method.value}
    recipe = Flags(changes).recipe(run_dir)
    expect(("network",))
    traced, menu = open_plan(recipe)
    if run_dir is not None:
        from layermerge.runs.begin import begin_run

        begin_run(run_dir, traced, menu, recipe, with_weights=with_weights)
    if as_json:
        print_json(plan_document(menu))
    else:
        whose = "the paper's" if rules is RuleSet.paper else "our"
        show_plan(menu, traced.blocks, f"{model}: {whose} rules, method {method.value}")
        _show_next(model, flags, run_dir)


def _show_next(model: str, flags: Flags, run_dir: Path | None) -> None:
    import shlex

    from layermerge.cli.summary import on_run, show_next

    if run_dir is not None:
        show_next(
            (on_run("latency", run_dir), "what each candidate takes, here or on the device"),
            (on_run("explain", run_dir), "what stands in the way of more"),
        )
        return
    given = [model, *flags.words("input"), *flags.words("weights")]
    show_next(
        (shlex.join(["layermerge", "explain", *given]), "what stands in the way of more, and what to change"),
        (
            f"{shlex.join(['layermerge', 'compress', '--model', *given])} --images DIR --budget 60%",
            "make it faster; no labels needed",
        ),
    )


def _rules(rules: RuleSet, max_kernel: int | None, **lists: Any) -> Rules:
    """The set of rules with what the flags add to it; `lists` by the rules' own names."""
    from dataclasses import replace

    from layermerge.planning.rules import Rules

    chosen = Rules.paper() if rules is RuleSet.paper else Rules()
    changes: dict[str, Any] = {name: tuple(given or ()) for name, given in lists.items()}
    chosen = replace(chosen, **changes)
    return chosen if max_kernel is None else replace(chosen, max_kernel=max_kernel or None)
