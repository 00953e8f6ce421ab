"""The verb solve: the best choice for every budget at once, predicted from the run's tables."""

from __future__ import annotations

from dataclasses import asdict
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from layermerge.cli.app import JsonOption, app, print_json
from layermerge.cli.flags import BudgetOption, RunArgument
from layermerge.cli.layout import Column, show_table, show_text
from layermerge.cli.summary import Line, on_run, show_next, show_summary

if TYPE_CHECKING:
    from layermerge.runs.recipe import RunRecipe
    from layermerge.solving.frontier import Frontier, Solution
    from layermerge.tables.latency import LatencyTable


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
            _show_frontier(frontier, run_dir, chosen)
        return
    solution = frontier.at(budget)
    if as_json:
        print_json(
            {
                "latency_ms": solution.latency_ms,
                "error_ms": latency.predict(solution.candidates).error_ms,
                "importance": solution.importance,
                "estimated": asdict(solution.estimated) if solution.estimated else None,
                "candidates": [candidate.key for candidate in solution.candidates],
                "convs_kept": sum(len(candidate.kept) for candidate in solution.candidates),
            }
        )
    else:
        _show_solution(solution, latency, run_dir, budget)
        show_next((on_run("finetune", run_dir, chosen, "--budget", budget), "build it, measure it, train it"))


_LISTED = (
    Column("budget", "figure"),
    Column("latency", "figure"),
    Column("speed-up", "figure", missed=1),
    Column("estimated score", "figure"),
    Column("importance", "figure"),
    Column("convolutions kept", "figure", missed=2),
    Column("merged into", "figure", missed=3),
)


def _show_frontier(frontier: Frontier, run_dir: Path, recipe: RunRecipe) -> None:
    rows = [
        [
            budget,
            f"{solution.latency_ms:.3f} ms",
            f"{frontier.original_ms / solution.latency_ms:.2f}\u00d7" if solution.latency_ms > 0 else "-",
            str(solution.estimated or ""),
            "" if solution.estimated else f"{solution.importance:.4f}",
            str(sum(len(candidate.kept) for candidate in solution.candidates)),
            str(sum(candidate.spec is not None for candidate in solution.candidates)),
        ]
        for budget, solution in frontier.listed()
    ]
    fixed = f"of which fixed {frontier.fixed_ms:.3f} ms"
    show_text(f"{len(frontier.points):,} points; original {frontier.original_ms:.3f} ms, {fixed}")
    show_table(_LISTED, rows)
    if frontier.estimate is not None:
        show_text("Scores are estimated on held-out images, calibrated and not fine-tuned; 95 % lie in the interval.")
    middle = rows[len(rows) // 2 - 1][0]
    show_next(
        (on_run("solve", run_dir, None, "--budget", middle), "one budget"),
        (on_run("finetune", run_dir, recipe, "--budget", middle), "build it, measure it, train it"),
        (on_run("report", run_dir), "every budget, with a slider"),
    )


def _show_solution(solution: Solution, latency: LatencyTable, run_dir: Path, budget: str) -> None:
    predicted, measured_ms = latency.predict(solution.candidates), latency.measured_whole(solution.candidates)
    kept = sum(len(candidate.kept) for candidate in solution.candidates)
    left = sum(candidate.spec is not None for candidate in solution.candidates)
    measured = f"measured {measured_ms:.3f} ms" if measured_ms is not None else ""
    lines: list[Line] = [
        (
            "latency",
            f"{latency.original_ms:.3f} ms",
            f"{solution.latency_ms:.3f} ms",
            measured or f"predicted {predicted} ms",
        ),
        ("convolutions", str(len(latency.plan.layers)), str(left), f"{kept} are kept, and merge into {left}"),
    ]
    if solution.estimated is not None:  # which says more to people than importance
        lines.append(("estimated score", "", str(solution.estimated), "on held-out images, before any fine-tuning"))
    else:
        lines.append(
            ("importance", "", f"{solution.importance:.4f}", "the sum that was made as large as the budget allows")
        )
    show_summary(f"The best choice of {run_dir} for {budget}", lines)
