"""Importance: how much each candidate changes what the network is for (paper eq. 4).

In: a `Trace`, a `Plan`, a `Task`. Out: a `Table` of D, durable and resumable: the score of a copy with this one candidate
applied, trained a few steps, less the score of the untouched network after the same steps. Every entry sees the same
batches, augmentation and noise, and is measured with one torch thread, so where and with how many others does not matter.
Candidates that change nothing need no run, nor do those that latency already rules out (`ruling_out`).
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from pathlib import Path

import torch

from layermerge.arguments import Count, FilePath, checked
from layermerge.errors import TableError
from layermerge.files import weights_digest
from layermerge.planning.plan import Plan
from layermerge.runtimes.torch_eager import torch_threads
from layermerge.surgery.rewrite import rewrite
from layermerge.tables.executors import Executor, in_this_process
from layermerge.tables.latency import LatencyTable
from layermerge.tables.ruling_out import ruled_out
from layermerge.tables.runner import fill_table
from layermerge.tables.shards import WHOLE_TABLE, Shard, part_of, require_part, shard_path, take_in_shards
from layermerge.tables.table import Row, Scalar, Table
from layermerge.tasks.base import Task, held_out_score
from layermerge.tracing.trace import Trace
from layermerge.tuning.distributed import usable_device
from layermerge.tuning.loop import train_steps
from layermerge.tuning.recipe import Recipe

BASELINE = "untouched network"


@dataclass(frozen=True)
class ImportanceJob:
    """Scores one entry; all that a worker needs, wherever it is."""

    trace: Trace
    plan: Plan
    task: Task
    recipe: Recipe
    baseline: float | None = None
    """Score of the untouched network; None while that itself is measured."""
    device: str = "cpu"

    def __call__(self, key: str) -> Row:
        started = time.perf_counter()
        chosen = [] if key == BASELINE else [self.plan[key]]
        module = rewrite(self.trace, chosen).to(usable_device(self.device))
        with torch_threads(1):  # sums depend on how many threads share them; one always gives the same
            train_steps(module, self.task, self.recipe)
            module.eval()
            with torch.no_grad():
                score = held_out_score(self.task, module)
        if not math.isfinite(score):
            raise ArithmeticError(f"the score is {score}")
        value = score if self.baseline is None else score - self.baseline
        seconds = round(time.perf_counter() - started, 2)
        return Row(key=key, value=value, samples=self.recipe.steps or 0, seconds=seconds)


@checked(TableError)
def measure_importance(
    trace: Trace,
    plan: Plan,
    task: Task,
    *,
    latency: LatencyTable | None = None,
    steps: Count = 100,
    recipe: Recipe | None = None,
    path: FilePath = "importance.jsonl",
    executor: Executor = in_this_process,
    device: str = "cpu",
    shard: Shard = WHOLE_TABLE,
) -> Table:
    """Measures a plan's importance table, or goes on with it where an earlier run stopped.

    `recipe` says how each copy is trained; without one, SGD for `steps` steps. With `latency`, candidates that it rules out
    are not run (`Rules.rule_out_slow`). `device` is where entries are trained: cpu, cuda, or auto. A shard (number from 0,
    count) is written beside the table, which takes it in later. Costs one short training and one evaluation an entry.
    """
    plan.require_network(trace.structure)
    if latency is not None and latency.plan.network != plan.network:
        raise TableError(
            "the latency table is of another network than the plan; measure it: measure_latency(plan, ...)"
        )
    require_part(shard)
    usable_device(device)
    recipe = recipe or Recipe(steps=steps, lr=0.01, batch_size=64)
    if recipe.distill is not None or recipe.ema is not None:
        raise TableError("importance is measured without distillation and without a moving average; leave them out")
    job = ImportanceJob(trace, plan, task, recipe, device=device)
    provenance = _provenance(job)
    path = shard_path(Path(path), shard)
    if shard == WHOLE_TABLE:
        take_in_shards(path, provenance)
    # Without it no other row means anything, so its failure is not one among others.
    table = fill_table(path, provenance, [BASELINE], job, title="baseline", executor=executor, keep_failures=False)
    base = table[BASELINE].value
    assert base is not None, "a row that did not fail has a value"
    scored = ImportanceJob(trace, plan, task, recipe, base, device)
    keys = [candidate.key for candidate in plan.entries if candidate.changes]
    reasons: dict[str, str] = {}
    if latency is not None and plan.rules.rule_out_slow:
        # Dropped layers first: what they cost decides whether a merge around them could pay.
        single = [key for key in keys if plan[key].spec is None and len(plan[key].layers) == 1]
        table = fill_table(path, provenance, single, scored, title="importance of single layers", executor=executor)
        reasons = ruled_out(plan, latency, table, largest_gain=task.ceiling - base)
    _require_same_latency(table, keys, reasons)
    if reasons:
        bounded = {key for key in reasons if latency is not None and latency.bounds(plan[key])}

        def left_out(key: str) -> Row:
            return Row(key=key, status="slower" if key in bounded else "ruled_out", reason=reasons[key])

        fill_table(path, provenance, list(reasons), left_out, title="ruling out")
    return fill_table(path, provenance, part_of(keys, shard), scored, title="importance", executor=executor)


def _require_same_latency(table: Table, keys: list[str], reasons: dict[str, str]) -> None:
    """What another latency table ruled out would be off the menu here without a reason.

    What it only bounded may be measured by now, for another objective; the solver says that it has no score.
    """
    for key in keys:
        if key in table and table[key].status == "ruled_out" and key not in reasons:
            raise TableError(
                f"{table.name} leaves out '{key}', which the latency given now does not rule out; "
                "it was measured with another latency table: give another path"
            )


def _provenance(job: ImportanceJob) -> dict[str, Scalar]:
    """What the rows depend on: the network and its weights, the data, how copies are trained."""
    provenance: dict[str, Scalar] = {"kind": "importance", "network": job.plan.network}
    provenance["weights"] = weights_digest(job.trace.module)
    provenance |= {f"task.{name}": value for name, value in job.task.describe().items()}
    if job.device != "cpu":
        provenance["device"] = job.device
    # Checkpoints are for long trainings; how often they are written changes nothing.
    recipe = job.recipe.model_dump(exclude={"checkpoint_steps", "distill"}, exclude_defaults=True)
    return provenance | {f"recipe.{name}": value for name, value in sorted(recipe.items())}
