"""Task: what a network is for. Training batches, a loss and an evaluation; all that a user brings for another kind of network.

Draws are addressed, not iterated: the same `Draw` gives the same batches, augmentation and noise included, in any process
and after any restart. Importance tables and resumable training rest on that.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Literal

from torch import Tensor

from layermerge.data.draws import Draw, Scalar

Batch = tuple[Tensor, ...]
Network = Callable[..., Any]
"""A module, or anything that is called like one, such as an exported file in its runtime."""
ScoreKind = Literal["share", "loss"]
"""A share of all examples, shown in percent, of which more is better; or a loss, of which less is."""


@dataclass(frozen=True)
class Score:
    """A figure for people: its name, its value, the 95 % interval where there is one, and how many examples it rests on."""

    name: str
    value: float
    count: int
    low: float | None = None
    high: float | None = None
    kind: ScoreKind = "share"

    @property
    def title(self) -> str:
        """The figure's name, with its unit."""
        return f"{self.name} (%)" if self.kind == "share" else self.name

    @property
    def scale(self) -> float:
        """From stored values to those that people read."""
        return 100.0 if self.kind == "share" else 1.0

    def __str__(self) -> str:
        within = "" if self.low is None or self.high is None else f" [{self.low:.4f}, {self.high:.4f}]"
        return f"{self.name} {self.value:.4f}{within} on {self.count}"


class Task(ABC):
    """What importance, fine-tuning and reports need to know of a network's purpose."""

    ceiling: float
    """No network can score more than this."""

    @abstractmethod
    def train_batches(self, draw: Draw) -> Iterable[Batch]:
        """The batches of one epoch; the last, incomplete one is left out unless it is the only one."""

    @abstractmethod
    def steps_per_epoch(self, batch_size: int, subset: int | None = None) -> int:
        """How many batches an epoch has."""

    def example_inputs(self) -> Any:
        """What the network takes, a batch of two: a tensor, or a tuple or dict of inputs."""
        return next(iter(self.train_batches(Draw(seed=0, batch_size=2))))[0]

    @abstractmethod
    def forward(self, network: Network, batch: Batch) -> Any:
        """What the network makes of a batch."""

    @abstractmethod
    def loss(self, outputs: Any, batch: Batch, *, label_smoothing: float = 0.0) -> Tensor:
        """What training minimises."""

    @abstractmethod
    def distance(self, outputs: Any, teacher: Any, temperature: float) -> Tensor:
        """How far outputs are from those of a teacher: what distillation minimises."""

    @abstractmethod
    def evaluate(self, network: Network) -> float:
        """The score on the held-out part of the training data, higher is better; deterministic."""

    @abstractmethod
    def test(self, network: Network) -> Score:
        """The figure to report, on data that neither training nor any choice has seen."""

    @abstractmethod
    def describe(self) -> dict[str, Scalar]:
        """What scores depend on: the data and its treatment. Goes into the provenance of tables."""
