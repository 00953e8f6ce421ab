"""Checkpoint: a training under way as one file that survives a kill at any moment.

In: a trainer and its curve. Out: `checkpoint.safetensors`: weights, their average and the optimizer's state as tensors, the
rest as JSON in the header. Guarantees: the file is whole or absent; what is resumed equals what was interrupted, bit for
bit; a checkpoint of another recipe, network, teacher or task is refused with the difference shown.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Literal

import torch
from pydantic import ConfigDict, ValidationError
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from layermerge.errors import TuningError, first_line
from layermerge.files import SCHEMA, Record, first_problem, require_schema, weights_digest, write_files
from layermerge.tasks.base import Scalar
from layermerge.tuning.ema import copy_into, weights_of
from layermerge.tuning.recipe import Recipe
from layermerge.tuning.recovery import Curve, Epoch
from layermerge.tuning.trainer import Trainer

CHECKPOINT = "checkpoint.safetensors"
_KEY = "layermerge"
# How often to save and what to log does not change the result, so a resumed run may do so otherwise.
_FREE = {"checkpoint_steps", "tensorboard"}


class Identity(Record):
    """What a run's result depends on. Networks are named by digests."""

    recipe: Recipe
    network: str
    """Of names, dtypes and shapes."""
    initial_weights: str
    teacher: str | None
    task: dict[str, Scalar]

    @classmethod
    def of(cls, trainer: Trainer) -> Identity:
        """To be taken before the first step."""
        teacher = trainer.teacher
        return cls(
            recipe=trainer.recipe,
            network=weights_digest(trainer.net, values=False),
            initial_weights=weights_digest(trainer.net),
            teacher=weights_digest(teacher.module) if teacher else None,
            task=trainer.task.describe(),
        )

    def differences(self, now: Identity) -> Iterator[str]:
        mine, theirs = self._facts(), now._facts()
        for name in mine | theirs:
            if mine.get(name) != theirs.get(name):
                yield f"{name}: {mine.get(name)} there, {theirs.get(name)} now"

    def _facts(self) -> dict[str, object]:
        task = {f"task {name}": value for name, value in self.task.items()}
        return self.recipe.model_dump(exclude=_FREE) | self.model_dump(exclude={"recipe", "task"}) | task


class TrainingState(Record):
    """The header of a checkpoint: everything but the tensors."""

    model_config = ConfigDict(extra="forbid", frozen=True, ser_json_inf_nan="constants")

    schema_version: Literal[2] = SCHEMA
    identity: Identity
    step: int
    epochs: tuple[Epoch, ...]
    loss_sum: float
    seconds: float
    scaler: dict[str, int | float]


class Checkpoint:
    """The checkpoint of one training, in its directory."""

    def __init__(self, directory: Path, trainer: Trainer) -> None:
        self.path = directory / CHECKPOINT
        self.trainer = trainer
        self.identity = Identity.of(trainer)

    def write(self, curve: Curve) -> None:
        trainer = self.trainer
        state = TrainingState(
            identity=self.identity,
            step=trainer.step,
            epochs=tuple(curve.epochs),
            loss_sum=curve.loss_sum,
            seconds=curve.seconds,
            scaler=trainer.scaler.state_dict(),
        )
        # Copies, because safetensors takes neither shared memory nor memory formats.
        tensors = {
            name: value.detach().to("cpu", copy=True, memory_format=torch.contiguous_format)
            for name, value in _tensors(trainer).items()
        }

        # Bytes, because save_file makes temporary files of its own, which a kill leaves behind under any name.
        content: bytes = save(tensors, metadata={_KEY: state.model_dump_json()})

        def write(path: Path) -> None:
            with path.open("wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())

        write_files({self.path: write})

    def resume(self) -> Curve:
        """Puts the trainer where the checkpoint left it, and returns its curve; from the start where there is none."""
        if not self.path.exists():
            return Curve()
        state, tensors = self._read()
        found = list(state.identity.differences(self.identity))
        if found:
            raise TuningError(
                f"'{self.path}' belongs to another run ({'; '.join(found)}); give another directory or remove it"
            )
        try:
            _restore(self.trainer, state, tensors)
        except (KeyError, RuntimeError) as error:
            raise TuningError(
                f"'{self.path}' lacks what it should hold ({first_line(error)}); remove it to start again"
            ) from error
        return Curve(state.epochs, state.loss_sum, state.seconds)

    def _read(self) -> tuple[TrainingState, dict[str, Tensor]]:
        try:
            with safe_open(self.path, framework="pt") as file:
                header = json.loads((file.metadata() or {})[_KEY])
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            require_schema(f"'{self.path}'", header["schema_version"])
            return TrainingState.model_validate(header, strict=False), tensors
        except (SafetensorError, OSError, KeyError, TypeError, ValueError, RecursionError) as error:
            reason = first_problem(error) if isinstance(error, ValidationError) else first_line(error)
            raise TuningError(
                f"'{self.path}' is truncated or not a checkpoint ({reason}); remove it to start again"
            ) from error


def _tensors(trainer: Trainer) -> dict[str, Tensor]:
    average = trainer.average.weights if trainer.average else {}
    named = {f"model.{name}": value for name, value in weights_of(trainer.net).items()}
    named |= {f"average.{name}": value for name, value in average.items()}
    for name, parameter in trainer.net.named_parameters():
        state = trainer.optimizer.state.get(parameter, {})
        named |= {f"optimizer.{key}.{name}": value for key, value in state.items() if isinstance(value, Tensor)}
    return named


def _restore(trainer: Trainer, state: TrainingState, tensors: Mapping[str, Tensor]) -> None:
    copy_into(trainer.net, _under("model.", tensors))
    if trainer.average:
        for name, value in _under("average.", tensors).items():
            trainer.average.weights[name].copy_(value)
    parameters = dict(trainer.net.named_parameters())
    for place, value in _under("optimizer.", tensors).items():
        key, name = place.split(".", 1)
        parameter = parameters[name]
        # The step count stays where optimizers keep it, on the CPU; the rest has its parameter's memory format.
        held = value if key == "step" else torch.empty_like(parameter, dtype=value.dtype).copy_(value)
        trainer.optimizer.state[parameter][key] = held.detach()
    trainer.scaler.load_state_dict(dict(state.scaler))
    trainer.step = state.step


def _under(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}
