"""Loop: fine-tunes a network, logs its recovery and survives interruption.

In: a network, a task and a recipe. Out: the same network, trained; with a directory also its recovery curve and a checkpoint.
Guarantees: called again after any interruption with the same arguments, it continues from the checkpoint and ends, on CPU,
with the same weights to the bit; called again after the end, it returns at once. One process at a time writes a directory.
Under torchrun all processes act as one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, nullcontext
from pathlib import Path
from typing import TypeVar

import torch
from torch import nn

from layermerge.arguments import FilePath, checked
from layermerge.errors import TuningError
from layermerge.files import exclusive
from layermerge.progress import Progress
from layermerge.tasks.base import Task
from layermerge.tuning.checkpoint import Checkpoint
from layermerge.tuning.distributed import join_processes
from layermerge.tuning.events import Events
from layermerge.tuning.recipe import Recipe
from layermerge.tuning.recovery import Curve, Epoch, write_recovery
from layermerge.tuning.trainer import Trainer

LOCK = ".finetune.lock"
"""In the directory, empty, and left there: the files next to it are replaced as a whole, so none of them can be locked."""
Module = TypeVar("Module", bound=nn.Module)
Keep = Callable[[Curve, Epoch | None], None]
"""Saves a checkpoint; with the epoch that has just ended, the recovery curve too."""


def train_steps(net: Module, task: Task, recipe: Recipe, teacher: nn.Module | None = None) -> Module:
    """Trains in place, in this process alone; evaluates, prints and writes nothing. Cheap enough for a few steps."""
    trainer = Trainer(net, task, recipe, teacher=teacher)
    with trainer.session():
        for _ in trainer.run():
            pass
    trainer.finish()
    return net


@checked(TuningError)
def finetune(
    net: Module,
    task: Task,
    recipe: Recipe,
    *,
    teacher: nn.Module | None = None,
    answers: FilePath | None = None,
    directory: FilePath | None = None,
    show_progress: bool = True,
    on_epoch: Callable[[Epoch], None] | None = None,
) -> Module:
    """Trains in place and returns the network, in the mode it came in, with averaged weights where the recipe asks.

    The recipe's distillation learns from `teacher`; `answers` is a folder where what it says is kept, so that other trainings
    on the same batches need not ask again. `directory` keeps a checkpoint and the recovery curve. To resume,
    call it with the weights that the first call was given; what was trained since is in the directory.
    `on_epoch` gets each epoch of the recovery curve, in the first process only.
    """
    kept = None if answers is None else Path(answers)
    trainer = Trainer(net, task, recipe, teacher=teacher, answers=kept, group=join_processes(_device(net)))
    leads = trainer.group.leads
    with (
        _opened(trainer, None if directory is None else Path(directory)) as (curve, keep),
        trainer.session(),
        Progress("fine-tuning", total=trainer.total, done=trainer.step, wanted=show_progress and leads) as progress,
    ):

        def close_epoch() -> None:
            lr = trainer.schedule.rate(trainer.step - 1) if trainer.step else 0.0
            epoch = curve.close_epoch(epoch=trainer.epoch, step=trainer.step, lr=lr, score=trainer.evaluate())
            keep(curve, epoch)
            progress.print(epoch.line(trainer.total))
            if on_epoch is not None and leads:
                on_epoch(epoch)

        if not curve.epochs:
            close_epoch()
        for loss in trainer.run():
            curve.add_loss(loss)
            progress.advance()
            if trainer.at_epoch_end:
                close_epoch()
            elif trainer.step % recipe.checkpoint_steps == 0:
                keep(curve, None)
    trainer.finish()
    return net


@contextmanager
def _opened(trainer: Trainer, directory: Path | None) -> Iterator[tuple[Curve, Keep]]:
    """Resumes what the directory holds, in every process; the first one holds it for itself and keeps what is to come."""
    wants_events = trainer.recipe.tensorboard
    if directory is None:
        if wants_events:
            raise TuningError("the recipe asks for tensorboard but there is no directory; pass directory=")
        yield Curve(), lambda *_: None
        return
    checkpoint, leads = Checkpoint(directory, trainer), trainer.group.leads
    with exclusive(directory / LOCK, f"fine-tuning directory '{directory}'") if leads else nullcontext():
        curve = checkpoint.resume()
        trainer.group.require_same_step(trainer.step, trainer.device)
        if not leads:
            yield curve, lambda *_: None
            return
        with closing(Events(directory)) if wants_events else nullcontext() as events:

            def keep(curve: Curve, ended: Epoch | None) -> None:
                checkpoint.write(curve)
                if ended is not None:
                    write_recovery(directory, curve.epochs)
                    if events is not None:
                        events.add(ended)

            if curve.epochs:
                write_recovery(directory, curve.epochs)  # a kill may have come between the checkpoint and these
            yield curve, keep


def _device(net: nn.Module) -> torch.device:
    """Where the network is; one without parameters is refused later, with a clearer reason than a missing device."""
    return next((parameter.device for parameter in net.parameters()), torch.device("cpu"))
