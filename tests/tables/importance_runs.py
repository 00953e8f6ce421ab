"""A tiny network, task and recipe whose importance tests measure.

As a script: measures it in processes that are killed at random moments, then says whether the end is that of an undisturbed
run. They are forked, so that torch is imported once.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import time
import warnings
from functools import cache
from pathlib import Path

import torch
from torch import nn

import layermerge as lm
from layermerge.errors import ArtifactError
from layermerge.files import exclusive
from layermerge.planning.plan import Plan
from layermerge.tables.executors import LocalProcesses
from layermerge.tables.importance import measure_importance
from layermerge.tables.table import Table
from layermerge.tasks.base import Network
from layermerge.tracing.trace import Trace
from layermerge.tuning.recipe import Recipe
from processes import soon
from tuning.toy_task import CLASSES, ToyTask, recipe


class QuietTask(ToyTask):
    """The toy task, which evaluates as tasks do: in evaluation mode, without gradients, on part of the data."""

    def evaluate(self, network: Network) -> float:
        assert isinstance(network, nn.Module)
        before = network.training
        network.eval()
        with torch.no_grad():
            score = super().evaluate(network)
        network.train(before)
        return score


def net(seed: int = 3, dropout: float = 0.2) -> nn.Sequential:
    """Three convs that can merge, two of them that can go; dropout, so that random numbers matter."""
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(seed)
        return nn.Sequential(
            nn.Conv2d(3, 4, 3, padding=1, bias=False),
            nn.BatchNorm2d(4),
            nn.ReLU(),
            nn.Conv2d(4, 4, 3, padding=1),
            nn.ReLU(),
            nn.Dropout(dropout),
            nn.Conv2d(4, 4, 3, padding=1),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(2),
            nn.Flatten(),
            nn.Linear(16, CLASSES),
        ).eval()


EXAMPLE = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(1))


@cache
def traced() -> Trace:
    return lm.trace(net(), EXAMPLE)


@cache
def menu() -> Plan:
    return lm.plan(traced())


RECIPE: Recipe = recipe(steps=6, schedule="constant", lr=0.1)


def run(path: Path, workers: int = 0) -> Table:
    if not workers:
        return measure_importance(traced(), menu(), QuietTask(), recipe=RECIPE, path=path)
    return measure_importance(traced(), menu(), QuietTask(), recipe=RECIPE, path=path, executor=LocalProcesses(workers))


def run_and_kill(path: Path, workers: int, rows: int, delay: float) -> bool:
    """Kills a run some time after it wrote so many rows; says whether it was still running then."""
    known = _rows(path)
    child = os.fork()
    if child == 0:
        run(path, workers)
        os._exit(0)
    while _rows(path) < known + rows:
        if os.waitpid(child, os.WNOHANG) != (0, 0):
            return False
        time.sleep(0.001)
    time.sleep(delay)
    os.kill(child, signal.SIGKILL)
    killed = os.WIFSIGNALED(os.waitpid(child, 0)[1])
    assert soon(lambda: _free(path))  # its workers, which hold the lock too, end a moment later
    return killed


def _free(path: Path) -> bool:
    try:
        with exclusive(path, "it"):
            return True
    except ArtifactError:
        return False


def _rows(path: Path) -> int:
    return path.read_bytes().count(b"\n") if path.exists() else 0


def main() -> None:
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore", message="dropped a truncated last line")
    directory, moments = Path(sys.argv[1]), random.Random()  # other moments every time
    undisturbed = run(directory / "undisturbed.jsonl")
    path = directory / "killed.jsonl"
    killed = sum(
        run_and_kill(path, workers, 1, moments.uniform(0, 0.02))
        for workers in map(int, sys.argv[2])  # few rows are left at last
    )
    run(path, 2)
    read = Table.read(path)
    same = {key: row.value for key, row in read.rows.items()} == {k: row.value for k, row in undisturbed.rows.items()}
    print("killed", killed, "same", same, "statuses", *{row.status for row in read.rows.values()})


if __name__ == "__main__":
    main()
