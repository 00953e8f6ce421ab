"""Recipe: how a network is trained, as validated data.

In: plain values, from code or a file. Out: a frozen record; whatever it says, the training loop can do. Two runs with the
same recipe, network and task give the same weights on the same machine, bit for bit on CPU.
"""

from __future__ import annotations

from typing import Literal

from pydantic import ConfigDict, Field, model_validator

from layermerge.files import UserRecord


class Distillation(UserRecord):
    """Knowledge distillation (Hinton): `weight` is that of the teacher's softened answers; the rest goes to the true labels."""

    temperature: float = Field(default=1.0, gt=0)
    weight: float = Field(default=0.5, ge=0, le=1)


class Recipe(UserRecord):
    """How to train: for `epochs` or for `steps`, whichever is given."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    epochs: float | None = Field(default=None, gt=0)
    steps: int | None = Field(default=None, ge=1)
    """Batches, as an alternative to epochs."""
    batch_size: int = Field(default=128, ge=1)
    subset: int | None = Field(default=None, ge=1)
    """Train on only this many examples."""
    optimizer: Literal["sgd", "adam", "adamw"] = "sgd"
    lr: float = Field(default=0.05, gt=0)
    momentum: float = Field(default=0.9, ge=0, lt=1)
    nesterov: bool = True
    weight_decay: float = Field(default=1e-5, ge=0)
    decay_norms: bool = False
    """Whether weight decay also acts on norms and biases, which are the parameters of one dimension."""
    warmup_epochs: float = Field(default=0.0, ge=0)
    """The learning rate rises from 0 for this long."""
    schedule: Literal["cosine", "constant"] = "cosine"
    """What the learning rate does after that: down to 0 along a cosine, or unchanged."""
    label_smoothing: float = Field(default=0.0, ge=0, lt=1)
    precision: Literal["float32", "bfloat16", "float16"] = "float32"
    """Of the forward pass; weights stay float32."""
    clip_norm: float | None = Field(default=None, gt=0)
    """Gradients are scaled down to this norm where they exceed it."""
    ema: float | None = Field(default=None, gt=0, lt=1)
    """Decay of the moving average of weights that is evaluated and returned."""
    distill: Distillation | None = None
    """Also learn from the original network's answers."""
    channels_last: bool = False
    """Memory layout while training: faster on CPUs, and what tensor cores need."""
    seed: int = Field(default=0, ge=0)
    checkpoint_steps: int = Field(default=200, ge=1)
    """Steps between checkpoints; one is written after every epoch too."""
    tensorboard: bool = False
    """Whether the recovery curve is also written as TensorBoard events."""

    @model_validator(mode="after")
    def _says_how_long(self) -> Recipe:
        if (self.epochs is None) == (self.steps is None):
            raise ValueError("give either epochs or steps")
        if self.nesterov and self.optimizer == "sgd" and self.momentum == 0:
            raise ValueError("nesterov needs momentum; set nesterov: false")
        return self
