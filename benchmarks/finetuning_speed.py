"""Fine-tuning: what a step takes, and what makes it faster on this machine.

    python benchmarks/finetuning_speed.py demo
    python benchmarks/finetuning_speed.py resnet20 --data cifar10:DIR --weights FILE
    python benchmarks/finetuning_speed.py mobilenetv2 --data cifar10:DIR --weights FILE

The rewritten network of a choice at random, trained from where fine-tuning starts, in every way in turn and several rounds of
it, so that a busy machine is busy for all. Ratios are medians over the rounds, against plain float32.
"""

from __future__ import annotations

import argparse
import copy
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from statistics import median
from unittest.mock import patch

import torch

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.estimators import RECIPES, drawn  # noqa: E402

from layermerge.planning.plan import plan  # noqa: E402
from layermerge.runs.opening import open_run  # noqa: E402
from layermerge.runs.recipe import read_recipe  # noqa: E402
from layermerge.surgery.rewrite import rewrite  # noqa: E402
from layermerge.tasks.base import Draw, Task  # noqa: E402
from layermerge.tuning.recipe import Distillation, Recipe  # noqa: E402
from layermerge.tuning.trainer import Trainer  # noqa: E402

STEPS = 5
GIVEN_BACK = "channels_last, memory given back"
KEPT = "channels_last, distilled, answers kept"
COMPILED = "channels_last, compiled"
WAYS: dict[str, dict[str, object]] = {
    "float32": {},
    "channels_last": {"channels_last": True},
    "bfloat16": {"precision": "bfloat16"},
    "bfloat16, channels_last": {"precision": "bfloat16", "channels_last": True},
    GIVEN_BACK: {"channels_last": True},
    "channels_last, distilled": {"channels_last": True, "distill": Distillation()},
    KEPT: {"channels_last": True, "distill": Distillation()},
}


def stepper(net: torch.nn.Module, task: Task, recipe: Recipe, name: str, answers: Path) -> Callable[[], float]:
    """Seconds a step, over a few; each time the same few, where answers are kept."""
    keep = name == KEPT
    recipe = recipe.model_copy(update={"subset": STEPS * recipe.batch_size}) if keep else recipe
    trainer = Trainer(copy.deepcopy(net), task, recipe, teacher=net, answers=answers if keep else None)
    if name == COMPILED:
        trainer.network.compile()
    usual = patch("layermerge.tuning.trainer.memory_kept", nullcontext)

    def run() -> float:
        if keep:
            trainer.step = 0
        with usual if name == GIVEN_BACK else nullcontext(), trainer.session():
            began = time.perf_counter()
            for _, _ in zip(range(STEPS), trainer.run(), strict=False):
                pass
            return (time.perf_counter() - began) / STEPS

    return run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("network", choices=["demo", "resnet20", "mobilenetv2"])
    parser.add_argument("--data")
    parser.add_argument("--weights")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--compile", action="store_true", help="also torch.compile, which takes a minute or more first")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    given = {"data.source": options.data, "weights": options.weights}
    changes = {key: value for key, value in given.items() if value is not None}
    context = open_run(read_recipe(RECIPES[options.network], changes), Path("runs/finetuning_speed") / options.network)
    menu = plan(context.trace, context.settings.rules)
    net = rewrite(context.trace, [menu[drawn(menu, 1)[0]]])
    ways = WAYS | ({COMPILED: {"channels_last": True}} if options.compile else {})
    base = Recipe(steps=10**6, batch_size=64, lr=0.001)
    answers = Path(tempfile.mkdtemp())
    steppers = {
        name: stepper(net, context.task, base.model_copy(update=how), name, answers) for name, how in ways.items()
    }
    for run in steppers.values():
        run()  # warm
    taken = [{name: run() for name, run in steppers.items()} for _ in range(options.rounds)]
    began = time.perf_counter()
    for _, _ in zip(range(STEPS), context.task.train_batches(Draw(0, 64)), strict=False):
        pass
    reading = (time.perf_counter() - began) / STEPS
    print("| network | training | milliseconds a step of 64 | times as fast as float32 |")
    print("|---|---|---|---|")
    for name in steppers:
        ratio = median(turn["float32"] / turn[name] for turn in taken)
        print(f"| {options.network} | {name} | {1e3 * median(turn[name] for turn in taken):.0f} | {ratio:.2f} |")
    print(f"| {options.network} | of which reading and augmenting images | {1e3 * reading:.0f} | |")


if __name__ == "__main__":
    main()
