"""Pipeline: a trained network and data in, a faster network out.

`compress` takes one method to one budget, `compare` several methods to several budgets over shared tables. Both go on where
they were interrupted, and skip what is up to date.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path

from torch import nn

from layermerge.errors import LayerMergeError
from layermerge.runs.methods import require_known, run_control, run_method
from layermerge.runs.recipe import Settings
from layermerge.runs.results import Report
from layermerge.runs.steps import Result, Run
from layermerge.tasks.base import Task


def compress(
    model: nn.Module,
    task: Task,
    *,
    budget: str = "60%",
    runtime: str | None = None,
    run_dir: str | Path = "runs/compress",
    settings: Settings | None = None,
) -> Result:
    """Makes a trained network keep a latency budget: plan, tables, choice, fine-tuning, merge, export, and the figures.

    `budget` is a share of the original latency ("60%"), a speed-up ("1.8x") or a time ("12ms"). `settings` says how, method
    included; `runtime` goes before what it says. Called again, it goes on where it was interrupted; with another budget it
    uses the same tables. The result holds the merged network, what was chosen and the figures of the exported file.
    """
    settings = settings or Settings()
    if runtime is not None:
        settings = settings.model_copy(update={"runtime": runtime})
    return run_method(Run(model, task, Path(run_dir), settings), settings.method, budget)


@dataclass(frozen=True)
class Missing:
    """A method that gave nothing at a budget, and why: out of its reach, or it failed; the others go on."""

    method: str
    budget: str
    reason: str


@dataclass(frozen=True)
class Comparison:
    """The control first, then each method at each budget; what could not be reached is said."""

    reports: tuple[Report, ...]
    missing: tuple[Missing, ...]
    directories: tuple[Path, ...]
    """Where each report's network and recovery curve are."""


def compare(
    model: nn.Module,
    task: Task,
    *,
    methods: Sequence[str],
    budgets: Sequence[str],
    run_dir: str | Path,
    settings: Settings | None = None,
) -> Comparison:
    """Compresses a network by several methods to several budgets, with the same fine-tuning for all and for the original.

    Gives a report for the original and for each method at each budget, and why one is missing where it gave nothing.
    """
    return compare_run(Run(model, task, Path(run_dir), settings or Settings()), methods, budgets)


def compare_run(run: Run, methods: Sequence[str], budgets: Sequence[str]) -> Comparison:
    """`compare` on a run that is open already."""
    for method, budget in product(methods, budgets):
        require_known(method, budget)
    results = [run_control(run)]
    missing: list[Missing] = []
    for budget in budgets:
        for method in methods:
            try:
                results.append(run_method(run, method, budget))
            except LayerMergeError as error:
                missing.append(Missing(method, budget, str(error)))
    return Comparison(
        tuple(result.report for result in results), tuple(missing), tuple(result.directory for result in results)
    )
