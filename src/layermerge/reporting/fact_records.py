"""Fact records: all that a report shows of a run: the run's own records, and beside them what only a page needs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from layermerge.data.sets import Scalar
from layermerge.planning.candidate import Candidate
from layermerge.runs.records import Choice, Int8Result, Report, Variant
from layermerge.solving.frontier import Point
from layermerge.tables.bounds import Objective
from layermerge.tables.cost import TableCost
from layermerge.tasks.base import Score
from layermerge.tracing.structure import Layer

ReasonKind = Literal["rule", "slow", "failed"]
Places = tuple[int, ...]
"""Of candidates, in the run's list of them."""


@dataclass(frozen=True)
class LayerFacts:
    """A layer as it came; its latency is None where it was not measured by itself."""

    layer: Layer
    removable: bool
    fixed: bool
    latency_ms: float | None = None


@dataclass(frozen=True)
class CandidateFacts:
    """A candidate under its key; `places` are those of the layers that it keeps."""

    key: str
    candidate: Candidate
    places: tuple[int, ...]
    latency_ms: float | None = None
    change: float | None = None
    """D, the change in the score; None where it was not measured."""


@dataclass(frozen=True)
class PointFacts:
    """A point of the frontier, and the candidates behind it."""

    point: Point
    candidates: Places


@dataclass(frozen=True)
class ChoiceFacts:
    """What was chosen for a budget; no candidates where the plan does not offer them any more."""

    choice: Choice
    candidates: Places


@dataclass(frozen=True)
class MethodFacts:
    """A method's menu, its frontier (thinned; `points` counts all) and its choices; `note` says why there is no frontier."""

    method: str
    objective: Objective
    entries: int
    points: int = 0
    frontier: tuple[PointFacts, ...] = ()
    choices: tuple[ChoiceFacts, ...] = ()
    note: str | None = None


@dataclass(frozen=True)
class CurveFacts:
    """How a variant recovered: epochs trained, and the held-out score, None where it was not finite."""

    variant: Variant
    epochs: tuple[float, ...]
    scores: tuple[float | None, ...]
    seconds: float


@dataclass(frozen=True)
class CostFacts:
    """What a method's tables cost."""

    method: str
    cost: TableCost


@dataclass(frozen=True)
class ReasonFacts:
    """One reason and how many ranges it keeps off the menu: by a rule of the plan, by latency, or because measuring failed."""

    kind: ReasonKind
    reason: str
    count: int
    examples: tuple[str, ...]


@dataclass(frozen=True)
class Int8Facts:
    """A merged network in float32 and in INT8, beside each other."""

    variant: Variant
    figures: Int8Result


@dataclass(frozen=True, kw_only=True)
class RunFacts:
    """Everything that a report shows of one run."""

    name: str
    directory: str
    method: str
    inputs: tuple[tuple[int, ...], ...]
    layers: tuple[LayerFacts, ...]
    candidates: tuple[CandidateFacts, ...]
    original_ms: float | None
    fixed_ms: float | None
    scale: float | None
    """What the latencies of single layers were multiplied by."""
    original_score: Score | None
    latency_setting: Mapping[str, Scalar]
    importance_setting: Mapping[str, Scalar]
    methods: tuple[MethodFacts, ...]
    results: tuple[Report, ...]
    headline: int | None
    """Which of the results stands for the run."""
    int8: tuple[Int8Facts, ...] = ()
    """Of variants that have an INT8 file."""
    curves: tuple[CurveFacts, ...]
    costs: tuple[CostFacts, ...]
    reasons: tuple[ReasonFacts, ...]
    missing: tuple[str, ...]
