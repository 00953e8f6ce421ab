"""Calibrated: how far the outputs of a network with this one candidate are from the original's, after closed-form fits.

No training and no labels: the changed range is fitted to the original's map at its end, norms are estimated again, and the
divergence of the outputs is taken on held-out images. D is its negative, so no candidate gains anything, and the standard
error over the images is the row's spread.
"""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from torch import Tensor

from layermerge.calibration.mean_gates import with_mean_gates
from layermerge.calibration.sample import Sample, batch_size_for, held_out_inputs
from layermerge.calibration.trials import Trials
from layermerge.errors import DataError, TableError
from layermerge.planning.candidate import Candidate
from layermerge.planning.plan import Plan
from layermerge.runtimes.torch_eager import torch_threads
from layermerge.surgery.check import require_finite
from layermerge.surgery.rewrite import RewrittenModule, rewrite
from layermerge.tables.estimators.base import BASELINE, Estimator, Job
from layermerge.tables.table import Row, Scalar
from layermerge.tasks.base import Task, held_out_score
from layermerge.tracing.trace import Trace
from layermerge.tuning.distributed import usable_device

IMAGES = 256
SCORED = 512
"""Held-out images that outputs are compared on, at most."""
FAR = 1e3
"""The divergence of a network whose outputs are not finite."""
_FITS = 2
"""How entries are fitted; raised with every change to it, since rows that were fitted otherwise do not mix."""


@dataclass(frozen=True)
class Calibrated(Estimator):
    """Importance without training; `images` of the training data are fitted on, labels unseen."""

    images: int = IMAGES

    def job(self, trace: Trace, plan: Plan, task: Task, device: str) -> CalibratedJob:
        require_finite(trace.module)
        return CalibratedJob(trace, plan, task, device, images=self.images)


@dataclass(frozen=True, kw_only=True)
class CalibratedJob(Job):
    """Fits and compares; what the original computes is held from one entry to the next, and not sent along."""

    images: int

    def __call__(self, key: str) -> Row:
        started = time.perf_counter()
        with torch_threads(1):
            row = self._score_original() if key == BASELINE else self._compare(key)
        return row.model_copy(update={"seconds": round(time.perf_counter() - started, 2)})

    def _score_original(self) -> Row:
        score = held_out_score(self.task, self._original)
        if not math.isfinite(score):
            raise TableError(f"the untouched network's score on held-out images is {score}; give a trained network")
        return Row(key=BASELINE, value=score)

    def _compare(self, key: str) -> Row:
        return _row(key, self.fitted([self.plan[key]])[1])

    def fitted(self, candidates: Sequence[Candidate], *, everything: bool = False) -> tuple[RewrittenModule, Tensor]:
        """The network of these candidates, fitted, and its divergence from the original on each image that is scored.

        Fitted are the changed ranges and what reads them, or all places behind the first change.
        """
        net = with_mean_gates(rewrite(self.trace, candidates), self.task).to(self._original.device)
        return net, self._trials.divergence(net, everything=everything)

    def whole(self, candidates: Sequence[Candidate]) -> Row:
        """All places behind the first change are fitted; what the task says of the network then is its score."""
        started = time.perf_counter()
        with torch_threads(1):
            net, found = self.fitted(candidates, everything=True)
            row = _row("whole", found) if bool(found.isfinite().all()) else Row(key="whole", value=-FAR)
            score = held_out_score(self.task, net)
        seconds = round(time.perf_counter() - started, 2)
        parts = tuple(candidate.key for candidate in candidates)
        known = score if math.isfinite(score) else None
        return row.model_copy(update={"parts": parts, "score": known, "seconds": seconds})

    @cached_property
    def _original(self) -> Any:
        return copy.deepcopy(self.trace.module).to(usable_device(self.device)).eval()

    @cached_property
    def _trials(self) -> Trials:
        example = self.trace.inputs
        size = batch_size_for(self.trace.structure)
        try:
            sample = Sample.of(self.task, example, self.images, size)
            scored = held_out_inputs(self.task, example, size, SCORED)
        except DataError as error:  # of what all entries are measured on
            raise TableError(f"importance cannot be estimated: {error}") from error
        return Trials(self._original, sample, scored, self.task.divergence)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name not in ("_trials", "_original")}

    @property
    def largest_gain(self) -> float:
        """A divergence is never negative."""
        return 0.0

    def describe(self) -> dict[str, Scalar]:
        return {"estimator": "calibrated", "images": self.images, "scored": SCORED, "fits": _FITS}


def _row(key: str, divergences: Tensor) -> Row:
    count = len(divergences)
    mean, error = float(divergences.mean()), float(divergences.std()) / math.sqrt(count) if count > 1 else 0.0
    if not math.isfinite(mean) or not math.isfinite(error):
        raise ArithmeticError(f"the divergence is {mean}")
    return Row(key=key, value=-mean, spread=error, samples=count)
