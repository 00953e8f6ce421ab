"""The data part of a recipe: what it says is what the task does."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from layermerge.data.preparation import STATISTICS, Preparation
from layermerge.errors import RecipeError
from layermerge.runs.data_recipe import DataRecipe, NoiseRecipe
from layermerge.tasks import Classification, Diffusion, Draw, NoiseSchedule, load_images


class Silent(nn.Module):
    def forward(self, x: Tensor, times: Tensor, labels: Tensor) -> Tensor:  # noqa: ARG002
        return torch.zeros_like(x)


def test_a_recipe_opens_the_task_that_python_would_make() -> None:
    recipe = DataRecipe(
        source="embedded", normalise="fashion-mnist", augment="crop_flip", pad=2, size=28, held_out=500,
        held_out_from=9000, seed=3, eval_batch_size=7,
    )  # fmt: skip
    preparation = Preparation(STATISTICS["fashion-mnist"], "crop_flip", pad=2, size=28)
    opened = recipe.open(nn.Identity())
    made = Classification(
        *load_images("embedded"), preparation=preparation, held_out=500, held_out_from=9000, seed=3, eval_batch_size=7
    )
    assert opened.describe() == made.describe()
    seen: list[int] = []

    def network(images: Tensor) -> Tensor:
        seen.append(len(images))
        return torch.zeros(len(images), 10)

    opened.evaluate(network)
    assert seen[0] == 7
    for ours, theirs in zip(opened.train_batches(Draw(0, 4000)), made.train_batches(Draw(0, 4000)), strict=True):
        assert all(torch.equal(one, other) for one, other in zip(ours, theirs, strict=True))


def test_a_diffusion_recipe_adds_noise_and_conditions() -> None:
    noise = NoiseRecipe(steps=30, last_beta=0.2)
    opened = DataRecipe(task="diffusion", source="embedded", noise=noise, condition="labels").open(Silent())
    assert isinstance(opened, Diffusion)
    assert opened.schedule.fingerprint() == NoiseSchedule.from_betas(30, last=0.2).fingerprint()
    noisy, times, labels = opened.example_inputs()
    assert noisy.shape == (2, 1, 28, 28)
    assert times.shape == labels.shape == (2,)


@pytest.mark.parametrize("changes", [{"condition": "labels"}, {"noise": NoiseRecipe(steps=9)}])
def test_noise_is_for_diffusion(changes: Any) -> None:
    """Said before the data is looked for."""
    with pytest.raises(RecipeError, match="data: noise and condition are for diffusion; set task: diffusion"):
        DataRecipe(source="npz:absent", **changes).open(nn.Identity())
