"""Estimators of importance: which of them ranks candidates as a long training does, and at what cost.

    python benchmarks/estimators.py demo
    python benchmarks/estimators.py resnet20 --data cifar10:DIR --weights FILE
    python benchmarks/estimators.py mobilenetv2 --data cifar10:DIR --weights FILE
    python benchmarks/estimators.py small_unet --model DIR --data fashion-mnist:DIR

Candidates are drawn at random, the same for all. The truth is the loss on held-out images after a long training of the
network with this one candidate, for two seeds of its batches. Everything resumes; tables are in runs/estimators, copies of them
in benchmarks/results/estimators, and `--table` prints what these say.
"""

from __future__ import annotations

import argparse
import math
import random
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from layermerge.files import text_writer, write_files  # noqa: E402
from layermerge.models import demo  # noqa: E402
from layermerge.planning.plan import Plan, plan  # noqa: E402
from layermerge.runs.context import Context  # noqa: E402
from layermerge.runs.opening import open_run  # noqa: E402
from layermerge.runs.recipe import read_recipe  # noqa: E402
from layermerge.runtimes.torch_eager import torch_threads  # noqa: E402
from layermerge.surgery.rewrite import rewrite  # noqa: E402
from layermerge.tables.estimators.base import BASELINE, Estimator  # noqa: E402
from layermerge.tables.estimators.calibrated import Calibrated, CalibratedJob  # noqa: E402
from layermerge.tables.estimators.trained import Trained  # noqa: E402
from layermerge.tables.executors import LocalProcesses, in_this_process  # noqa: E402
from layermerge.tables.runner import fill_table  # noqa: E402
from layermerge.tables.table import Row, Table  # noqa: E402
from layermerge.tuning.loop import train_steps  # noqa: E402
from layermerge.tuning.recipe import Recipe  # noqa: E402

RECIPES = {
    "demo": demo.RECIPE,
    "resnet20": ROOT / "recipes" / "cifar10_resnet20.yaml",
    "mobilenetv2": ROOT / "recipes" / "cifar10_mobilenetv2.yaml",
    "small_unet": ROOT / "recipes" / "fashion_mnist_unet.yaml",
}
RESULTS = ROOT / "benchmarks" / "results" / "estimators"
DRAWN = 110
LONG = Recipe(steps=100, batch_size=32, lr=0.01, channels_last=True)
LONG_UNET = Recipe(steps=100, batch_size=32, lr=1e-3, optimizer="adam")


def drawn(menu: Plan, count: int, seed: int = 0) -> list[str]:
    """Candidates that change something, at random, in the plan's order."""
    keys = [entry.key for entry in menu.entries if entry.changes]
    chosen = set(random.Random(seed).sample(keys, min(count, len(keys))))
    return [key for key in keys if key in chosen]


@dataclass(frozen=True)
class LongTraining:
    """The truth: the loss on held-out images after many steps, as a score."""

    context: Context
    menu: Plan
    recipe: Recipe
    calibrated: CalibratedJob | None = None
    """What fits the network before it is trained, as fine-tuning does; None: it is trained as rewritten."""

    def __call__(self, key: str) -> Row:
        began, task = time.perf_counter(), self.context.task
        chosen = [self.menu[key]]
        with torch_threads(1):
            module = self.calibrated.fitted(chosen)[0] if self.calibrated else rewrite(self.context.trace, chosen)
            train_steps(module, task, self.recipe)
            module.eval()
            total = count = 0.0
            with torch.no_grad():
                for batch in task.held_out_batches():
                    total += float(task.loss(task.forward(module, batch), batch)) * len(batch[0])
                    count += len(batch[0])
        if not math.isfinite(total):
            raise ArithmeticError(f"the loss is {total}")
        seconds = round(time.perf_counter() - began, 2)
        return Row(key=key, value=-total / count, samples=int(count), seconds=seconds)


def long_training(job: LongTraining, keys: Sequence[str], path: Path, workers: int) -> Table:
    provenance = {"kind": "long training", "network": job.menu.network} | {
        f"recipe.{name}": value for name, value in job.recipe.model_dump(exclude_defaults=True).items()
    }
    if job.calibrated is not None:
        provenance |= {f"start.{name}": value for name, value in job.calibrated.describe().items()}
    executor = LocalProcesses(workers) if workers > 1 else in_this_process
    return fill_table(path, provenance, list(keys), job, title=path.stem, executor=executor)


def estimate(context: Context, menu: Plan, keys: Sequence[str], estimator: Estimator, path: Path) -> Table:
    """The rows of an estimator for these candidates, seconds included."""
    job = estimator.job(context.trace, menu, context.task, "cpu")
    base = fill_table(path, job.provenance(), [BASELINE], job, keep_failures=False)[BASELINE].value
    assert base is not None
    return fill_table(path, job.provenance(), list(keys), job.against(base), title=path.stem)


def rank_correlation(first: Sequence[float], second: Sequence[float]) -> float:
    """Spearman's: ties share their mean rank."""

    def ranks(values: Sequence[float]) -> np.ndarray:
        _, place, count = np.unique(values, return_inverse=True, return_counts=True)
        return (np.cumsum(count) - (count - 1) / 2)[place]

    return float(np.corrcoef(ranks(first), ranks(second))[0, 1])


def agreement(one: Table, other: Table) -> tuple[float, int]:
    """Rank correlation over what both have, and over how many that is."""
    both = [key for key in one.rows if key != BASELINE and key in other]
    pairs = [(one[key].value, other[key].value) for key in both]
    known = [(a, b) for a, b in pairs if a is not None and b is not None]
    return rank_correlation(*map(list, zip(*known, strict=True))), len(known)


STARTS = ("rewritten", "calibrated")
"""Where the long training starts from: as the paper does, and as this project does."""


def truth_path(place: Path, start: str, seed: int) -> Path:
    return place / f"long-training-{start}-{seed}.jsonl"


def markdown(place: Path) -> list[str]:
    """A line an estimator, and one for the truth's own second seed."""
    truths = [Table.read(path) if (path := truth_path(place, start, 0)).is_file() else None for start in STARTS]
    lines = []
    for path in [truth_path(place, STARTS[0], 1), *(place / f"{name}.jsonl" for name in ESTIMATORS)]:
        if path.is_file():
            table = Table.read(path)
            found = [agreement(truth, table) if truth else None for truth in truths]
            cells = " | ".join("-" if one is None else f"{one[0]:.3f} ({one[1]})" for one in found)
            rows = [row.seconds for key, row in table.rows.items() if key != BASELINE]
            lines.append(f"| {place.name} | {path.stem} | {cells} | {np.mean(rows):.2f} |")
    return lines


def results() -> list[str]:
    """All networks whose tables were kept."""
    head = (
        "| network | estimator | rank correlation with a long training (candidates) | from the fit | seconds an entry |"
    )
    return [head, "|---|---|---|---|---|", *(line for name in RECIPES for line in markdown(RESULTS / name))]


ESTIMATORS: dict[str, Estimator] = {
    "calibrated": Calibrated(),
    "trained-10": Trained(Recipe(steps=10, batch_size=32, lr=0.01, channels_last=True)),
}
ESTIMATORS_UNET = {"trained-10": Trained(Recipe(steps=10, batch_size=32, lr=4e-4, optimizer="adam"))}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("network", choices=RECIPES, nargs="?")
    parser.add_argument("--data")
    parser.add_argument("--weights")
    parser.add_argument("--model")
    parser.add_argument("--dir", type=Path, default=Path("runs/estimators"))
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--starts", nargs="*", choices=STARTS, default=STARTS, help="of the long training")
    parser.add_argument("--table", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.table or options.network is None:
        print("\n".join(results()))
        return
    given = {"data.source": options.data, "weights": options.weights, "model": options.model}
    changes = {key: value for key, value in given.items() if value is not None}
    place = options.dir / options.network
    context = open_run(read_recipe(RECIPES[options.network], changes), place)
    menu = plan(context.trace, context.settings.rules)
    keys = drawn(menu, DRAWN)
    unet = options.network == "small_unet"
    for name, estimator in (ESTIMATORS | (ESTIMATORS_UNET if unet else {})).items():
        estimate(context, menu, keys, estimator, place / f"{name}.jsonl")
    fits = Calibrated().job(context.trace, menu, context.task, "cpu")
    for seed in range(options.seeds):
        seeded = (LONG_UNET if unet else LONG).model_copy(update={"seed": seed})
        for name in options.starts:
            job = LongTraining(context, menu, seeded, fits if name == "calibrated" else None)
            long_training(job, keys, truth_path(place, name, seed), options.workers)
    for path in place.glob("*.jsonl"):
        write_files({RESULTS / options.network / path.name: text_writer(path.read_text(encoding="utf-8"))})
    print("\n".join(markdown(place)))


if __name__ == "__main__":
    main()
