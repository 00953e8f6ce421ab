"""Trainer: the one inner loop that fine-tuning and importance share.

In: a network, a task and a recipe. Out: the network after one step more, as often as asked. Guarantees: a step depends
only on the trainer's state and its number: batches are addressed, and torch's random numbers are seeded, by step. So a
run that was interrupted anywhere continues bit for bit on CPU. Nothing is printed or written here.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from itertools import islice
from pathlib import Path

import torch
from torch import Tensor, nn

from layermerge.errors import TuningError
from layermerge.files import document_digest, weights_digest
from layermerge.tasks.base import Batch, Draw, Task, held_out_score
from layermerge.tracing.modes import evaluating, modes_restored
from layermerge.tuning.answers import KeptAnswers
from layermerge.tuning.distill import Teacher
from layermerge.tuning.distributed import ALONE, Group
from layermerge.tuning.ema import WeightAverage, copy_into
from layermerge.tuning.memory import memory_kept
from layermerge.tuning.optimise import Schedule, build_optimizer, clip_gradients
from layermerge.tuning.recipe import Recipe

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


class Trainer:
    """A training under way: network, optimizer, average of weights, and the number of steps taken."""

    def __init__(
        self,
        net: nn.Module,
        task: Task,
        recipe: Recipe,
        *,
        teacher: nn.Module | None = None,
        answers: Path | None = None,
        group: Group = ALONE,
    ) -> None:
        self.net, self.task, self.recipe, self.group = net, task, recipe, group
        self.teacher = None if task.imitates else Teacher.of(recipe, net, teacher)
        self.share = group.share_batches_of(recipe.batch_size)
        per_epoch = task.steps_per_epoch(recipe.batch_size, recipe.subset)
        if per_epoch < 1:
            raise TuningError("the task has no training batch; give it more data or lower batch_size")
        self.schedule = Schedule(recipe, per_epoch)
        self.total = self.schedule.total
        if recipe.channels_last:
            net.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.optimizer = build_optimizer(net, recipe)
        self.device: torch.device = self.optimizer.param_groups[0]["params"][0].device
        self.scaler = torch.amp.GradScaler(self.device.type, enabled=recipe.precision == "float16")
        self.network = group.wrap(net)
        self.average = WeightAverage(net, recipe.ema) if recipe.ema is not None else None
        self.step = 0
        if self.teacher is not None and answers is not None:
            self.teacher = replace(self.teacher, kept=self._kept_answers(answers, self.teacher.module))

    @property
    def epoch(self) -> float:
        return self.step / self.schedule.per_epoch

    @property
    def at_epoch_end(self) -> bool:
        return self.step % self.schedule.per_epoch == 0 or self.step == self.total

    @contextmanager
    def session(self) -> Iterator[None]:
        """Training mode, the teacher in eval mode; afterwards modes and the caller's random numbers are as before."""
        devices = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else ()  # type: ignore[no-untyped-call]
        taught = evaluating(self.teacher.module) if self.teacher else nullcontext()
        with modes_restored(self.net), taught, torch.random.fork_rng(devices), torch.enable_grad(), memory_kept():
            self.net.train()
            try:
                yield
            finally:
                self.optimizer.zero_grad()

    def run(self) -> Iterator[float]:
        """Trains to the end; gives each step's loss once the step is taken."""
        while self.step < self.total:
            epoch, first = divmod(self.step, self.schedule.per_epoch)
            end = min(self.total, (epoch + 1) * self.schedule.per_epoch)
            recipe = self.recipe
            draw = Draw(recipe.seed, recipe.batch_size, epoch, recipe.subset, first, self.share)
            for batch in islice(self.task.train_batches(draw), end - self.step):
                yield self._take_step(batch)
            if self.step < end:
                raise TuningError(
                    f"the task's epoch {epoch} ended {end - self.step} batches before steps_per_epoch "
                    f"({self.schedule.per_epoch}) says; correct the task"
                )

    def evaluate(self) -> float:
        """The task's score of the network as it would be returned now."""
        self.group.follow_leader(self.net)
        lent = self.average.applied_to(self.net) if self.average else nullcontext()
        with evaluating(self.net), torch.no_grad(), lent:
            return held_out_score(self.task, self.net)

    def finish(self) -> None:
        """Leaves the result in the network: the average where there is one, the same in all processes."""
        if self.average:
            copy_into(self.net, self.average.weights)
        self.group.follow_leader(self.net)

    def _take_step(self, batch: Batch) -> float:
        rate = self.schedule.rate(self.step)
        for settings in self.optimizer.param_groups:
            settings["lr"] = rate
        self._seed_torch()
        loss = self._loss(self._placed(batch))
        value = self.group.mean(loss.detach()).item()
        if not math.isfinite(value):
            raise TuningError(f"the loss is {value} at step {self.step} with lr {rate:.3g}; lower lr or set clip_norm")
        self.optimizer.zero_grad()
        self.scaler.scale(loss).backward()  # type: ignore[no-untyped-call]
        if self.recipe.clip_norm is not None:
            self.scaler.unscale_(self.optimizer)
            clip_gradients(self.optimizer, self.recipe.clip_norm)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.step += 1
        if self.average:
            self.average.update(self.net)
        return float(value)

    def _loss(self, batch: Batch) -> Tensor:
        precision = self.recipe.precision
        with torch.autocast(self.device.type, _DTYPES[precision], enabled=precision != "float32"):
            outputs = self.task.forward(self.network, batch)
            loss = self.task.loss(outputs, batch, label_smoothing=self.recipe.label_smoothing)
            return self.teacher.mix(loss, outputs, batch, self.task, self.step) if self.teacher else loss

    def _kept_answers(self, folder: Path, teacher: nn.Module) -> KeptAnswers:
        """Under a name of all that answers depend on."""
        drawn = self.recipe.model_dump(include={"seed", "batch_size", "subset", "precision", "channels_last"})
        stamp = document_digest([weights_digest(teacher), self.task.describe(), drawn, self.share])
        return KeptAnswers(folder, stamp, self.schedule.per_epoch, self.device)

    def _placed(self, batch: Batch) -> Batch:
        batch = tuple(tensor.to(self.device, non_blocking=True) for tensor in batch)
        if not self.recipe.channels_last:
            return batch
        return tuple(t.contiguous(memory_format=torch.channels_last) if t.ndim == 4 else t for t in batch)

    def _seed_torch(self) -> None:
        """Other random numbers for every step and process, and far from those of the next."""
        text = f"{self.recipe.seed} {self.step} {self.group.rank}"
        seed = int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little")
        if self.device.type == "cpu":
            torch.default_generator.manual_seed(seed)  # torch.manual_seed costs a millisecond for devices not there
        else:
            torch.manual_seed(seed)
