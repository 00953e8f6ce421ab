"""The verb solve: the best choice for every budget at once, predicted from the run's tables."""

from __future__ import annotations

from dataclasses import asdict
from enum import Enum
from typing import Annotated, Any

import typer

from layermerge.cli.app import JsonOption, app, print_json, report
from layermerge.cli.flags import BudgetOption, RunArgument


class ObjectiveChoice(str, Enum):
    """What the solver sums."""

    exp = "exp"
    delta = "delta"


@app.command()
def solve(
    run_dir: RunArgument,
    budget: BudgetOption = None,
    objective: Annotated[
        ObjectiveChoice | None, typer.Option(help="exp, as the paper, or delta; that of the recipe by default.")
    ] = None,
    tick: Annotated[
        float | None, typer.Option(metavar="MS", help="Round latencies up to this, for huge networks.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Find the best choice of candidates for every budget at once, from the run's latency and importance tables.

    Without --budget the frontier is listed. Latencies are predictions: finetune and compress build what is chosen and
    measure it before they train it.

    Example: layermerge solve runs/a --budget 60%
    """
    from layermerge.runs.directory import RunDirectory
    from layermerge.runs.recipe_file import run_recipe
    from layermerge.solving.solve import solve as find_frontier

    directory = RunDirectory(run_dir)
    plan = directory.read_plan()
    chosen = run_recipe(directory, None, {} if objective is None else {"objective": objective.value})
    latency, scores = directory.read_latency(plan), directory.read_importance(plan)
    stated = chosen.objective if "objective" in chosen.model_fields_set else None  # otherwise that of the table
    frontier = find_frontier(plan.plan, latency, scores, objective=stated, tick_ms=tick)
    if budget is None:
        if as_json:
            print_json(frontier.to_document())
        else:
            print(frontier)
        return
    solution = frontier.at(budget)
    predicted = latency.predict(solution.candidates)
    facts: dict[str, Any] = {"latency_ms": solution.latency_ms, "error_ms": predicted.error_ms}
    if not as_json:
        measured_ms = latency.measured_whole(solution.candidates)
        facts = {"predicted": f"{predicted} ms"}
        facts |= {} if measured_ms is None else {"measured": f"{measured_ms:.3f} ms"}
    if as_json:
        facts["importance"] = solution.importance
        facts["estimated"] = asdict(solution.estimated) if solution.estimated else None
    elif solution.estimated is None:
        facts["importance"] = solution.importance
    else:  # which says more to people
        facts["estimated"] = f"{solution.estimated} before any fine-tuning"
    keys = [candidate.key for candidate in solution.candidates]
    convs = sum(len(candidate.kept) for candidate in solution.candidates)
    report(as_json, {**facts, "candidates": keys if as_json else len(keys), "convs_kept": convs})
