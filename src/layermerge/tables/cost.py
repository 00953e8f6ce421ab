"""Cost: what the tables behind a choice took."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import get_args

from layermerge.planning.plan import Plan
from layermerge.tables.latency import LatencyTable
from layermerge.tables.table import Status, Table


@dataclass(frozen=True)
class TableCost:
    """Entries on the menu, what became of them, workloads timed, and processor seconds."""

    entries: int = 0
    scored: int = 0
    ruled_out: int = 0
    failed: int = 0
    importance_seconds: float = 0.0
    workloads: int = 0
    latency_seconds: float = 0.0

    def __add__(self, other: TableCost) -> TableCost:
        return TableCost(*(getattr(self, field.name) + getattr(other, field.name) for field in fields(self)))

    def __str__(self) -> str:
        return (
            f"tables: {self.entries} entries, {self.workloads} workloads timed in {self.latency_seconds:.0f} s, "
            f"{self.scored} scored in {self.importance_seconds:.0f} s, {self.ruled_out} ruled out by latency, "
            f"{self.failed} failed"
        )


def table_cost(plan: Plan, scores: Table | None, latency: LatencyTable | None) -> TableCost:
    """For the candidates of this plan, which may be a part of those measured."""
    rows = [scores.rows[entry.key] for entry in plan.entries if entry.key in scores] if scores else []
    count = {status: sum(row.status == status for row in rows) for status in get_args(Status)}
    return TableCost(
        entries=len(plan.entries),
        scored=count["ok"],
        ruled_out=count["ruled_out"] + count["slower"],
        failed=count["failed"],
        importance_seconds=sum(row.seconds for row in rows),
        workloads=latency.distinct_workloads if latency else 0,
        latency_seconds=latency.seconds if latency else 0.0,
    )
