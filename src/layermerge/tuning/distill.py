"""Distill: training towards a teacher's answers.

In: a loss, outputs, the batch they are of and its step.
Out: `(1 - weight) * loss + weight * task.distance(outputs, teacher's)`.
Guarantees: the teacher gets no gradients, and nothing of it changes as long as it is in eval mode.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from layermerge.errors import TuningError
from layermerge.tasks.base import Batch, Task
from layermerge.tuning.answers import KeptAnswers
from layermerge.tuning.recipe import Distillation, Recipe


@dataclass(frozen=True)
class Teacher:
    """A network to learn from, and how much."""

    module: nn.Module
    how: Distillation
    kept: KeptAnswers | None = None
    """Where its answers are kept for other trainings on the same batches."""

    @staticmethod
    def of(recipe: Recipe, net: nn.Module, module: nn.Module | None) -> Teacher | None:
        """The recipe's teacher; a module that the recipe has no use for is left alone."""
        if recipe.distill is None:
            return None
        if module is None:
            raise TuningError("the recipe distills but there is no teacher; pass teacher=, or remove distill")
        if module is net:
            raise TuningError("the network cannot be its own teacher; pass a copy of the original as teacher=")
        return Teacher(module, recipe.distill)

    def mix(self, loss: Tensor, outputs: Any, batch: Batch, task: Task, step: int) -> Tensor:
        def ask() -> Any:
            with torch.no_grad():
                return task.forward(self.module, batch)

        answers = self.kept.at(step, ask) if self.kept else ask()
        distance = task.distance(outputs, answers, self.how.temperature)
        return (1 - self.how.weight) * loss + self.how.weight * distance
