"""Detectors without labels: how near a compressed detector stays to the original on pictures that a script draws.

    python benchmarks/detectors.py draw PICTURES
    python benchmarks/detectors.py run yolox --onnx common_det.onnx --pictures PICTURES
    python benchmarks/detectors.py run ppocr --onnx ch_PP-OCRv4_det_infer.onnx --pictures PICTURES
    python benchmarks/detectors.py run yolox --onnx common_det.onnx --pictures PICTURES --minutes 60
    python benchmarks/detectors.py score yolox --onnx common_det.onnx --pictures PICTURES
    python benchmarks/detectors.py table

The files are those of the PyPI packages ddddocr 1.6.1 and rapidocr_onnxruntime 1.4.4. `run` compresses to each budget by imitation,
without training or, where `--minutes` says how long, with it, all on the same tables; `score` compares the exported files
with the original file on pictures that nothing was fitted to, times them side by side, and writes a file a result to
benchmarks/results/detectors/. Everything resumes.
"""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.drawn_pictures import KINDS, draw_folder  # noqa: E402

from layermerge.data.preparation import STATISTICS, Preparation, Statistics  # noqa: E402
from layermerge.models import load_model  # noqa: E402
from layermerge.runs.compress import compress_run  # noqa: E402
from layermerge.runs.context import Context, open_context  # noqa: E402
from layermerge.runs.recipe import Settings  # noqa: E402
from layermerge.tables.estimators.calibrated import Calibrated  # noqa: E402
from layermerge.tasks.imitation import Imitation  # noqa: E402
from layermerge.tuning.recipe import Recipe  # noqa: E402

BUDGETS = ("80%", "70%", "60%")
TRAINED_ON, TESTED_ON = 600, 120
TRAIN_SEED, TEST_SEED = 17, 18
FITTED, HELD_OUT, CALIBRATED = 64, 24, 96
"""Pictures that entries of the importance table are fitted on and compared on, and that a chosen network is fitted on: fewer than by
default, since each has as many places as hundreds of small pictures."""
UNTRAINED = "untrained"
NORMALISED = {"yolox": STATISTICS["bytes"], "ppocr": Statistics((0.5, 0.5, 0.5), (0.5, 0.5, 0.5))}
"""As the packages that the files come from prepare their pictures."""
TRAINING = Recipe(steps=1, batch_size=8, optimizer="adam", lr=5e-4, weight_decay=0.0, clip_norm=1.0, channels_last=True)


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
        settings = FewPictures(finetune=finetune, label=label, calibrate=CALIBRATED)
        return open_context(model, task, self.run_dir, settings)


def draw(given: argparse.Namespace) -> None:
    for name, kind in KINDS.items():
        for part, count, seed in (("train", given.train, TRAIN_SEED), ("test", given.test, TEST_SEED)):
            files = draw_folder(kind, given.folder / name / part, count, seed)
            print(f"{len(files)} pictures in {files[0].parent}")


def run(given: argparse.Namespace) -> None:
    detector = _detector(given)
    for budget in given.budget or BUDGETS:
        if not given.minutes:
            context = detector.open(UNTRAINED, None)
        print(compress_run(context, budget).report, flush=True)


def _detector(given: argparse.Namespace) -> Detector:
    return Detector(given.network, given.onnx, given.pictures, given.run_dir or ROOT / "runs" / f"detectors-{given.network}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(required=True)
    drawing = verbs.add_parser("draw", help="draw pictures to train and to test on")
    drawing.add_argument("folder", type=Path)
    drawing.add_argument("--train", type=int, default=TRAINED_ON)
    drawing.add_argument("--test", type=int, default=TESTED_ON)
    drawing.set_defaults(do=draw)
    for verb, do in (("run", run),):
        part = verbs.add_parser(verb)
        part.add_argument("network", choices=KINDS)
        part.add_argument("--onnx", type=Path, required=True, help="the original's file")
        part.add_argument("--pictures", type=Path, required=True, help="where they were drawn")
        part.add_argument("--run-dir", type=Path, help="where tables and networks go; runs/detectors-NETWORK by default")
        part.add_argument("--budget", action="append", help="only this; repeatable")
        part.set_defaults(do=do)
        if verb == "run":
            part.add_argument("--minutes", type=float, help="train about so long; by default not at all")
    given = parser.parse_args()
    torch.set_num_threads(1)
    given.do(given)


if __name__ == "__main__":
    main()
