"""Estimators of importance: how much a candidate changes what the network is for, one file each behind one interface.

An `Estimator` says how; its `Job`, made for one network and task, scores entries by key, wherever it is sent.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import TypeVar

from layermerge.files import weights_digest
from layermerge.planning.plan import Plan
from layermerge.tables.table import Row, Scalar
from layermerge.tasks.base import Task
from layermerge.tracing.trace import Trace

BASELINE = "untouched network"
"""The key of the row that all others are compared with; its value is the task's own score."""

AnyJob = TypeVar("AnyJob", bound="Job")


@dataclass(frozen=True)
class Job(ABC):
    """Scores one entry at a time: the change D of the score that the candidate brings, never larger than `largest_gain`."""

    trace: Trace
    plan: Plan
    task: Task
    device: str = "cpu"
    baseline: float | None = None
    """Score of the untouched network; None while that itself is measured."""

    @abstractmethod
    def __call__(self, key: str) -> Row: ...

    @property
    @abstractmethod
    def largest_gain(self) -> float:
        """No change raises the score by more, once the baseline is known."""

    @abstractmethod
    def describe(self) -> dict[str, Scalar]:
        """How entries are scored."""

    def against(self: AnyJob, baseline: float) -> AnyJob:
        """The same, once the untouched network was scored."""
        return replace(self, baseline=baseline)

    def provenance(self) -> dict[str, Scalar]:
        """What rows depend on: the network and its weights, the data, how entries are scored."""
        provenance: dict[str, Scalar] = {"kind": "importance", "network": self.plan.network}
        provenance["weights"] = weights_digest(self.trace.module)
        provenance["score"] = self.task.score_kind
        provenance |= {f"task.{name}": value for name, value in self.task.describe().items()}
        if self.device != "cpu":
            provenance["device"] = self.device
        return provenance | self.describe()


class Estimator(ABC):
    """How importance is estimated."""

    @abstractmethod
    def job(self, trace: Trace, plan: Plan, task: Task, device: str) -> Job:
        """What scores the entries of a plan."""
