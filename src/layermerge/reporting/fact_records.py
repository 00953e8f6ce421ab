"""Fact records: all that a report shows of a run, as plain data that JSON can hold."""

from __future__ import annotations

from typing import Literal

from layermerge.files import Record
from layermerge.runs.results import CostRecord, Report, RoundRecord, ScoreRecord
from layermerge.solving.solve import Objective
from layermerge.tables.table import Scalar

ReasonKind = Literal["rule", "slow", "failed"]


class LayerFacts(Record):
    """A layer as it came; its latency is None where it was not measured by itself."""

    name: str
    kernel: tuple[int, int]
    stride: tuple[int, int]
    groups: int
    input_shape: tuple[int, int, int]
    output_shape: tuple[int, int, int]
    removable: bool
    fixed: bool
    latency_ms: float | None = None


class CandidateFacts(Record):
    """A way to treat layers start..end-1; `kept` are places in the list of layers, `kernel` is None where nothing is left."""

    key: str
    start: int
    end: int
    kept: tuple[int, ...]
    kernel: tuple[int, int] | None
    groups: int | None
    latency_ms: float | None = None
    change: float | None = None
    """D, the change in the score; None where it was not measured."""


class PointFacts(Record):
    """A point of the frontier; candidates are places in the list of candidates."""

    latency_ms: float
    importance: float
    candidates: tuple[int, ...]


class ChoiceFacts(Record):
    """What was chosen for a budget and measured before fine-tuning."""

    budget: str
    budget_ms: float
    predicted_ms: float
    measured_ms: float
    importance: float
    rounds: tuple[RoundRecord, ...]
    candidates: tuple[int, ...]
    """Empty where the plan does not offer them any more."""


class MethodFacts(Record):
    """A method's menu, its frontier (thinned; `points` counts all) and its choices; `note` says why there is no frontier."""

    method: str
    objective: Objective
    entries: int
    points: int = 0
    frontier: tuple[PointFacts, ...] = ()
    choices: tuple[ChoiceFacts, ...] = ()
    note: str | None = None


class CurveFacts(Record):
    """A recovery curve: epochs trained, and the held-out score, None where it was not finite."""

    method: str
    budget: str
    label: str
    epochs: tuple[float, ...]
    scores: tuple[float | None, ...]
    seconds: float


class CostFacts(Record):
    """What a method's tables cost."""

    method: str
    cost: CostRecord


class ReasonFacts(Record):
    """One reason and how many ranges it keeps off the menu: by a rule of the plan, by latency, or because measuring failed."""

    kind: ReasonKind
    reason: str
    count: int
    examples: tuple[str, ...]


class RunFacts(Record):
    """Everything that a report shows of one run."""

    schema_version: Literal[1] = 1
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
    original_score: ScoreRecord | None
    latency_setting: dict[str, Scalar]
    importance_setting: dict[str, Scalar]
    methods: tuple[MethodFacts, ...]
    results: tuple[Report, ...]
    headline: int | None
    """Which of the results stands for the run."""
    curves: tuple[CurveFacts, ...]
    costs: tuple[CostFacts, ...]
    reasons: tuple[ReasonFacts, ...]
    missing: tuple[str, ...]
