"""Optimise: how long a recipe trains, its learning rate at each step, and its optimizer.

In: a recipe and a network. Out: step counts, rates, a torch optimizer over the parameters that require gradients.
Guarantees: counts and rates are pure functions of the recipe, so that a resumed run follows the same schedule.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import nn
from torch.optim import SGD, Adam, AdamW, Optimizer

from layermerge.errors import TuningError
from layermerge.tuning.recipe import Recipe


@dataclass(frozen=True)
class Schedule:
    """The learning rate of every step: linear warm-up, then cosine to zero or constant."""

    recipe: Recipe
    per_epoch: int

    @property
    def total(self) -> int:
        if self.recipe.steps is not None:
            return self.recipe.steps
        assert self.recipe.epochs is not None
        return max(1, _steps(self.recipe.epochs, self.per_epoch))

    def rate(self, step: int) -> float:
        """The rate that step number `step`, counted from 0, is taken with."""
        peak = self.recipe.lr
        warmup = min(_steps(self.recipe.warmup_epochs, self.per_epoch), self.total)
        if step < warmup:
            return peak * (step + 1) / warmup
        if self.recipe.schedule == "constant":
            return peak
        return peak * (1 + math.cos(math.pi * (step - warmup) / (self.total - warmup))) / 2


def _steps(epochs: float, per_epoch: int) -> int:
    # Rounded first: 1.1 epochs of 10 steps are 11 steps, though the product is a little more in floating point.
    return math.ceil(round(epochs * per_epoch, 6))


def build_optimizer(net: nn.Module, recipe: Recipe) -> Optimizer:
    """The recipe's optimizer; frozen parameters are left out, norms and biases do not decay unless the recipe says so."""
    trainable = [parameter for parameter in net.parameters() if parameter.requires_grad]
    if not trainable:
        raise TuningError(
            f"{type(net).__name__} has no parameter that requires gradients; call requires_grad_(True) on what to train"
        )
    decaying = [parameter for parameter in trainable if recipe.decay_norms or parameter.ndim > 1]
    rest = [parameter for parameter in trainable if not recipe.decay_norms and parameter.ndim <= 1]
    groups = [
        {"params": parameters, "weight_decay": decay}
        for parameters, decay in ((decaying, recipe.weight_decay), (rest, 0.0))
        if parameters
    ]
    if recipe.optimizer == "sgd":
        return SGD(groups, lr=recipe.lr, momentum=recipe.momentum, nesterov=recipe.nesterov)
    kind: type[Adam] | type[AdamW] = Adam if recipe.optimizer == "adam" else AdamW
    return kind(groups, lr=recipe.lr)


def clip_gradients(optimizer: Optimizer, largest_norm: float) -> None:
    """Scales all gradients by one factor where their joint norm exceeds `largest_norm`."""
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    torch.nn.utils.clip_grad_norm_(parameters, largest_norm)
