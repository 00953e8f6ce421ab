"""The part `data` of a recipe: what a network is for, on which images, how they are prepared; `open` makes the task of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from pydantic import Field, field_validator, model_validator
from torch import Tensor

from layermerge.data.preparation import STATISTICS, Augment, ImageSize, Interpolation, Preparation, Statistics, size_of
from layermerge.data.readers import load_images
from layermerge.data.sets import MOST_WORKERS, Loading
from layermerge.errors import RecipeError
from layermerge.files import STRICT, UserRecord
from layermerge.tasks.base import Task
from layermerge.tasks.classification import Classification
from layermerge.tasks.diffusion import Diffusion
from layermerge.tasks.imitation import Imitation
from layermerge.tasks.noise import Betas, NoiseSchedule, Prediction
from layermerge.tracing.file_interface import file_interface_of


class NoiseRecipe(UserRecord):
    """The noise of a diffusion model: a diffusers scheduler, or the betas of one."""

    model_config = STRICT

    scheduler: Path | None = None
    """A directory with scheduler_config.json; the other keys are then not needed."""
    steps: int = Field(default=1000, ge=2, le=1_000_000)
    first_beta: float = Field(default=1e-4, gt=0, lt=1)
    last_beta: float = Field(default=0.02, gt=0, lt=1)
    betas: Betas = "linear"
    prediction: Prediction = "epsilon"

    def schedule(self) -> NoiseSchedule:
        if self.scheduler is not None:
            return NoiseSchedule.read(self.scheduler)
        return NoiseSchedule.from_betas(self.steps, self.first_beta, self.last_beta, self.betas, self.prediction)


_UNLABELLED = "images:"
"""Begins a source of images alone, in a folder."""


class DataRecipe(UserRecord):
    """What the network is for, on which images, how they are prepared, and which of them are held out from training."""

    model_config = STRICT

    task: Literal["classification", "diffusion", "imitation"] = "classification"
    source: str
    """imagefolder:PATH, cifar10:PATH, fashion-mnist:PATH, npz:PATH or embedded; without labels images:PATH, for imitation."""
    noise: NoiseRecipe = NoiseRecipe()
    condition: Literal["none", "labels"] = "none"
    """What else a diffusion model takes: nothing, or the class of each image."""
    normalise: str | Statistics | None = None
    """imagenet, cifar10, fashion-mnist, none, bytes (pixels from 0 to 255), or mean and std; by default what the model says of
    itself, or else none."""
    augment: Augment = "none"
    pad: int = Field(default=4, ge=0, le=1024)
    size: int | None = Field(default=None, ge=1, le=8192)
    interpolation: Interpolation | None = None
    crop_pct: float | None = Field(default=None, gt=0, le=1)
    held_out: float | int = 0.1
    held_out_from: int | None = None
    seed: int = Field(default=0, ge=0)
    workers: int = Field(default=0, ge=0, le=MOST_WORKERS)
    eval_batch_size: int = Field(default=250, ge=1, le=65_536)

    @model_validator(mode="before")
    @classmethod
    def _images_alone(cls, value: Any) -> Any:
        """`images: DIR` says source and task, and overrides them, as flags override the recipe; `images:DIR` the task."""
        if not isinstance(value, dict):
            return value
        if "images" in value:
            others = {key: stated for key, stated in value.items() if key != "images"}
            return others | {"task": "imitation", "source": f"{_UNLABELLED}{value['images']}"}
        unlabelled = str(value.get("source")).startswith(_UNLABELLED)
        return {"task": "imitation", **value} if unlabelled else value

    @staticmethod
    def of_images(folder: str | Path) -> DataRecipe:
        return DataRecipe(task="imitation", source=f"{_UNLABELLED}{folder}")

    @property
    def reads_files(self) -> bool:
        """Whether images come from files, of any size."""
        return self.source.startswith(("imagefolder:", _UNLABELLED))

    @field_validator("normalise")
    @classmethod
    def _known_statistics(cls, value: str | Statistics | None) -> str | Statistics | None:
        if isinstance(value, str) and value not in STATISTICS:
            raise ValueError(f"unknown statistics '{value[:40]}'; write {', '.join(STATISTICS)}, or mean and std")
        return value

    def open(self, model: Any, size: ImageSize | None = None) -> Task:
        """The task. What the recipe leaves open follows the model's own data configuration, and before that the given size."""
        if self.task != "diffusion" and (self.condition != "none" or self.noise != NoiseRecipe()):
            raise RecipeError("data: noise and condition are for diffusion; set task: diffusion, or leave them out")
        unlabelled = self.source.startswith(_UNLABELLED)
        if unlabelled and self.task != "imitation":
            raise RecipeError(f"data: {self.source} has no labels, which {self.task} needs; set task: imitation")
        loading = self.model_dump(include={*Loading.__annotations__}) | {"preparation": self._preparation(model, size)}
        if self.task == "imitation" and "eval_batch_size" not in self.model_fields_set:
            del loading["eval_batch_size"]
        if unlabelled:
            return Imitation(self.source.removeprefix(_UNLABELLED), teacher=model, **loading)
        train, test = load_images(self.source)
        if self.task == "imitation":
            return Imitation(train, test, teacher=model, **loading)
        if self.task == "classification":
            return Classification(train, test, **loading)
        conditions = _labels_alone if self.condition == "labels" else None
        return Diffusion(train, test, model, schedule=self.noise.schedule(), conditions=conditions, **loading)

    def _preparation(self, model: Any, size: ImageSize | None) -> Preparation:
        """Models of timm carry the configuration of their data."""
        says_itself = getattr(model, "pretrained_cfg", None) or getattr(model, "default_cfg", None)
        own = Preparation.for_timm(model) if says_itself and self.reads_files else Preparation()
        normalise = self.normalise
        return Preparation(
            normalise=STATISTICS[normalise] if isinstance(normalise, str) else normalise or own.normalise,
            augment=self.augment,
            pad=self.pad,
            size=self.size or ((size or _size_in_file(model)) if self.reads_files else None) or own.size,
            interpolation=self.interpolation or own.interpolation,
            crop_pct=self.crop_pct or own.crop_pct,
        )


def _size_in_file(model: Any) -> ImageSize | None:
    """Height and width that a model's ONNX file says, if it came from one."""
    known = file_interface_of(model)
    shape = known.inputs[0].image_shape if known is not None else None
    return size_of(shape) if shape is not None and len(shape) == 3 else None


def _labels_alone(labels: Tensor) -> tuple[Tensor]:
    return (labels,)
