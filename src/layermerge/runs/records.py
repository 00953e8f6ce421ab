"""Records: what a run chose and what came of it, each as one file that reports read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from layermerge.files import SCHEMA, STRICT
from layermerge.planning.candidate import Candidate
from layermerge.quantization.figures import QuantizedFigures
from layermerge.solving.frontier import Solution
from layermerge.surgery.merge import MergedModule
from layermerge.surgery.rewrite import FittedRange
from layermerge.tables.bounds import Objective
from layermerge.tables.cost import TableCost
from layermerge.tables.latency import Prediction
from layermerge.tasks.base import Score

CONTROL = "original"
"""The method of the network as it was given, fine-tuned as long as the others."""


@dataclass(frozen=True)
class OriginalScore:
    """original.json: the score of the network as it was given; `stamp` names its weights and the data."""

    __pydantic_config__ = STRICT

    stamp: str
    score: Score
    schema_version: Literal[2] = SCHEMA


@dataclass(frozen=True)
class Choice:
    """choice.json: the solution whose merged network keeps a budget; `stamp` names the rows that it rests on."""

    __pydantic_config__ = STRICT

    stamp: str
    method: str
    menu: str
    """Which candidates it was chosen from: those of layermerge, depth or layeronly."""
    objective: Objective
    budget: str
    original_ms: float
    solution: Solution
    cost: TableCost
    schema_version: Literal[2] = SCHEMA


@dataclass(frozen=True)
class ChannelShare:
    """channels.json: the share of channels whose removal was measured to keep a budget; `stamp` names the weights."""

    __pydantic_config__ = STRICT

    stamp: str
    ratio: float
    measured_ms: float
    schema_version: Literal[2] = SCHEMA


@dataclass(frozen=True)
class Calibration:
    """calibration.json: what fitting a chosen network to its original brought; `stamp` names what it rests on."""

    __pydantic_config__ = STRICT

    stamp: str
    images: int
    held_out: float
    """The task's score on held-out training data, before any training."""
    seconds: float
    schema_version: Literal[2] = SCHEMA


@dataclass(frozen=True)
class SavedNetwork:
    """solution.json: what was done to a network, and in which form the weights next to it are."""

    __pydantic_config__ = STRICT

    fingerprint: str
    form: Literal["rewritten", "merged"]
    added_activations: bool
    candidates: tuple[Candidate, ...]
    fits: tuple[FittedRange, ...] = ()
    """The ranges that calibration fitted, and what of them."""
    schema_version: Literal[2] = SCHEMA


@dataclass(frozen=True, kw_only=True)
class Variant:
    """variant.json: a network that was chosen for a budget, on its way through fine-tuning."""

    __pydantic_config__ = STRICT

    method: str
    budget: str
    label: str
    budget_ms: float
    predicted_ms: float | None = None
    """The sum of the table's rows; None for methods that have no table."""
    error_ms: float | None = None
    """How far the prediction may be off: in 95 % of cases by less."""
    chosen_ms: float | None = None
    """Measured when it was chosen, before any training."""
    first_of_two: bool = False
    """Whether another method continues from here, so that this is not a result of its own."""
    cost: TableCost = field(default_factory=TableCost)
    schema_version: Literal[2] = SCHEMA


@dataclass(frozen=True)
class Environment:
    """The machine, the versions and the time of a measurement."""

    finished: str
    """Date and time in UTC, ISO 8601."""
    processor: str
    cores: int
    system: str
    versions: Mapping[str, str]
    """Of the packages that figures depend on, by name."""
    commit: str | None
    """Of layermerge, where it is a clone."""


@dataclass(frozen=True, kw_only=True)
class Report(Variant):
    """result.json: a variant and its figures, all measured on what was exported."""

    stamp: str
    """Names what the figures depend on: weights, recipe, data."""
    runtime: str
    threads: int
    batch_size: int
    original_ms: float
    """Latency of the network as it was given, norms folded, in the table's measurement."""
    measured_ms: float
    """Of the exported file, alongside the original, on the scale of original_ms."""
    budget_kept: bool
    """Whether the exported file kept the budget when measured; on a busy machine it may not, although it does on an idle one.
    """
    original_score: Score
    score: Score
    """On the test data, of what is served."""
    held_out: float
    """The task's score on held-out training data."""
    convs_before: int
    convs_after: int
    epochs: float | None
    """Of fine-tuning; 0 where there was none, None where the recipe counts steps."""
    calibrated: float | None = None
    """The task's score on held-out training data after calibration, before any training; None where there was none."""
    environment: Environment | None = field(default=None, compare=False)
    """When and on what; None in results of earlier versions."""

    @property
    def prediction(self) -> str:
        """As it is printed, milliseconds; empty where there is none."""
        if self.predicted_ms is None or self.error_ms is None:
            return "" if self.predicted_ms is None else f"{self.predicted_ms:.3f}"
        return str(Prediction(self.predicted_ms, self.error_ms))

    @property
    def speed_up(self) -> float:
        """How many times as fast as the original."""
        return self.original_ms / self.measured_ms

    def __str__(self) -> str:
        predicted = f", predicted {self.prediction}" if self.prediction else ""
        missed = "" if self.budget_kept else ", MISSED when the exported file was measured"
        return (
            f"{self.method} at {self.budget}: {self.original_ms:.3f} -> {self.measured_ms:.3f} ms "
            f"({self.speed_up:.2f}x; budget {self.budget_ms:.3f}{missed}{predicted}) on {self.runtime}, "
            f"{self.convs_before} -> {self.convs_after} convs, {self.score} (before {self.original_score.value:.4f})"
        )


@dataclass(frozen=True, kw_only=True)
class Int8Result(QuantizedFigures):
    """int8.json: the merged network as an INT8 file alongside the same in float32; `stamp` names what the figures rest on.

    Latencies are on the scale of result.json.
    """

    __pydantic_config__ = STRICT

    stamp: str
    float32_score: Score
    score: Score
    """On the test data."""
    schema_version: Literal[2] = SCHEMA


@dataclass(frozen=True)
class Result:
    """The result of a run: the merged network, what was chosen (None where nothing was solved), and the figures."""

    module: MergedModule
    solution: Solution | None
    report: Report
    directory: Path
    """Where the network, its exported file and its recovery curve are; `load` reads it."""
