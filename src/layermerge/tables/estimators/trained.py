"""Trained (paper eq. 4): the score of a copy with this one candidate applied, trained a few steps, less the score of the
untouched network after the same steps. Every entry sees the same batches, augmentation and noise."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass

import torch

from layermerge.calibration.mean_gates import with_mean_gates
from layermerge.errors import TableError
from layermerge.planning.plan import Plan
from layermerge.runtimes.torch_eager import torch_threads
from layermerge.surgery.rewrite import rewrite
from layermerge.tables.estimators.base import BASELINE, Estimator, Job
from layermerge.tables.table import Row, Scalar
from layermerge.tasks.base import Task, held_out_score
from layermerge.tracing.trace import Trace
from layermerge.tuning.distributed import usable_device
from layermerge.tuning.loop import train_steps
from layermerge.tuning.recipe import Recipe


@dataclass(frozen=True)
class Trained(Estimator):
    """Importance by short trainings; `recipe` says how each copy is trained."""

    recipe: Recipe

    def job(self, trace: Trace, plan: Plan, task: Task, device: str) -> TrainedJob:
        if self.recipe.distill is not None or self.recipe.ema is not None:
            raise TableError("importance is measured without distillation and without a moving average; leave them out")
        return TrainedJob(trace, plan, task, device, recipe=self.recipe)


@dataclass(frozen=True, kw_only=True)
class TrainedJob(Job):
    """Trains and evaluates a copy."""

    recipe: Recipe

    def __call__(self, key: str) -> Row:
        started = time.perf_counter()
        chosen = [] if key == BASELINE else [self.plan[key]]
        module = with_mean_gates(rewrite(self.trace, chosen), self.task).to(usable_device(self.device))
        with torch_threads(1):  # sums depend on how many threads share them; one always gives the same
            train_steps(module, self.task, self.recipe)
            module.eval()
            with torch.no_grad():
                score = held_out_score(self.task, module)
        if not math.isfinite(score):
            raise ArithmeticError(f"the score is {score}")
        value = score if self.baseline is None else score - self.baseline
        seconds = round(time.perf_counter() - started, 2)
        return Row(key=key, value=value, samples=self.recipe.steps or 0, seconds=seconds)

    @property
    def largest_gain(self) -> float:
        assert self.baseline is not None
        return self.task.ceiling - self.baseline

    def describe(self) -> dict[str, Scalar]:
        # Checkpoints are for long trainings; how often they are written changes nothing.
        recipe = self.recipe.model_dump(exclude={"checkpoint_steps", "distill"}, exclude_defaults=True)
        return {"estimator": "trained", **{f"recipe.{name}": value for name, value in sorted(recipe.items())}}
