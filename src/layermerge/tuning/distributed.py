"""Distributed: training in many processes that act as one.

In: the processes that torchrun started, or a process group of the caller. Out: a `Group` that wraps a network so that
gradients are averaged over processes. Guarantees: with equal shares of a batch this is the gradient of the whole batch's
mean loss (norms in training mode see their share only); all processes hold the same parameters after every step.
"""

from __future__ import annotations

import atexit
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from layermerge.errors import TuningError, first_line
from layermerge.tuning.ema import weights_of

# Others wait while the first process measures tables, which may take hours.
_PATIENCE = timedelta(days=2)


@dataclass(frozen=True)
class Group:
    """This process's place among those that train together; alone unless told otherwise."""

    rank: int = 0
    size: int = 1

    @property
    def leads(self) -> bool:
        """Whether this process writes and prints for all."""
        return self.rank == 0

    def share_batches_of(self, batch_size: int) -> tuple[int, int]:
        if batch_size % self.size:
            raise TuningError(
                f"batch_size {batch_size} cannot be split evenly over {self.size} processes; "
                f"make it a multiple of {self.size}"
            )
        return self.rank, self.size

    def wrap(self, net: nn.Module) -> nn.Module:
        """The network as training calls it. All processes continue with the first one's weights."""
        return net if self.size == 1 else DistributedDataParallel(net)

    def mean(self, value: Tensor) -> Tensor:
        """The mean over processes; every process gets the same bits."""
        if self.size == 1:
            return value
        total = value.clone()
        dist.all_reduce(total)
        return total / self.size

    def require_same_step(self, step: int, device: torch.device) -> None:
        """Stops all processes where they do not agree, instead of leaving them to wait for each other."""
        if self.size > 1:
            largest = torch.tensor([step, -step], device=device)
            dist.all_reduce(largest, dist.ReduceOp.MAX)
            last, first = largest[0].item(), -largest[1].item()
            if first != last:
                raise TuningError(
                    f"the processes found different checkpoints (of steps {first} to {last}); share the directory"
                )

    def follow_leader(self, net: nn.Module) -> None:
        """Gives all processes the first one's weights; norm statistics differ after a step, since shares do."""
        if self.size > 1:
            for value in weights_of(net).values():
                # Collectives need dense memory of one layout, whatever the parameter's memory format.
                dense = value.detach().contiguous()
                dist.broadcast(dense, src=0)
                value.detach().copy_(dense)


ALONE = Group()


def usable_device(name: str) -> torch.device:
    """The device that a process trains on: `auto` is a GPU where there is one; torchrun's processes take one GPU each."""
    kind = "cuda" if name == "auto" and torch.cuda.is_available() else "cpu" if name == "auto" else name
    if kind.startswith("cuda") and not torch.cuda.is_available():
        raise TuningError(f"device '{name}' is not there: torch finds no GPU; set device: cpu")
    if kind == "cuda" and "LOCAL_RANK" in os.environ:
        kind = f"cuda:{os.environ['LOCAL_RANK']}"
    try:
        return torch.device(kind)
    except RuntimeError:
        raise TuningError(f"there is no device '{name}'; write cpu, cuda or auto") from None


@contextmanager
def leader_first(device: torch.device) -> Iterator[Group]:
    """What the first process leaves in files is there when the others come to it."""
    group = join_processes(device)
    if group.size > 1 and not group.leads:
        dist.barrier()
    yield group
    if group.size > 1 and group.leads:
        dist.barrier()


def join_processes(device: torch.device) -> Group:
    """The group that this process trains in: the caller's, or that of torchrun, which is then set up for the process."""
    if not dist.is_available():
        return ALONE
    if not dist.is_initialized():
        if int(os.environ.get("WORLD_SIZE", "1")) <= 1:
            return ALONE
        try:
            if device.type == "cuda":
                torch.cuda.set_device(device)
            dist.init_process_group("nccl" if device.type == "cuda" else "gloo", timeout=_PATIENCE)
        except (ValueError, RuntimeError) as error:
            raise TuningError(
                f"WORLD_SIZE is {os.environ['WORLD_SIZE']} but the processes cannot meet ({first_line(error)}); "
                "start with torchrun"
            ) from error
        atexit.register(_leave)
    return Group(dist.get_rank(), dist.get_world_size())


def _leave() -> None:
    if dist.is_initialized():
        dist.destroy_process_group()
