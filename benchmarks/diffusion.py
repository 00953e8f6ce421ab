"""Diffusion: LayerMerge and its rivals on a small U-Net, noise loss and KID against the measured latency of a step.

    python benchmarks/train_small_unet.py --data fashion-mnist:DIR --out DIR
    python benchmarks/diffusion.py --model DIR --data fashion-mnist:DIR --extractor FILE.pt

Every network is sampled from the same start noise through its exported file. Everything resumes: run it again to remake the
tables and pictures in benchmarks/results/small_unet/. `--part samples --part figures` looks only at networks that are there.
"""

from __future__ import annotations

import argparse
import csv
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.side_by_side import side_by_side  # noqa: E402

from layermerge.data.images import ArrayImages  # noqa: E402
from layermerge.errors import LayerMergeError  # noqa: E402
from layermerge.files import text_writer, write_files  # noqa: E402
from layermerge.reporting.plots import MethodPoint, plot_accuracy  # noqa: E402
from layermerge.runs.context import Context  # noqa: E402
from layermerge.runs.directory import VariantDirectory  # noqa: E402
from layermerge.runs.methods import run_control, run_method  # noqa: E402
from layermerge.runs.opening import open_run  # noqa: E402
from layermerge.runs.recipe import read_recipe  # noqa: E402
from layermerge.runs.records import CONTROL, Report  # noqa: E402
from layermerge.runtimes.registry import make_runtime  # noqa: E402
from layermerge.sampling.ddim import sample  # noqa: E402
from layermerge.sampling.pictures import to_pixels, write_grid  # noqa: E402
from layermerge.sampling.quality import TorchScriptExtractor, features_of, fid, kid  # noqa: E402
from layermerge.tasks import load_images  # noqa: E402
from layermerge.tasks.diffusion import Diffusion  # noqa: E402

METHODS = ("layermerge", "depth", "layeronly")
DELTA = "layermerge-delta"
"""LayerMerge with the sum of differences as its objective."""
ON_PRUNED = ("channels", "channels+layermerge", "channels+depth", "channels+layeronly")
FURTHER = "60%"
"""Where methods take a network whose channels were pruned to the last budget."""
SAMPLES = "samples.npy"
SUBSETS, SUBSET_SIZE = 50, 500
Kid = tuple[float, float]
"""Mean and spread over subsets."""


@dataclass(frozen=True)
class Bench:
    """The run, and how its networks are sampled and judged."""

    run: Context
    methods: tuple[str, ...]
    budgets: tuple[str, ...]
    extractor: Path
    reference: Path | str
    count: int
    steps: int
    out: Path

    @cached_property
    def finished(self) -> list[tuple[Report, Path]]:
        """The control first, then by method and budget."""
        found = []
        for place in self.run.directory.variants():
            report = place.read_result()
            if report is not None and not report.first_of_two:
                found.append((report, place.path))
        order = [CONTROL, *METHODS, DELTA, *ON_PRUNED]
        return sorted(found, key=lambda pair: (order.index(pair[0].method), -pair[0].budget_ms))


def networks(bench: Bench) -> None:
    """Every method at every budget, then channel pruning to the last, alone and followed by each; equal fine-tuning for all."""
    if CONTROL in bench.methods:
        run_control(bench.run)
    run = bench.run
    further = run.with_settings(run.settings.model_copy(update={"first_budget": bench.budgets[-1]}))
    summed = run.with_settings(run.settings.model_copy(update={"objective": "delta"}))
    hows = {method: (run, method) for method in METHODS} | {DELTA: (summed, "layermerge")}
    wanted = [(*hows[name], budget, name) for budget in bench.budgets for name in hows]
    wanted += [(run, ON_PRUNED[0], bench.budgets[-1], ON_PRUNED[0])]
    wanted += [(further, method, FURTHER, method) for method in ON_PRUNED[1:]]
    for how, method, budget, name in wanted:
        if name not in bench.methods:
            continue
        try:
            print(run_method(how, method, budget).report, flush=True)
        except LayerMergeError as error:
            print(f"{method} at {budget}: {error}", flush=True)


def samples(bench: Bench) -> None:
    """Images of every network, and their features."""
    judge = TorchScriptExtractor(bench.extractor)
    features_of(_reference(bench), judge, cache=bench.run.directory.path / "features")
    for report, place in bench.finished:
        if report.method not in bench.methods:
            continue
        images = _samples(bench, place)
        features_of(to_pixels(images), judge, cache=bench.run.directory.path / "features")
        print(f"{report.method} at {report.budget}: {len(images)} images sampled and looked at", flush=True)


def figures(bench: Bench) -> None:
    """The table, the plots and the grids."""
    reports = [report for report, _ in bench.finished]
    places = [place for _, place in bench.finished]
    timed = side_by_side(bench.run, reports)
    judge, cache = TorchScriptExtractor(bench.extractor), bench.run.directory.path / "features"
    real = features_of(_reference(bench), judge, cache=cache)
    rows: list[tuple[Report, Kid | None]] = []
    for report, place in zip(timed, places, strict=True):
        if not (place / SAMPLES).is_file():  # left out of the samples by --method
            rows.append((report, None))
            continue
        own = features_of(to_pixels(_samples(bench, place)), judge, cache=cache)
        rows.append((report, kid(own, real, subsets=SUBSETS, subset_size=SUBSET_SIZE)))
    _write_table(bench, rows)
    judged = [(report, *found) for report, found in rows if found is not None]
    for name, title, points in (
        ("noise_loss", "noise loss", [_point(r, r.score.value, r.score.low, r.score.high) for r, _ in rows]),
        ("kid", "KID x 1000", [_point(r, 1000 * m, 1000 * (m - s), 1000 * (m + s)) for r, m, s in judged]),
    ):
        for suffix in (".png", ".svg"):
            plot_accuracy(points, bench.out / f"{name}{suffix}", score=title)
    for report, place in zip(reports, places, strict=True):
        if not (place / SAMPLES).is_file():
            continue
        name = f"{report.method}-{report.budget.rstrip('%')}".replace("+", "-")
        write_grid(_samples(bench, place)[:40], bench.out / f"samples-{name}.png", columns=10)


def frechet(bench: Bench) -> None:
    """FID of the control with as many samples as features have dimensions: slow."""
    judge, cache = TorchScriptExtractor(bench.extractor), bench.run.directory.path / "features"
    control = next(place for report, place in bench.finished if report.method == CONTROL)
    many = _drawn(bench, control, 2048)
    own = features_of(to_pixels(many), judge, cache=cache)
    real = features_of(_real(bench, 2048), judge, cache=cache)
    print(f"FID of the original, fine-tuned, on 2,048 samples: {fid(own, real):.2f}")


def _reference(bench: Bench) -> Tensor:
    return _real(bench, bench.count)


def _real(bench: Bench, count: int) -> Tensor:
    """Real test images: what no network was trained on."""
    _, test = load_images(str(bench.reference))
    assert isinstance(test, ArrayImages)
    return test.pixels[:count]


def _samples(bench: Bench, place: Path) -> Tensor:
    """Sampled once, then read."""
    file = place / SAMPLES
    if not file.is_file() or len(np.load(file, mmap_mode="r", allow_pickle=False)) != bench.count:
        np.save(file, _drawn(bench, place, bench.count).numpy())
    return torch.from_numpy(np.load(file, allow_pickle=False))


def _drawn(bench: Bench, place: Path, count: int) -> Tensor:
    task = bench.run.task
    assert isinstance(task, Diffusion)
    shape = tuple(task.example_inputs()[0].shape[1:])
    network = make_runtime("onnxruntime").serve_file(VariantDirectory(place).exported)
    return sample(
        network, task.schedule, shape, count=count, steps=bench.steps, spacing="quadratic", show_progress=True
    )


def _write_table(bench: Bench, rows: Sequence[tuple[Report, Kid | None]]) -> None:
    first = rows[0][0]
    lines = [
        f"Original: {first.original_ms:.2f} ms a step of {first.batch_size} images on {first.runtime} "
        f"({first.threads} thread), noise loss {first.original_score.value:.5f}, {first.convs_before} convs.",
        "",
        "| method | budget | ms a step | speed-up | noise loss | 95 % interval | KID x 1000 | convs |",
        "|---|---|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {'original, fine-tuned' if r.method == CONTROL else r.method} | {r.budget} | {r.measured_ms:.2f} "
        f"| {r.speed_up:.2f}x | {r.score.value:.5f} | {r.score.low:.5f} - {r.score.high:.5f} "
        f"| {'-' if found is None else f'{1000 * found[0]:.1f} ± {1000 * found[1]:.1f}'} | {r.convs_after} |"
        for r, found in rows
    ]
    costs = {r.method: r.cost for r, _ in rows if r.cost.entries}
    lines += ["", "| method | entries | scored | ruled out | workloads timed | latency s | importance s |"]
    lines += ["|---|---|---|---|---|---|---|"]
    lines += [
        f"| {method} | {c.entries} | {c.scored} | {c.ruled_out} | {c.workloads} | {c.latency_seconds:.0f} "
        f"| {c.importance_seconds:.0f} |"
        for method, c in costs.items()
    ]
    write_files({bench.out / "comparison.md": text_writer("\n".join([*lines, ""]))})
    with (bench.out / "comparison.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(
            ["method", "budget", "measured_ms", "speed_up", "noise_loss", "low", "high", "kid", "kid_std", "convs"]
        )
        for r, found in rows:
            score = (r.score.value, r.score.low, r.score.high)
            writer.writerow(
                [r.method, r.budget, r.measured_ms, r.speed_up, *score, *(found or ("", "")), r.convs_after]
            )
    print("\n".join(lines))


def _point(report: Report, value: float, low: float | None, high: float | None) -> MethodPoint:
    name = "original, fine-tuned" if report.method == CONTROL else report.method
    control = report.method == CONTROL
    return MethodPoint(name, report.budget, report.measured_ms, report.original_ms, value, low, high, control)


PARTS = {part.__name__: part for part in (networks, samples, figures, frechet)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True, help="the directory that train_small_unet.py wrote")
    parser.add_argument("--data", required=True, help="fashion-mnist:DIR")
    parser.add_argument("--extractor", type=Path, required=True, help="an Inception network as a TorchScript file")
    parser.add_argument("--run-dir", type=Path, default=ROOT / "runs" / "small_unet")
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--steps", type=int, default=25)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--method", action="append", help="only this one, or original; repeatable")
    parser.add_argument(
        "--part", action="append", choices=PARTS, help="only this; repeatable. frechet only when asked for"
    )
    given = parser.parse_args()
    torch.set_num_threads(1)
    changes = {"model": f"diffusers:{given.model}", "data.source": given.data, "workers": given.workers}
    recipe = read_recipe(ROOT / "recipes" / "fashion_mnist_unet.yaml", changes)
    run = open_run(recipe, given.run_dir)
    out = ROOT / "benchmarks" / "results" / "small_unet"
    out.mkdir(parents=True, exist_ok=True)
    methods = tuple(given.method or (CONTROL, *METHODS, DELTA, *ON_PRUNED))
    bench = Bench(run, methods, recipe.budgets, given.extractor, given.data, given.count, given.steps, out)
    for name in given.part or ["networks", "samples", "figures"]:
        print(f"-- {name}: {PARTS[name].__doc__}", flush=True)
        PARTS[name](bench)


if __name__ == "__main__":
    main()
