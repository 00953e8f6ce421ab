"""Fine-tunes in two processes with the environment that torchrun gives; each leaves its weights in the directory given.

They are forked, so that torch is imported once; a test of the command line starts torchrun itself.
"""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file

from layermerge.errors import TuningError
from layermerge.tuning.loop import finetune, train_steps
from layermerge.tuning.recipe import Recipe
from tuning.toy_task import ToyTask, network, recipe

PLAIN = recipe(clip_norm=0.5, distill={"weight": 0.3})
FULL = recipe(epochs=3, ema=0.9, optimizer="adamw", lr=0.01, channels_last=True, checkpoint_steps=2)


def save(place: Path, net: torch.nn.Module) -> None:
    save_file({name: value.contiguous().clone() for name, value in net.state_dict().items()}, place)


def plain(given: Recipe) -> torch.nn.Module:
    """No norms, no dropout, double precision: the same as in one process but for rounding."""
    teacher = network(norm=False, seed=8).double()
    return finetune(network(norm=False).double(), ToyTask(dtype=torch.float64), given, teacher=teacher)


def train(directory: Path, rank: str) -> None:
    save(directory / f"plain{rank}.safetensors", plain(PLAIN))
    finetune(network(), ToyTask(), FULL, directory=directory / "undisturbed", show_progress=False)
    try:
        finetune(network(), ToyTask(break_at=7), FULL, directory=directory / "resumed", show_progress=False)
    except KeyboardInterrupt:
        # Other initial weights in the second process must not matter: the first one's are taken.
        net = network(seed=3 + int(rank))
        net = finetune(net, ToyTask(), FULL, directory=directory / "resumed", show_progress=False)
    save(directory / f"full{rank}.safetensors", net)
    save(directory / f"alone{rank}.safetensors", train_steps(network(), ToyTask(), FULL))
    try:
        finetune(network(), ToyTask(), recipe(batch_size=15))
    except TuningError as error:
        (directory / f"refusal{rank}.txt").write_text(str(error))


def main() -> None:
    torch.set_num_threads(1)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        os.environ |= {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.getsockname()[1])}
    os.environ["RANK"] = "0" if (second := os.fork()) else "1"
    train(Path(sys.argv[1]), os.environ["RANK"])
    if second:
        sys.exit(os.waitstatus_to_exitcode(os.waitpid(second, 0)[1]))


if __name__ == "__main__":
    main()
