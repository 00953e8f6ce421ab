"""Results: what a run chose and what came of it, as records that files hold and reports read."""

from __future__ import annotations

import dataclasses
from typing import Literal

from layermerge.files import SCHEMA, Record
from layermerge.planning.plan import Plan
from layermerge.solving.meet_budget import MetBudget, Round
from layermerge.tables.importance import TableCost
from layermerge.tables.latency import LatencyTable
from layermerge.tasks.base import Score, ScoreKind


class ScoreRecord(Record):
    """A figure on the test data, with its interval."""

    name: str
    value: float
    count: int
    low: float | None = None
    high: float | None = None
    kind: ScoreKind = "share"

    @staticmethod
    def of(score: Score) -> ScoreRecord:
        return ScoreRecord(**dataclasses.asdict(score))

    @property
    def title(self) -> str:
        """The figure's name, with its unit."""
        return f"{self.name} (%)" if self.kind == "share" else self.name

    @property
    def scale(self) -> float:
        """From stored values to those that people read."""
        return 100.0 if self.kind == "share" else 1.0

    def __str__(self) -> str:
        return str(Score(**dict(self)))


class CostRecord(Record):
    """What the tables behind a choice cost: entries, those run for importance, distinct workloads timed, processor seconds."""

    entries: int = 0
    scored: int = 0
    ruled_out: int = 0
    failed: int = 0
    importance_seconds: float = 0.0
    workloads: int = 0
    latency_seconds: float = 0.0

    @staticmethod
    def of(importance: TableCost, latency: LatencyTable) -> CostRecord:
        return CostRecord(
            entries=importance.entries,
            scored=importance.measured,
            ruled_out=importance.ruled_out,
            failed=importance.failed,
            importance_seconds=importance.seconds,
            workloads=latency.distinct_workloads,
            latency_seconds=latency.seconds,
        )

    def __str__(self) -> str:
        return (
            f"tables: {self.entries} entries, {self.workloads} workloads timed in {self.latency_seconds:.0f} s, "
            f"{self.scored} scored in {self.importance_seconds:.0f} s, {self.ruled_out} spared because latency rules them out, "
            f"{self.failed} failed"
        )

    def __add__(self, other: CostRecord) -> CostRecord:
        return CostRecord(**{name: value + getattr(other, name) for name, value in dict(self).items()})


NO_COST = CostRecord()


class RoundRecord(Record):
    """One turn of the closed loop."""

    predicted_ms: float
    measured_ms: float


class ChoiceRecord(Record):
    """choice.json: the candidates whose merged network keeps a budget, and how that was found."""

    schema_version: Literal[1] = SCHEMA
    stamp: str
    budget: str
    budget_ms: float
    original_ms: float
    predicted_ms: float
    measured_ms: float
    importance: float
    rounds: tuple[RoundRecord, ...]
    candidates: tuple[str, ...]
    cost: CostRecord


def choice_record(
    met: MetBudget, stamp: str, budget: str, importance: TableCost, latency: LatencyTable
) -> ChoiceRecord:
    return ChoiceRecord(
        stamp=stamp,
        budget=budget,
        budget_ms=met.budget_ms,
        original_ms=latency.original_ms,
        predicted_ms=met.latency_ms,
        measured_ms=met.measured_ms or 0.0,
        importance=met.importance,
        rounds=tuple(RoundRecord(predicted_ms=turn.predicted_ms, measured_ms=turn.measured_ms) for turn in met.rounds),
        candidates=tuple(candidate.key for candidate in met.candidates),
        cost=CostRecord.of(importance, latency),
    )


def choice_of(record: ChoiceRecord, menu: Plan) -> MetBudget:
    rounds = tuple(Round(turn.predicted_ms, turn.measured_ms) for turn in record.rounds)
    candidates = tuple(menu[key] for key in record.candidates)
    return MetBudget(candidates, record.predicted_ms, record.importance, record.measured_ms, record.budget_ms, rounds)


class Report(Record):
    """result.json: the figures of one compressed network, all measured on what was exported."""

    schema_version: Literal[1] = SCHEMA
    stamp: str
    """Names what the figures depend on: weights, recipe, data."""
    method: str
    budget: str
    label: str
    runtime: str
    threads: int
    batch_size: int
    original_ms: float
    """Latency of the network as it came, norms folded, in the table's measurement."""
    budget_ms: float
    predicted_ms: float | None = None
    """The sum of the table's rows; None for methods that have no table."""
    chosen_ms: float | None = None
    """Measured when it was chosen, before any training."""
    measured_ms: float
    """Of the exported file, beside the original, on the scale of original_ms."""
    original_score: ScoreRecord
    score: ScoreRecord
    """On the test data, of what is served."""
    held_out: float
    """The task's score on held-out training data."""
    convs_before: int
    convs_after: int
    epochs: float | None
    """Of fine-tuning; None where the recipe counts steps."""
    cost: CostRecord = NO_COST

    @property
    def speed_up(self) -> float:
        """How many times as fast as the original."""
        return self.original_ms / self.measured_ms

    def __str__(self) -> str:
        predicted = "" if self.predicted_ms is None else f", predicted {self.predicted_ms:.3f}"
        return (
            f"{self.method} at {self.budget}: {self.original_ms:.3f} -> {self.measured_ms:.3f} ms "
            f"({self.speed_up:.2f}x; budget {self.budget_ms:.3f}{predicted}) on {self.runtime}, "
            f"{self.convs_before} -> {self.convs_after} convs, {self.score} (before {self.original_score.value:.4f})"
        )
