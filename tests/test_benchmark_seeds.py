"""Result files of benchmarks name the seeds that a run had."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import torch
from benchmarks.seeds import seeds_of

from layermerge.data.images import ArrayImages
from layermerge.runs.context import Context
from layermerge.runs.recipe import Settings
from layermerge.tasks import Classification
from layermerge.tuning.recipe import Recipe


def test_seeds_are_those_of_the_data_and_of_the_training() -> None:
    images = ArrayImages("few", torch.zeros(40, 1, 4, 4, dtype=torch.uint8).numpy(), (torch.arange(40) % 2).numpy())
    task = Classification(images, images, seed=3)
    run = SimpleNamespace(task=task, settings=Settings(finetune=Recipe(steps=1, seed=5)))
    assert seeds_of(cast("Context", run)) == {"held_out": 3, "training": 5}
    run.settings = Settings(finetune=None)
    assert seeds_of(cast("Context", run)) == {"held_out": 3}
