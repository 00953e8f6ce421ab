"""Diffusion: LayerMerge and its rivals on a small U-Net: noise loss, KID and FID against the measured latency of a step.

    python benchmarks/train_small_unet.py --data fashion-mnist:DIR --out DIR
    python benchmarks/diffusion.py --model DIR --data fashion-mnist:DIR --extractor FILE.pt
    python benchmarks/results_page.py

Every network is sampled from the same start noise through its exported file. Everything resumes; each network leaves a file in
benchmarks/results/diffusion and a grid of its samples in benchmarks/pictures.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.diffusion_results import (  # noqa: E402
    BUDGETS,
    RESULTS,
    STUDY,
    DiffusionResult,
    Figure,
    Looks,
    name_of,
    write_result,
)
from benchmarks.in_turn import milliseconds  # noqa: E402
from benchmarks.missing import write_missing  # noqa: E402
from benchmarks.openvino_extractor import OpenVinoExtractor  # noqa: E402
from benchmarks.paired_kid import Lead, Nearness, kid_lead  # noqa: E402
from benchmarks.seeds import seeds_of  # noqa: E402

from layermerge.data.images import ArrayImages  # noqa: E402
from layermerge.errors import LayerMergeError  # noqa: E402
from layermerge.runs.context import Context  # noqa: E402
from layermerge.runs.directory import VariantDirectory  # noqa: E402
from layermerge.runs.environment import environment_now  # noqa: E402
from layermerge.runs.methods import run_control, run_method  # noqa: E402
from layermerge.runs.opening import open_run  # noqa: E402
from layermerge.runs.recipe import read_recipe  # noqa: E402
from layermerge.runs.records import CONTROL, Report  # noqa: E402
from layermerge.runtimes.registry import make_runtime  # noqa: E402
from layermerge.sampling.ddim import sample  # noqa: E402
from layermerge.sampling.pictures import to_pixels, write_grid  # noqa: E402
from layermerge.sampling.quality import features_of, fid, kid  # noqa: E402
from layermerge.tasks import load_images  # noqa: E402
from layermerge.tasks.diffusion import Diffusion  # noqa: E402

RUNTIMES = ("onnxruntime", "openvino")
PICTURES = ROOT / "benchmarks" / "pictures"
SUBSETS, SUBSET_SIZE = 100, 500
SEED = 0
"""Of the start noise, the same for every network."""


@dataclass(frozen=True)
class Bench:
    """The run, and how its networks are sampled and judged."""

    run: Context
    extractor: Path
    data: str
    count: int
    steps: int
    only: tuple[str, ...] = ()
    """Names of networks to sample; all where there are none."""

    def wants(self, name: str) -> bool:
        return not self.only or name in self.only

    @property
    def task(self) -> Diffusion:
        assert isinstance(self.run.task, Diffusion)
        return self.run.task

    @cached_property
    def judge(self) -> OpenVinoExtractor:
        return OpenVinoExtractor(self.extractor)

    def finished(self) -> Iterator[tuple[Report, VariantDirectory]]:
        """What there is, in the study's order."""
        for method, budget in STUDY:
            place = self.run.directory.variant(method, budget, self.run.settings.label)
            if (report := place.read_result()) is not None:
                yield report, place

    def features(self, pixels: Tensor) -> Tensor:
        return features_of(pixels, self.judge, cache=self.run.directory.path / "features", show_progress=True)


def networks(bench: Bench) -> None:
    """Every method at every budget, then each on a network with fewer channels; equal fine-tuning for all."""
    settings = bench.run.settings.model_copy(update={"first_budget": BUDGETS[0]})
    run = bench.run.with_settings(settings)
    for method, budget in STUDY:
        try:
            result = run_control(run) if method == CONTROL else run_method(run, method, budget)
            print(result.report, flush=True)
        except LayerMergeError as error:
            print(f"{method} at {budget}: {error}", flush=True)
            write_missing(RESULTS, name_of(method, budget), error)


def samples(bench: Bench) -> None:
    """Images of every network, and their features."""
    bench.features(_real(bench))
    for report, place in bench.finished():
        name = name_of(report.method, report.budget)
        if not bench.wants(name):
            continue
        images = _samples(bench, place)
        bench.features(to_pixels(images))
        grid = PICTURES / f"samples-{name}.png"
        write_grid(images[:40], grid, columns=20)
        print(f"{report.method} at {report.budget}: {len(images)} images sampled and looked at", flush=True)


def figures(bench: Bench) -> None:
    """Latency of all files in one run on each runtime, noise losses image by image, KID and FID."""
    found = list(bench.finished())
    files = {name_of(report.method, report.budget): place.exported for report, place in found}
    inputs = bench.run.trace.inputs.resized(bench.run.settings.batch_size)
    taken: dict[str, dict[str, float]] = {}
    for name in RUNTIMES:
        taken[name] = milliseconds(make_runtime(name), {"": bench.run.directory.original} | files, inputs)
    server = make_runtime("onnxruntime")
    losses = {name: bench.task.test_losses(server.serve_file(file)) for name, file in files.items()}
    real = bench.features(_real(bench))
    features = {
        name_of(report.method, report.budget): bench.features(to_pixels(_samples(bench, place)))
        for report, place in found
        if bench.wants(name_of(report.method, report.budget))
    }
    near = {name: Nearness.of(own, real) for name, own in features.items()}
    for report, place in found:
        name = name_of(report.method, report.budget)
        leads: dict[Figure, dict[str, Lead]] = {
            "noise loss": {other: lead_over(losses[name], losses[other]) for other in losses if other != name},
            "KID": {other: kid_lead(near[name], near[other]) for other in near if name in near and other != name},
        }
        result = DiffusionResult(
            report,
            tuple((point.epoch, point.score) for point in place.read_recovery()),
            seeds_of(bench.run) | {"samples": SEED},
            tuple(place.read_solution().candidates),
            {runtime: times[name] for runtime, times in taken.items()},
            {runtime: times[""] for runtime, times in taken.items()},
            _looks(bench, features[name], real) if name in features else None,
            leads,
            environment_now(),
        )
        write_result(result)
        print(f"{name}: {result.looks}", flush=True)


def _looks(bench: Bench, own: Tensor, real: Tensor) -> Looks:
    """How far a network's samples are from real images."""
    mean, spread = kid(own, real, subsets=SUBSETS, subset_size=SUBSET_SIZE)
    return Looks(len(own), bench.steps, mean, spread, fid(own, real) if len(own) >= own.shape[1] else None)


def lead_over(mine: Tensor, theirs: Tensor) -> Lead:
    """How much lower losses are, as a mean over the same images and noise, with its 95 % interval."""
    apart = theirs - mine
    gain, half = float(apart.mean()), 1.96 * float(apart.std()) / math.sqrt(len(apart))
    return gain, gain - half, gain + half


def _real(bench: Bench) -> Tensor:
    """Real test images: what no network was trained on."""
    _, test = load_images(bench.data)
    assert isinstance(test, ArrayImages)
    return test.pixels[: bench.count]


def _samples(bench: Bench, place: VariantDirectory) -> Tensor:
    """Sampled once, then read."""
    file = place.path / "samples.npy"
    if not file.is_file() or len(np.load(file, mmap_mode="r", allow_pickle=False)) != bench.count:
        shape = tuple(bench.task.example_inputs()[0].shape[1:])
        network = make_runtime("onnxruntime").serve_file(place.exported)
        drawn = sample(
            network,
            bench.task.schedule,
            shape,
            count=bench.count,
            steps=bench.steps,
            seed=SEED,
            spacing="quadratic",
            show_progress=True,
        )
        np.save(file, drawn.numpy())
    return torch.from_numpy(np.load(file, allow_pickle=False))


PARTS = {part.__name__: part for part in (networks, samples, figures)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True, help="the directory that train_small_unet.py wrote")
    parser.add_argument("--data", required=True, help="fashion-mnist:DIR")
    parser.add_argument("--extractor", type=Path, required=True, help="an Inception network as a TorchScript file")
    parser.add_argument("--run-dir", type=Path, default=ROOT / "runs" / "small_unet")
    parser.add_argument("--count", type=int, default=2048)
    parser.add_argument("--steps", type=int, default=25)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--part", action="append", choices=PARTS, help="only this; repeatable")
    names = [name_of(method, budget) for method, budget in STUDY]
    parser.add_argument("--only", action="append", choices=names, help="sample and judge only this network; repeatable")
    given = parser.parse_args()
    torch.set_num_threads(1)
    changes = {"model": f"diffusers:{given.model}", "data.source": given.data, "workers": given.workers}
    run = open_run(read_recipe(ROOT / "recipes" / "fashion_mnist_unet.yaml", changes), given.run_dir)
    bench = Bench(run, given.extractor, given.data, given.count, given.steps, tuple(given.only or ()))
    for name in given.part or PARTS:
        print(f"-- {name}: {PARTS[name].__doc__}", flush=True)
        PARTS[name](bench)


if __name__ == "__main__":
    main()
