"""Loop: fine-tunes a network, logs its recovery and survives interruption.

In: a network, a task and a recipe. Out: the same network, trained; with a directory also its recovery curve and a checkpoint.
Guarantees: called again after any interruption with the same arguments, it goes on where the checkpoint is and ends, on CPU,
with the same bits; called again after the end, it returns at once. Under torchrun all processes act as one.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import torch
from torch import nn

from layermerge.errors import TuningError
from layermerge.tasks.base import Task
from layermerge.tuning.checkpoint import CHECKPOINT, Checkpoint
from layermerge.tuning.display import Display
from layermerge.tuning.distributed import join_processes
from layermerge.tuning.events import Events
from layermerge.tuning.recipe import Recipe
from layermerge.tuning.recovery import CSV, JSONL, Curve, Epoch, write_recovery
from layermerge.tuning.trainer import Trainer

Module = TypeVar("Module", bound=nn.Module)


def train_steps(net: Module, task: Task, recipe: Recipe, teacher: nn.Module | None = None) -> Module:
    """Trains in place, in this process alone; evaluates, prints and writes nothing. Cheap enough for a few steps."""
    trainer = Trainer(net, task, recipe, teacher=teacher)
    with trainer.session():
        for _ in trainer.run():
            pass
    trainer.finish()
    return net


def finetune(
    net: Module,
    task: Task,
    recipe: Recipe,
    *,
    teacher: nn.Module | None = None,
    directory: str | Path | None = None,
    show_progress: bool = True,
    on_epoch: Callable[[Epoch], None] | None = None,
) -> Module:
    """Trains in place and returns the network, in the mode it came in, with averaged weights where the recipe asks.

    `teacher` is whom the recipe's distillation listens to. `directory` keeps a checkpoint and the recovery curve. To resume,
    call it with the weights that the first call was given; what was trained since is in the directory.
    `on_epoch` gets each row of the recovery curve, in the first process only.
    """
    trainer = Trainer(net, task, recipe, teacher=teacher, group=join_processes(_device(net)))
    curve, kept = _open(trainer, None if directory is None else Path(directory))
    leads = trainer.group.leads
    show = Display(wanted=show_progress and leads, done=trainer.step, total=trainer.total)

    def close_epoch() -> None:
        lr = trainer.schedule.rate(trainer.step - 1) if trainer.step else 0.0
        row = curve.close_epoch(epoch=trainer.epoch, step=trainer.step, lr=lr, score=trainer.evaluate())
        if kept:
            kept.save_epoch(curve)
        show.row(row)
        if on_epoch is not None and leads:
            on_epoch(row)

    with trainer.session(), kept or nullcontext(), show:
        if not curve.rows:
            close_epoch()
        for loss in trainer.run():
            curve.add_loss(loss)
            show.step()
            if trainer.at_epoch_end:
                close_epoch()
            elif kept and trainer.step % recipe.checkpoint_steps == 0:
                kept.checkpoint.write(curve)
    trainer.finish()
    return net


@dataclass(frozen=True)
class _Kept(AbstractContextManager["_Kept"]):
    """What a run keeps in its directory."""

    directory: Path
    checkpoint: Checkpoint
    events: Events | None

    def save_epoch(self, curve: Curve) -> None:
        self.checkpoint.write(curve)
        write_recovery(self.directory, curve.rows)
        if self.events:
            self.events.add(curve.rows[-1])

    def __exit__(self, *_: object) -> None:
        if self.events:
            self.events.close()


def _open(trainer: Trainer, directory: Path | None) -> tuple[Curve, _Kept | None]:
    """Resumes what the directory holds, in every process; the first one also keeps what is to come."""
    wants_events = trainer.recipe.tensorboard
    if directory is None:
        if wants_events:
            raise TuningError("the recipe asks for tensorboard but there is no directory; pass directory=")
        return Curve(), None
    checkpoint = Checkpoint(directory, trainer)
    curve = checkpoint.resume()
    trainer.group.require_same_step(trainer.step, trainer.device)
    if not trainer.group.leads:
        return curve, None
    kept = _Kept(directory, checkpoint, Events(directory) if wants_events else None)
    for name in (CHECKPOINT, JSONL, CSV):
        for leftover in directory.glob(f".{name}.*"):  # of a kill in the midst of writing
            leftover.unlink(missing_ok=True)
    if curve.rows:
        write_recovery(directory, curve.rows)  # a kill may have come between the checkpoint and these
    return curve, kept


def _device(net: nn.Module) -> torch.device:
    """Where the network is; one without parameters is refused later, with a clearer reason than a missing device."""
    return next((parameter.device for parameter in net.parameters()), torch.device("cpu"))
