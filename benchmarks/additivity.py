"""Additivity: whether changes of single candidates add up to what a whole network loses, and in which unit.

    python benchmarks/additivity.py RUN_DIR [RUN_DIR ...]

RUN_DIR is a run with calibrated importance (`layermerge compress` leaves one). Choices are drawn around the frontier, from
mild to tight budgets, with values shaken at random, so that they are not only those that the solver likes; each is built,
fitted and scored whole. For each unit (powers of the divergence, the score): R2 of whole networks against sums, around the
best line through zero, and the rank correlation. Resumes; rows go to RUN_DIR/additivity.jsonl.
"""

from __future__ import annotations

import argparse
import math
import random
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.estimators import rank_correlation  # noqa: E402

from layermerge.planning.candidate import Candidate  # noqa: E402
from layermerge.planning.plan import Plan  # noqa: E402
from layermerge.runs.directory import RunDirectory  # noqa: E402
from layermerge.runs.opening import open_run  # noqa: E402
from layermerge.runs.recipe_file import run_recipe  # noqa: E402
from layermerge.solving.solve import solve  # noqa: E402
from layermerge.tables.estimators.base import BASELINE  # noqa: E402
from layermerge.tables.estimators.calibrated import Calibrated, CalibratedJob  # noqa: E402
from layermerge.tables.latency import LatencyTable  # noqa: E402
from layermerge.tables.runner import fill_table  # noqa: E402
from layermerge.tables.table import Row, Table  # noqa: E402

SHARES = tuple(share / 100 for share in range(95, 30, -5))
DRAWS = 4
POWERS = (1.0, 0.9, 0.8, 0.75, 0.7, 0.6, 0.5)
SHAKEN = 0.7
"""Standard deviation of the logarithm that values are multiplied by."""


Choice = tuple[Candidate, ...]


def drawn(menu: Plan, latency: LatencyTable, scores: Table) -> dict[str, Choice]:
    """Choices at many budgets, none twice; the first draw of a budget is the solver's own."""
    chance = random.Random(0)
    found: dict[Choice, str] = {}
    for draw in range(DRAWS):
        rows = [_shaken(row, math.exp(chance.gauss(0, SHAKEN)) if draw else 1.0) for row in scores.rows.values()]
        frontier = solve(menu, latency, Table(scores.provenance, rows), objective="delta")
        for share in SHARES:
            if share * frontier.original_ms >= frontier.smallest_ms:
                chosen = frontier.within(share * frontier.original_ms).candidates
                found.setdefault(chosen, f"{share:.0%}, draw {draw}")
    return {name: chosen for chosen, name in found.items()}


def _shaken(row: Row, factor: float) -> Row:
    return row if row.value is None else row.model_copy(update={"value": row.value * factor})


def scored_whole(job: CalibratedJob, choices: dict[str, Choice], path: Path) -> Table:
    """Every choice as a whole network, and every candidate of one as a network by itself, fitted in the same way."""
    singles = {one.key: (one,) for chosen in choices.values() for one in chosen if one.changes}
    every = singles | choices

    def measure(key: str) -> Row:
        return job.whole(every[key]).model_copy(update={"key": key})

    return fill_table(path, job.provenance(), list(every), measure, title="whole networks")


def agreement(sums: Sequence[float], wholes: Sequence[float]) -> str:
    """R2 around the best line through zero, its slope, and the rank correlation."""
    x, y = np.array(sums), np.array(wholes)
    slope = float(x @ y / (x @ x))
    unexplained = float(((y - slope * x) ** 2).sum() / ((y - y.mean()) ** 2).sum())
    return f"{1 - unexplained:.3f} | {slope:.2f} | {rank_correlation(sums, wholes):.3f}"


def report(run_dir: Path) -> list[str]:
    directory = RunDirectory(run_dir)
    context = open_run(run_recipe(directory, None, {}), run_dir)
    known = directory.read_plan()
    latency, table = directory.read_latency(known), directory.read_importance(known)
    scores = table.restricted(lambda row: not row.parts)
    choices = drawn(known.plan, latency.fresh, scores)
    job = Calibrated().job(context.trace, known.plan, context.task, "cpu")
    found = scored_whole(job, choices, run_dir / "additivity.jsonl")
    base = scores[BASELINE].value
    wholes = [found[name] for name in choices if found[name].status == "ok"]

    def powered(row: Row, power: float) -> float:
        return float(max(-(row.value or 0.0), 0.0) ** power)

    def lost(row: Row) -> float:
        return (base or 0.0) - (row.score or 0.0)

    lines = []
    for power in POWERS:
        sums = [sum(powered(scores[key], power) for key in row.parts if key in found) for row in wholes]
        unit = f"divergence to the power {power:g}"
        lines.append(f"| {run_dir.name} | {unit} | {agreement(sums, [powered(row, power) for row in wholes])} |")
    sums = [sum(lost(found[key]) for key in row.parts if key in found) for row in wholes]
    return [*lines, f"| {run_dir.name} | score | {agreement(sums, list(map(lost, wholes)))} |"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run_dirs", type=Path, nargs="+", metavar="RUN_DIR")
    torch.set_num_threads(1)
    print("| run | unit | R2 of whole on sum | slope | rank correlation |")
    print("|---|---|---|---|---|")
    for run_dir in parser.parse_args().run_dirs:
        print("\n".join(report(run_dir)))


if __name__ == "__main__":
    main()
