"""Detectors without labels: how near a compressed detector stays to the original on pictures that a script draws.

    python benchmarks/detectors.py draw PICTURES
    python benchmarks/detectors.py run yolox --onnx common_det.onnx --pictures PICTURES
    python benchmarks/detectors.py run ppocr --onnx ch_PP-OCRv4_det_infer.onnx --pictures PICTURES
    python benchmarks/detectors.py run yolox --onnx common_det.onnx --pictures PICTURES --minutes 60
    python benchmarks/detectors.py score yolox --onnx common_det.onnx --pictures PICTURES
    python benchmarks/detectors.py table

The files are those of the PyPI packages ddddocr 1.6.1 and rapidocr_onnxruntime 1.4.4. `run` compresses to each budget by
imitation, without training or, where `--minutes` says how long, with it, all on the same tables; `score` compares the exported
files with the original file on pictures that nothing was fitted to, times them side by side, and writes a file a result to
benchmarks/results/detectors/. Everything resumes.
"""

from __future__ import annotations

import argparse
import copy
import json
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import Image

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks import agreement  # noqa: E402
from benchmarks.chosen_elsewhere import train_as_chosen, unknown_here  # noqa: E402
from benchmarks.detector_results import (  # noqa: E402
    BUDGETS,
    RESULTS,
    UNTRAINED,
    DetectorResult,
    file_of,
    name_of,
    read_results,
    table,
    unreachable,
    write_result,
)
from benchmarks.drawn_pictures import KINDS, draw_folder  # noqa: E402
from benchmarks.in_turn import milliseconds  # noqa: E402
from benchmarks.missing import write_missing  # noqa: E402
from benchmarks.seeds import seeds_of  # noqa: E402

from layermerge.data.preparation import STATISTICS, Preparation, Statistics  # noqa: E402
from layermerge.data.sets import Draw  # noqa: E402
from layermerge.errors import InfeasibleBudget  # noqa: E402
from layermerge.files import read_document, write_document  # noqa: E402
from layermerge.models import load_model  # noqa: E402
from layermerge.planning.rules import Rules  # noqa: E402
from layermerge.runs.compress import compress_run  # noqa: E402
from layermerge.runs.context import Context, open_context  # noqa: E402
from layermerge.runs.directory import RunDirectory, VariantDirectory  # noqa: E402
from layermerge.runs.environment import environment_now  # noqa: E402
from layermerge.runs.recipe import Settings  # noqa: E402
from layermerge.runs.records import Report, Result  # noqa: E402
from layermerge.runtimes.clock import ClockSettings  # noqa: E402
from layermerge.runtimes.registry import make_runtime  # noqa: E402
from layermerge.tables.estimators.calibrated import Calibrated  # noqa: E402
from layermerge.tasks.imitation import Imitation  # noqa: E402
from layermerge.tracing.inputs import Inputs  # noqa: E402
from layermerge.tuning.recipe import Recipe  # noqa: E402

TRAINED_ON, TESTED_ON = 600, 120
TRAIN_SEED, TEST_SEED = 17, 18
FITTED, HELD_OUT, CALIBRATED = 32, 16, 64
"""Pictures that entries of the importance table are fitted on and compared on, and that a chosen network is fitted on: fewer
than by default, since each has as many places as hundreds of small pictures."""
RULES = Rules(replace=("activations", "gates"))
"""Both networks have activations that take much of their time on a CPU, and one has gates."""
NORMALISED = {"yolox": STATISTICS["bytes"], "ppocr": Statistics((0.5, 0.5, 0.5), (0.5, 0.5, 0.5))}
"""As the packages that the files come from prepare their pictures."""
CONFIDENT = 0.5
CLOCK = ClockSettings(least_rounds=100, most_rounds=3000, seconds=40.0, spread=0.003, least_seconds=15.0)
ADAM = Recipe(steps=1, batch_size=8, optimizer="adam", lr=2e-4, weight_decay=0.0, clip_norm=1.0, channels_last=True)
TRAINING = {"ppocr": ADAM, "yolox": ADAM.model_copy(update={"lr": 2e-5, "warmup_epochs": 0.3})}
"""The YOLOX has no norms, and its rate was chosen on held-out pictures: 73 steps at 6e-5 led away from the fit."""


class FewPictures(Settings):
    """Settings whose importance is estimated on few pictures."""

    @property
    def estimator(self) -> Calibrated:
        return Calibrated(FITTED)


@dataclass(frozen=True)
class Detector:
    """A network's file, its pictures, and where its run is."""

    name: str
    file: Path
    pictures: Path
    run_dir: Path

    @property
    def preparation(self) -> Preparation:
        return Preparation(normalise=NORMALISED[self.name], size=KINDS[self.name].side, crop_pct=1.0)

    def open(self, label: str, finetune: Recipe | None) -> Context:
        side = KINDS[self.name].side
        model = load_model(f"onnx:{self.file}", None, (3, side, side)).module
        train, test = (str(self.pictures / self.name / part) for part in ("train", "test"))
        task = Imitation(train, test, teacher=model, preparation=self.preparation, held_out=HELD_OUT, eval_batch_size=8)
        settings = FewPictures(finetune=finetune, label=label, calibrate=CALIBRATED, rules=RULES)
        return open_context(model, task, self.run_dir, settings)


def draw(given: argparse.Namespace) -> None:
    for name, kind in KINDS.items():
        for part, count, seed in (("train", given.train, TRAIN_SEED), ("test", given.test, TEST_SEED)):
            files = draw_folder(kind, given.folder / name / part, count, seed)
            print(f"{len(files)} pictures in {files[0].parent}")


def run(given: argparse.Namespace) -> None:
    detector = _detector(given)
    context = detector.open(UNTRAINED, None)
    if given.minutes:
        label = f"trained-{given.minutes:g}min"
        recipe = TRAINING[detector.name]
        steps = steps_within(context, recipe.batch_size, given.minutes, label)
        finetune = recipe.model_copy(update={"steps": steps})
        context = context.with_settings(context.settings.model_copy(update={"finetune": finetune, "label": label}))
    for budget in given.budget or BUDGETS:
        try:
            print(_compressed(context, detector.name, budget).report, flush=True)
        except InfeasibleBudget as error:
            print(f"{budget}: {error}", flush=True)
            write_missing(RESULTS, name_of(detector.name, budget), error)


def _compressed(context: Context, network: str, budget: str) -> Result:
    """Trained as it was chosen on another machine, where its result file is all that is here."""
    known = file_of(RESULTS, name_of(network, budget))
    if context.settings.finetune and known.is_file() and unknown_here(context, context.settings.method, budget):
        chosen = read_document(known, DetectorResult)
        return train_as_chosen(context, chosen.report, chosen.candidates)
    return compress_run(context, budget)


def steps_within(context: Context, batch_size: int, minutes: float, label: str) -> int:
    """How many steps the original would take so long for; told once, so that a training that goes on keeps its length."""
    known = context.directory.path / f"steps-{label}.json"
    if not known.is_file():
        network = copy.deepcopy(context.trace.module).train()
        began, count = time.perf_counter(), 0
        for batch in context.task.train_batches(Draw(seed=0, batch_size=batch_size)):
            loss = context.task.loss(context.task.forward(network, batch), batch)
            torch.autograd.backward(loss)
            count += 1
            if count >= 5 and time.perf_counter() - began > 20:
                break
        write_document(known, max(1, round(60 * minutes * count / (time.perf_counter() - began))))
    return int(json.loads(known.read_text()))


def score(given: argparse.Namespace) -> None:
    detector = _detector(given)
    originals = list(outputs(detector, detector.file))
    variants = [place for place in RunDirectory(detector.run_dir).variants() if place.read_result() is not None]
    side = KINDS[detector.name].side
    runtime, inputs = make_runtime("onnxruntime"), Inputs((torch.rand(1, 3, side, side),), {})
    rewritten = RunDirectory(detector.run_dir).original
    files = {str(file): file for file in (detector.file, rewritten, *(place.exported for place in variants))}
    taken = milliseconds(runtime, files, inputs, CLOCK)
    for place in variants:
        found = list(outputs(detector, place.exported))
        ms = [taken[str(file)] for file in (detector.file, rewritten, place.exported)]
        result = _result(detector, place, ms, compare(detector.name, found, originals), len(originals))
        print(f"wrote {write_result(RESULTS, result).relative_to(ROOT)}", flush=True)


def outputs(detector: Detector, file: Path) -> Iterator[agreement.Array]:
    """What the network of a file answers about each test picture."""
    network = make_runtime("onnxruntime").serve_file(file)
    for picture in sorted((detector.pictures / detector.name / "test").glob("*.png")):
        pixels = torch.from_numpy(np.array(Image.open(picture))).permute(2, 0, 1)[None]
        answer = network(detector.preparation.finish(pixels))
        yield (answer if isinstance(answer, torch.Tensor) else answer[0])[0].numpy()


def _result(
    detector: Detector, place: VariantDirectory, ms: Sequence[float], found: Compared, pictures: int
) -> DetectorResult:
    report = place.read_result()
    assert isinstance(report, Report)
    curve = place.read_recovery()
    return DetectorResult(
        network=detector.name,
        file=detector.file.name,
        report=report,
        candidates=tuple(place.read_solution().candidates),
        recovery=tuple((point.epoch, point.score) for point in curve),
        seeds=seeds_of(detector.open(report.label, TRAINING[detector.name] if curve else None)),
        steps=curve[-1].step if curve else 0,
        minutes_trained=round(curve[-1].seconds / 60, 1) if curve else 0.0,
        file_ms=ms[0],
        original_ms=ms[1],
        measured_ms=ms[2],
        pictures=pictures,
        original_boxes=found.original_boxes,
        agreement=found.figures,
        environment=environment_now(),
    )


@dataclass(frozen=True)
class Compared:
    """Agreement by name, and how many boxes of the original there were."""

    figures: dict[str, agreement.Interval]
    original_boxes: int


def compare(name: str, found: list[agreement.Array], truth: list[agreement.Array]) -> Compared:
    """Agreement of answers to the same pictures."""
    if name == "yolox":
        side = KINDS[name].side
        mine, theirs = ([agreement.decode(answer, side) for answer in answers] for answers in (found, truth))
        sure = [agreement.confident(boxes, CONFIDENT) for boxes in theirs]
        figures = {
            "mAP at IoU 0.5": _precision(mine, theirs, 0.5),
            "mAP at IoU 0.75": _precision(mine, theirs, 0.75),
            "confident boxes found": agreement.bootstrapped(
                agreement.found_share, [agreement.match(*pair, 0.5) for pair in zip(mine, sure, strict=True)]
            ),
        }
    else:
        mine, theirs = ([agreement.text_boxes(answer[0]) for answer in answers] for answers in (found, truth))
        maps = [agreement.Overlap.of(*pair) for pair in zip(found, truth, strict=True)]
        figures = {
            "IoU of the text map": agreement.bootstrapped(agreement.map_overlap, maps),
            "text boxes, mAP at IoU 0.5": _precision(mine, theirs, 0.5),
        }
    return Compared(figures, sum(map(len, theirs)))


def _precision(mine: list[agreement.Boxes], theirs: list[agreement.Boxes], least: float) -> agreement.Interval:
    matches = [agreement.match(*pair, least) for pair in zip(mine, theirs, strict=True)]
    return agreement.bootstrapped(agreement.average_precision, matches)


def _detector(given: argparse.Namespace) -> Detector:
    return Detector(
        given.network, given.onnx, given.pictures, given.run_dir or ROOT / "runs" / f"detectors-{given.network}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(required=True)
    drawing = verbs.add_parser("draw", help="draw pictures to train and to test on")
    drawing.add_argument("folder", type=Path)
    drawing.add_argument("--train", type=int, default=TRAINED_ON)
    drawing.add_argument("--test", type=int, default=TESTED_ON)
    drawing.set_defaults(do=draw)
    for verb, do in (("run", run), ("score", score)):
        part = verbs.add_parser(verb)
        part.add_argument("network", choices=KINDS)
        part.add_argument("--onnx", type=Path, required=True, help="the original's file")
        part.add_argument("--pictures", type=Path, required=True, help="where they were drawn")
        part.add_argument(
            "--run-dir", type=Path, help="where tables and networks go; runs/detectors-NETWORK by default"
        )
        part.add_argument("--budget", action="append", help="only this; repeatable")
        part.set_defaults(do=do)
        if verb == "run":
            part.add_argument("--minutes", type=float, help="train about so long; by default not at all")
    showing = verbs.add_parser("table", help="print the results as Markdown")
    showing.set_defaults(do=lambda _: print("\n".join(table(read_results(RESULTS), unreachable(RESULTS)))))
    given = parser.parse_args()
    torch.set_num_threads(1)
    given.do(given)


if __name__ == "__main__":
    main()
