"""CIFAR-10: LayerMerge and its rivals on real networks and real data, at equal measured latency.

    python benchmarks/cifar10.py mobilenetv2 --data cifar10:DIR --weights FILE
    python benchmarks/cifar10.py resnet20 --data cifar10:DIR --weights FILE
    python benchmarks/cifar10.py resnet56 --data cifar10:DIR --weights FILE

Everything resumes; run it again to remake the tables and pictures in benchmarks/results/. Each part can be asked for alone
with --part. One torch thread, so that the networks can be run side by side.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.side_by_side import side_by_side  # noqa: E402

from layermerge.errors import LayerMergeError  # noqa: E402
from layermerge.reporting.comparison import write_comparison  # noqa: E402
from layermerge.runs.compare import compare_run  # noqa: E402
from layermerge.runs.context import Context, open_context  # noqa: E402
from layermerge.runs.directory import RunDirectory  # noqa: E402
from layermerge.runs.methods import run_control, run_method  # noqa: E402
from layermerge.runs.opening import open_run  # noqa: E402
from layermerge.runs.recipe import RunRecipe, Settings, read_recipe  # noqa: E402
from layermerge.runs.records import Report, Result  # noqa: E402
from layermerge.tuning.recipe import Distillation, Recipe  # noqa: E402

METHODS = ("layermerge", "depth", "layeronly", "sequential", "channels")


@dataclass(frozen=True)
class Bench:
    """A network with its recipe, and where results go."""

    recipe: RunRecipe
    base: Context
    out: Path
    methods: tuple[str, ...] = METHODS

    @property
    def middle(self) -> str:
        return self.recipe.budgets[len(self.recipe.budgets) // 2]

    @property
    def finetune(self) -> Recipe:
        """Of the recipe, without a teacher."""
        assert self.recipe.finetune is not None, "the recipe says how networks are trained"
        return self.recipe.finetune.model_copy(update={"distill": None})

    def run(self, **changes: object) -> Context:
        settings = Settings.model_validate({**dict(self.recipe.settings), **changes})
        return open_context(self.base.model, self.base.task, self.base.directory.path, settings)

    def write(self, label: str, results: Sequence[Result], notes: Iterable[str] = ()) -> None:
        self.write_reports(label, [result.report for result in results], notes)

    def write_reports(self, label: str, reports: Sequence[Report], notes: Iterable[str] = ()) -> None:
        timed = side_by_side(self.base, reports)
        out = RunDirectory(self.out)
        for path in write_comparison(self.base.directory, timed, list(notes), out=out, label=label):
            print(f"wrote {path.relative_to(ROOT)}")


def methods(bench: Bench) -> None:
    """Every method at every budget, the same fine-tuning for all and for the original."""
    found = compare_run(bench.base, bench.methods, bench.recipe.budgets)
    notes = [f"{miss.method} at {miss.budget}: {miss.reason}" for miss in found.missing]
    bench.write_reports("plain", found.reports, notes)


def _at_middle(bench: Bench, run: Context, names: Iterable[str]) -> tuple[list[Result], list[str]]:
    results, notes = [run_control(run)], []
    for method in names:
        try:
            results.append(run_method(run, method, bench.middle))
        except LayerMergeError as error:
            notes.append(f"{method} at {bench.middle}: {error}")
    return results, notes


def distilled(bench: Bench) -> None:
    """Each method at one budget with the original as teacher."""
    finetune = bench.finetune.model_copy(update={"distill": Distillation(temperature=4.0, weight=0.7)})
    bench.write("distilled", *_at_middle(bench, bench.run(label="distilled", finetune=finetune), bench.methods))


def short(bench: Bench) -> None:
    """Each method at one budget with a third of the epochs."""
    epochs = (bench.finetune.epochs or 3) / 3
    finetune = bench.finetune.model_copy(update={"epochs": epochs})
    bench.write("short", *_at_middle(bench, bench.run(label="short", finetune=finetune), bench.methods))


def longer(bench: Bench) -> None:
    """LayerMerge at one budget with all training images, distilled; the control as long."""
    plain = bench.finetune.model_copy(update={"epochs": 1.5, "subset": None})
    taught = plain.model_copy(update={"distill": Distillation(temperature=4.0, weight=0.7)})
    run = bench.run(label="longer", finetune=taught)
    bench.write(
        "longer",
        [run_control(bench.run(label="longer-plain", finetune=plain)), run_method(run, "layermerge", bench.middle)],
    )


def others(bench: Bench) -> None:
    """Channel pruning followed by each method, and a narrower student distilled from scratch."""
    names = ("channels+layermerge", "channels+depth", "channels+layeronly", "student")
    bench.write("others", *_at_middle(bench, bench.base, names))


def finished(bench: Bench) -> None:
    """Trains nothing: the tables of what is there, latencies measured anew."""
    found: dict[str, list[Report]] = {}
    for place in bench.base.directory.variants():
        report = place.read_result()
        if report is not None and not report.first_of_two:
            found.setdefault(report.label.removesuffix("-plain"), []).append(report)
    for label, reports in found.items():
        bench.write_reports(label, sorted(reports, key=lambda report: -report.budget_ms))


PARTS = {part.__name__: part for part in (methods, short, distilled, longer, others, finished)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("network", choices=["mobilenetv2", "resnet20", "resnet56"])
    parser.add_argument("--data", required=True, help="cifar10:DIR")
    parser.add_argument("--weights", required=True, type=Path, help="the network's pretrained weights")
    parser.add_argument("--run-dir", type=Path, help="where tables and networks go; runs/NETWORK by default")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--method", action="append", help="only this method; repeatable")
    parser.add_argument("--part", action="append", choices=PARTS, help="only this; repeatable")
    given = parser.parse_args()
    torch.set_num_threads(1)
    changes = {"data.source": given.data, "weights": str(given.weights), "workers": given.workers}
    recipe = read_recipe(ROOT / "recipes" / f"cifar10_{given.network}.yaml", changes)
    run = open_run(recipe, given.run_dir or ROOT / "runs" / given.network)
    out = ROOT / "benchmarks" / "results" / given.network
    bench = Bench(recipe, run, out, tuple(given.method or METHODS))
    for name in given.part or [name for name in PARTS if name != "finished"]:
        print(f"-- {name}: {PARTS[name].__doc__}")
        PARTS[name](bench)


if __name__ == "__main__":
    main()
