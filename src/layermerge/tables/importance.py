"""Importance: how much each candidate changes what the network is for.

In: a `Trace`, a `Plan`, a `Task`. Out: a `Table` of D, durable and resumable: how much the score changes with this one
candidate applied, by an estimator (`estimators`). Every entry is measured on the same images and with one torch thread, so
where and with how many others does not matter. Candidates that change nothing need no run, nor do those that latency already
rules out (`ruling_out`).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from layermerge.arguments import Count, FilePath, checked
from layermerge.errors import TableError
from layermerge.planning.plan import Plan
from layermerge.tables.estimators.base import BASELINE, Estimator, Job
from layermerge.tables.estimators.calibrated import Calibrated
from layermerge.tables.estimators.trained import Trained
from layermerge.tables.executors import Executor, in_this_process
from layermerge.tables.latency import LatencyTable
from layermerge.tables.ruling_out import ruled_out, slower_than_untouched
from layermerge.tables.runner import fill_table
from layermerge.tables.shards import WHOLE_TABLE, Shard, part_of, require_part, shard_path, take_in_shards
from layermerge.tables.table import Row, Table
from layermerge.tasks.base import Task
from layermerge.tracing.trace import Trace
from layermerge.tuning.distributed import usable_device
from layermerge.tuning.recipe import Recipe


@checked(TableError)
def measure_importance(
    trace: Trace,
    plan: Plan,
    task: Task,
    *,
    latency: LatencyTable | None = None,
    steps: Count | None = None,
    recipe: Recipe | None = None,
    path: FilePath = "importance.jsonl",
    executor: Executor = in_this_process,
    device: str = "cpu",
    shard: Shard = WHOLE_TABLE,
) -> Table:
    """Measures a plan's importance table, or continues it where an earlier run stopped.

    By default candidates are fitted in closed form and compared with the original, without training or labels: costs a fit
    and two passes of what follows it per entry. With `steps` or `recipe` copies are trained, as in the paper: SGD for `steps`
    steps, or as the recipe says. With `latency`, candidates that it rules out are not run (`Rules.rule_out_slow`). `device`
    is where entries are measured: cpu, cuda, or auto. A shard (number from 0, count) is written next to the table, which
    takes it in later.
    """
    if steps is not None and recipe is not None:
        raise TableError("steps and recipe both say how long copies are trained; give one of them")
    short = Recipe(steps=steps, lr=0.01, batch_size=64) if steps is not None else recipe
    estimator: Estimator = Calibrated() if short is None else Trained(short)
    part = ImportancePart(path=Path(path), executor=executor, device=device, shard=shard)
    return measure_importance_by(estimator, trace, plan, task, latency, part)


@dataclass(frozen=True)
class ImportancePart:
    """Which rows of a table are measured, where, and into which file."""

    path: Path
    executor: Executor = in_this_process
    device: str = "cpu"
    shard: Shard = WHOLE_TABLE


def measure_importance_by(
    estimator: Estimator, trace: Trace, plan: Plan, task: Task, latency: LatencyTable | None, part: ImportancePart
) -> Table:
    """The same by any estimator."""
    plan.require_network(trace.structure)
    if latency is not None and latency.plan.network != plan.network:
        raise TableError(
            "the latency table belongs to another network than the plan; measure it: measure_latency(plan, ...)"
        )
    require_part(part.shard)
    usable_device(part.device)
    job = estimator.job(trace, plan, task, part.device)
    provenance, executor = job.provenance(), part.executor
    path = shard_path(part.path, part.shard)
    if part.shard == WHOLE_TABLE:
        take_in_shards(path, provenance)
    # Without it no other row means anything, so its failure is not one among others.
    table = fill_table(path, provenance, [BASELINE], job, title="baseline", executor=executor, keep_failures=False)
    base = table[BASELINE].value
    assert base is not None, "a row that did not fail has a value"
    scored = job.against(base)
    keys = [candidate.key for candidate in plan.entries if candidate.changes]
    reasons: dict[str, str] = {}
    if latency is not None and plan.rules.rule_out_slow:
        reasons = _reasons(scored, latency, path, executor)
    _require_same_latency(table, keys, reasons)
    if reasons:
        bounded = {key for key in reasons if latency is not None and latency.bounds(plan[key])}

        def left_out(key: str) -> Row:
            return Row(key=key, status="slower" if key in bounded else "ruled_out", reason=reasons[key])

        fill_table(path, provenance, list(reasons), left_out, title="ruling out")
    return fill_table(path, provenance, part_of(keys, part.shard), scored, title="importance", executor=executor)


def _reasons(job: Job, latency: LatencyTable, path: Path, executor: Executor) -> dict[str, str]:
    """Why entries need no run, by key."""
    if job.largest_gain <= 0:
        return slower_than_untouched(job.plan, latency)
    # Dropped layers first: what they cost decides whether a merge around them could pay.
    entries = [entry for entry in job.plan.entries if entry.changes]
    single = [entry.key for entry in entries if entry.spec is None and len(entry.layers) == 1]
    title = "importance of single layers"
    table = fill_table(path, job.provenance(), single, job, title=title, executor=executor)
    return ruled_out(job.plan, latency, table, largest_gain=job.largest_gain)


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
