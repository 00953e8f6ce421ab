"""Chosen networks: what each estimator of importance makes the solver choose, before and after the same fine-tuning.

    python benchmarks/chosen_networks.py demo
    python benchmarks/chosen_networks.py resnet20 --data cifar10:DIR --weights FILE
    python benchmarks/chosen_networks.py small_unet --model diffusers:DIR --data fashion-mnist:DIR
    python benchmarks/chosen_networks.py --table

A run for each estimator and each network, at three budgets: tables, choice, calibration, then 200 steps of training, the same
for all. Everything resumes; runs are in runs/chosen, results in benchmarks/results/chosen_networks; `--table` prints these.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.estimators import RECIPES  # noqa: E402

from layermerge.files import read_document, write_document  # noqa: E402
from layermerge.runs.compress import compress_run  # noqa: E402
from layermerge.runs.opening import open_run  # noqa: E402
from layermerge.runs.recipe import read_recipe  # noqa: E402
from layermerge.runs.records import Report  # noqa: E402

RESULTS = ROOT / "benchmarks" / "results" / "chosen_networks"
BUDGETS = {"small_unet": ("90%", "80%", "70%")}
USUAL = ("75%", "60%", "45%")
IMPORTANCE: dict[str, dict[str, Any]] = {
    "calibrated": {},
    "trained-10": {"importance": {"steps": 10, "batch_size": 64, "lr": 0.01, "channels_last": True}},
}
TRAINED_UNET: dict[str, Any] = {
    "importance": {"steps": 10, "batch_size": 64, "lr": 4e-4, "optimizer": "adam", "weight_decay": 0}
}
STEPS = 200


def run(network: str, estimator: str, given: dict[str, Any], place: Path, workers: int) -> None:
    trained = TRAINED_UNET if network == "small_unet" else IMPORTANCE["trained-10"]
    how = {} if estimator == "calibrated" else trained
    changes = given | how | {"finetune.steps": STEPS, "workers": workers}
    context = open_run(read_recipe(RECIPES[network], changes), place)
    for budget in BUDGETS.get(network, USUAL):
        report = compress_run(context, budget).report
        write_document(RESULTS / network / f"{estimator}-{budget.replace('%', 'pct')}.json", report)
        print(report, flush=True)


def table() -> list[str]:
    """A line a result file: how a network scored that an estimator chose, before and after the same training."""
    lines = [
        "| network | estimator | budget | measured | held-out score, no training | after training | test score |",
        "|---|---|---|---|---|---|---|",
    ]
    for network in RECIPES:
        for budget in BUDGETS.get(network, USUAL):
            for estimator in IMPORTANCE:
                path = RESULTS / network / f"{estimator}-{budget.replace('%', 'pct')}.json"
                if path.is_file():
                    report = read_document(path, Report)
                    share = report.measured_ms / report.original_ms
                    before = "" if report.calibrated is None else f"{report.calibrated:.4f}"
                    lines.append(
                        f"| {network} | {estimator} | {budget} | {share:.1%} | {before} | {report.held_out:.4f} | "
                        f"{report.score.value:.4f} |"
                    )
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("network", choices=RECIPES, nargs="?")
    parser.add_argument("--estimator", choices=IMPORTANCE, nargs="*", default=list(IMPORTANCE))
    parser.add_argument("--data")
    parser.add_argument("--weights")
    parser.add_argument("--model")
    parser.add_argument("--dir", type=Path, default=Path("runs/chosen"))
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--table", action="store_true")
    options = parser.parse_args()
    if options.network is not None:
        stated = {"data.source": options.data, "weights": options.weights, "model": options.model}
        given = {key: value for key, value in stated.items() if value is not None}
        for estimator in options.estimator:
            run(options.network, estimator, given, options.dir / options.network / estimator, options.workers)
    print("\n".join(table()))


if __name__ == "__main__":
    main()
