"""How many importance entries a minute: one worker process, two, and Ray on two CPUs, in one run on the same entries.

Run: python benchmarks/worker_scaling.py [--network NAME] [--entries 16] [--steps 10] [--without-ray] [--dir DIR]
Images and weights are random: what is shown is how measuring scales, not accuracy. Ray's own start is not counted, but what
every table pays is: forking, or sending the job to Ray, each of whose processes then traces the network once more. With few
or short entries that is most of Ray's time. The values of all ways are compared: they must be the same to the last bit.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from pathlib import Path

import numpy as np
import torch

import layermerge as lm
from layermerge.models import load_model
from layermerge.planning.plan import Plan
from layermerge.tables.estimators.base import BASELINE
from layermerge.tables.estimators.trained import TrainedJob
from layermerge.tables.executors import Executor, LocalProcesses
from layermerge.tables.ray_cluster import RayCluster
from layermerge.tables.runner import fill_table
from layermerge.tables.table import Table
from layermerge.tasks import Classification
from layermerge.tuning.recipe import Recipe

SIDE, CLASSES = 32, 10


def task(count: int = 512) -> Classification:
    generator = np.random.default_rng(0)
    images = generator.integers(0, 256, (count, SIDE, SIDE, 3), dtype=np.uint8)
    labels = np.arange(count) % CLASSES
    return Classification((images, labels), (images[:20], labels[:20]), held_out=128)


def job(network: str, steps: int) -> TrainedJob:
    loaded = load_model(network, input_shape=(3, SIDE, SIDE))
    trace = lm.trace(loaded.module.eval(), loaded.example_inputs)
    return TrainedJob(trace, lm.plan(trace), task(), baseline=0.0, recipe=Recipe(steps=steps, lr=0.01, batch_size=32))


def spread_out(plan: Plan, count: int) -> list[str]:
    """Entries from all over the network, as late ones cost less than early ones."""
    keys = [entry.key for entry in plan.entries if not entry.untouched]
    return [keys[place * len(keys) // count] for place in range(min(count, len(keys)))]


def measured(work: TrainedJob, keys: list[str], executor: Executor, path: Path) -> tuple[Table, float]:
    """The table, and how long its entries took. What is done once a machine, such as starting processes, is done before."""
    fill_table(path, {}, [BASELINE], work, executor=executor)
    started = time.perf_counter()
    table = fill_table(path, {}, keys, work, executor=executor)
    return table, time.perf_counter() - started


def ray_on_two_cpus() -> RayCluster:
    os.environ.setdefault("RAY_AUTH_MODE", "disabled")  # a cluster of this process alone
    import ray

    ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False, configure_logging=False)
    return RayCluster()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--network", default="timm:resnet18")
    parser.add_argument("--entries", type=int, default=16)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--without-ray", action="store_true")
    parser.add_argument("--dir", type=Path, help="where tables go; they must not be there yet")
    options = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    work = job(options.network, options.steps)
    keys = spread_out(work.plan, options.entries)
    ways: dict[str, Executor] = {"1 process": LocalProcesses(1), "2 processes": LocalProcesses(2)}
    if not options.without_ray:
        ways["Ray, 2 CPUs"] = ray_on_two_cpus()
    print(f"{options.network} at {SIDE}x{SIDE}: {len(keys)} entries of {options.steps} steps\n")
    print("| workers | entries a minute | against 1 process | same values |")
    print("|---|---|---|---|", flush=True)
    first: tuple[Table, float] | None = None
    with tempfile.TemporaryDirectory() as scratch:
        for number, (name, executor) in enumerate(ways.items()):
            path = (options.dir or Path(scratch)) / f"{number}.jsonl"
            table, seconds = measured(work, keys, executor, path)
            first = first or (table, seconds)
            same = all(table[key].value is not None and table[key].value == first[0][key].value for key in keys)
            speed = 60 * len(keys) / seconds
            print(f"| {name} | {speed:.1f} | {first[1] / seconds:.2f}x | {'yes' if same else 'NO'} |", flush=True)


if __name__ == "__main__":
    main()
