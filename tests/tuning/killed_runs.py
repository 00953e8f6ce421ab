"""Fine-tunes in child processes that are killed at random moments, then compares with an undisturbed run.

Children are forked, so that torch is imported once. Prints how many were killed and whether the end is the same.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from pathlib import Path

import torch
from torch import nn

from layermerge.tuning.loop import finetune
from tuning.toy_task import ToyTask, network, recipe, same

RECIPE = recipe(steps=60, optimizer="adamw", lr=0.01, channels_last=True, ema=0.9, checkpoint_steps=1)


def run(directory: Path | None) -> nn.Module:
    return finetune(network(), ToyTask(), RECIPE, directory=directory, show_progress=False)


def run_and_kill(directory: Path, checkpoints: int, delay: float) -> bool:
    """Kills a run some time after its so many-th checkpoint; says whether it was still running then."""
    child = os.fork()
    if child == 0:
        run(directory)
        os._exit(0)
    known = stamp(directory)
    while checkpoints:
        if os.waitpid(child, os.WNOHANG) != (0, 0):
            return False
        if stamp(directory) != known:
            known, checkpoints = stamp(directory), checkpoints - 1
        time.sleep(0.0003)
    time.sleep(delay)
    os.kill(child, signal.SIGKILL)
    return os.WIFSIGNALED(os.waitpid(child, 0)[1])


def stamp(directory: Path) -> int:
    path = directory / "checkpoint.safetensors"
    return path.stat().st_mtime_ns if path.exists() else 0


def main() -> None:
    torch.set_num_threads(1)
    directory, moments = Path(sys.argv[1]), random.Random()  # other moments every time
    undisturbed = run(None)
    killed = sum(run_and_kill(directory, moments.randint(1, 4), moments.uniform(0, 0.01)) for _ in range(6))
    print("killed", killed, "same", same(undisturbed, run(directory)))


if __name__ == "__main__":
    main()
