"""Fact records: all that a report shows of a run: the run's own records, and next to them what only a page needs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from layermerge.data.sets import Scalar
from layermerge.planning.candidate import Candidate
from layermerge.reporting.verdict import Verdict
from layermerge.runs.plan_file import BlockSpan
from layermerge.runs.records import Choice, Report, Variant
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
    """A layer as it was given; its latency is None where it was not measured by itself."""

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
    words: str
    """What it does, in a few words."""
    latency_ms: float | None = None
    saved_ms: float | None = None
    """What its layers take as they are, less its own latency."""
    change: float | None = None
    """D, the change in the score; None where it was not measured."""


@dataclass(frozen=True)
class EstimateFacts:
    """A score that was estimated and not measured, with its 95 % interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class PointFacts:
    """A point of the frontier, and the candidates behind it; `estimated` is the score to expect, where one was estimated."""

    point: Point
    candidates: Places
    estimated: EstimateFacts | None = None


@dataclass(frozen=True)
class ChoiceFacts:
    """What was chosen for a budget; no candidates where the plan does not offer them any more."""

    choice: Choice
    candidates: Places


@dataclass(frozen=True)
class StopFacts:
    """What a method offers at one budget: what was chosen and measured for it, else the frontier's best point within it."""

    budget: str
    """As it is typed, such as 45%."""
    budget_ms: float
    latency_ms: float
    measured: bool
    candidates: Places
    importance: float
    left: int
    """Convolutions in the network that is served."""
    removed: int
    merged: int
    """Convolutions that went into another."""
    went: str
    """Which convolutions are not there any more, in words."""
    time: str
    """What takes most of the time, in words."""
    result: int | None
    """The place of its result, where there is one."""
    estimated: EstimateFacts | None
    command: str
    """What makes this network."""


@dataclass(frozen=True)
class MethodFacts:
    """A method's menu, its frontier (thinned; `points` counts all), its choices, and its stops: what it offers budget
    by budget; `note` says why there is no frontier."""

    method: str
    objective: Objective
    entries: int
    points: int = 0
    frontier: tuple[PointFacts, ...] = ()
    choices: tuple[ChoiceFacts, ...] = ()
    stops: tuple[StopFacts, ...] = ()
    note: str | None = None


@dataclass(frozen=True)
class FileFacts:
    """A file of a served network. Latency and score only where they were measured on this file; `note` is for people."""

    kind: str
    """Such as ONNX, float32."""
    path: str
    bytes: int
    latency_ms: float | None = None
    score: Score | None = None
    note: str = ""


@dataclass(frozen=True)
class ResultFacts:
    """A result, what is to be thought of it, where its files are, and what it took."""

    report: Report
    verdict: Verdict
    directory: str
    files: tuple[FileFacts, ...]
    seconds: Mapping[str, float]
    """What was done, and how long it took."""
    command: str
    """What makes it again, from scratch."""


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
    plain: str = ""
    """Why that is so, in plain words."""


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
    results: tuple[ResultFacts, ...]
    headline: int | None
    """Which of the results represents the run."""
    headline_note: str
    """Why that one, where there are several."""
    model: str | None
    """As the recipe names it."""
    weights: str | None
    """The file that its weights came from, as the recipe names it, without its folder."""
    license: str | None
    """Of the weights, where the recipe states it."""
    blocks: tuple[BlockSpan, ...]
    curves: tuple[CurveFacts, ...]
    costs: tuple[CostFacts, ...]
    reasons: tuple[ReasonFacts, ...]
    missing: tuple[str, ...]
