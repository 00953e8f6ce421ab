"""Task: what a network is for. Training batches, a loss and an evaluation; all that a user needs to write for another kind of
network.

Draws are addressed, not iterated: the same `Draw` gives the same batches, augmentation and noise included, in any process
and after any restart. Importance tables and resumable training rest on that.
"""

from __future__ import annotations

import base64
import binascii
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from numbers import Real
from typing import Annotated, Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from layermerge.arguments import MAY_BE_NAN, Count, checked
from layermerge.data.sets import Draw as Draw
from layermerge.data.sets import Scalar as Scalar
from layermerge.errors import DataError
from layermerge.tracing import modes

Batch = tuple[Tensor, ...]
Network = Callable[..., Any]
"""A module, or anything that is called like one, such as an exported file in its runtime."""
ScoreKind = Literal["share", "loss"]
"""A share of all examples, shown in percent, where more is better; or a loss, where less is better."""

Figure = Annotated[float, MAY_BE_NAN]


@checked(DataError)
@dataclass(frozen=True)
class Score:
    """A figure for people: its name, its value, the 95 % interval if there is one, and the number of examples."""

    name: str
    value: Figure
    count: Count
    low: Figure | None = None
    high: Figure | None = None
    kind: ScoreKind = "share"
    right: str | None = None
    """Of a share: which examples were right, in the order of the data, as `bits_text` writes them. With it, two networks are
    compared example by example."""

    @property
    def title(self) -> str:
        """The figure's name, with its unit."""
        return f"{self.name} (%)" if self.kind == "share" else self.name

    @property
    def scale(self) -> float:
        """From the value to what people read."""
        return 100.0 if self.kind == "share" else 1.0

    def __str__(self) -> str:
        within = "" if self.low is None or self.high is None else f" [{self.low:.4f}, {self.high:.4f}]"
        return f"{self.name} {self.value:.4f}{within} on {self.count}"


def bits_text(right: Tensor) -> str:
    """Answers, right or wrong, as text for a file: a bit each, in base64.

    >>> bits_text(torch.tensor([True, False, True])), right_bits("oA==", 3).tolist()
    ('oA==', [True, False, True])
    """
    return base64.b64encode(np.packbits(right.numpy()).tobytes()).decode()


def right_bits(text: str, count: int) -> npt.NDArray[np.bool_]:
    """What `bits_text` was given."""
    try:
        packed = np.frombuffer(base64.b64decode(text, validate=True), np.uint8)
    except binascii.Error as error:
        raise DataError("the record of right answers is not base64; score the network again") from error
    if len(packed) != -(-count // 8):
        raise DataError(f"the record of right answers is not of {count} examples; score the network again")
    return np.unpackbits(packed, count=count).astype(bool)


class Task(ABC):
    """What importance, fine-tuning and reports need to know about a network's purpose."""

    ceiling: float
    """No network can score more than this."""

    imitates = False
    """Whether its loss is already how far outputs are from the original's, so that there is nothing to distil."""

    @property
    def score_kind(self) -> ScoreKind:
        """What `evaluate` gives: a share, or a negated loss, which is never above 0."""
        return "share" if self.ceiling > 0 else "loss"

    @property
    def counts_unusual(self) -> bool:
        """Whether places of its outputs count by how unusual the original's answers there are; fits then count places so."""
        return False

    def for_original(self, original: nn.Module) -> Task:
        """The task for this network; most tasks are the same for all networks, and return themselves."""
        del original
        return self

    @abstractmethod
    def train_batches(self, draw: Draw) -> Iterable[Batch]:
        """The batches of one epoch; an incomplete last one is left out unless it is the only one."""

    @abstractmethod
    def steps_per_epoch(self, batch_size: int, subset: int | None = None) -> int:
        """How many batches an epoch has."""

    def example_inputs(self) -> Any:
        """What the network takes, a batch of two: a tensor, or a tuple or dict of inputs."""
        first = next(iter(self.train_batches(Draw(seed=0, batch_size=2))), None)
        if first is None:
            raise DataError(f"{type(self).__name__} has no training batch to take example inputs from; give it images")
        return first[0]

    @abstractmethod
    def forward(self, network: Network, batch: Batch) -> Any:
        """The network's outputs for a batch."""

    @abstractmethod
    def loss(self, outputs: Any, batch: Batch, *, label_smoothing: float = 0.0) -> Tensor:
        """What training minimises."""

    @abstractmethod
    def distance(self, outputs: Any, teacher: Any, temperature: float) -> Tensor:
        """How far outputs are from those of a teacher: what distillation minimises."""

    def held_out_batches(self) -> Iterable[Batch]:
        """The held-out part of the training data, always the same, in the form of training batches; labels are not needed."""
        return self.train_batches(Draw(seed=1, batch_size=50))

    def divergence(self, outputs: Any, original: Any) -> Tensor:
        """How far outputs are from the original network's for the same batch, image by image; 0 where they are the same.

        By default squared differences of all floating-point tensors, each in units of the original's mean square.
        """
        return relative_error(outputs, original)

    @abstractmethod
    def evaluate(self, network: Network) -> float:
        """The score on the held-out part of the training data, higher is better; deterministic."""

    @abstractmethod
    def test(self, network: Network) -> Score:
        """The figure to report, on data that neither training nor any choice has seen."""

    @abstractmethod
    def describe(self) -> dict[str, Scalar]:
        """What scores depend on: the data and its treatment. Goes into the provenance of tables."""


def relative_error(outputs: Any, original: Any) -> Tensor:
    """Squared differences of all floating-point tensors, in units of the original's mean square, as a mean per image.

    >>> relative_error([torch.tensor([[1.0], [2.0]])], [torch.tensor([[1.0], [1.0]])]).tolist()
    [0.0, 1.0]
    """
    mine, theirs = (
        [leaf.double() for leaf in pytree.tree_leaves(given) if isinstance(leaf, Tensor) and leaf.is_floating_point()]
        for given in (outputs, original)
    )
    if not theirs:
        raise DataError("the network returns no floating-point tensors to compare; return scores, not decisions")
    errors = [
        (one - other).square().flatten(1).mean(1) / other.square().mean().clamp_min(1e-30)
        for one, other in zip(mine, theirs, strict=True)
    ]
    return torch.stack(errors).mean(0)


def held_out_score(task: Task, network: Network) -> float:
    """What the task says of a network, which must be a number."""
    score = task.evaluate(network)
    if not isinstance(score, Real):
        raise DataError(f"{type(task).__name__}.evaluate gives a {type(score).__name__}; let it return a float")
    return float(score)


def device_of(network: Network) -> torch.device:
    parameter = next(network.parameters(), None) if isinstance(network, nn.Module) else None
    return torch.device("cpu") if parameter is None else parameter.device


def evaluating(network: Network) -> AbstractContextManager[None]:
    """Evaluation mode inside, for what has modes."""
    return modes.evaluating(network) if isinstance(network, nn.Module) else nullcontext()


def answer_of(outputs: Any, name: str) -> Any:
    """What a network says, where it may say it under a name (as an attribute or a key), or first of several."""
    if isinstance(outputs, Tensor):
        return outputs
    given = outputs.get(name) if isinstance(outputs, dict) else getattr(outputs, name, outputs)
    return given[0] if isinstance(given, (tuple, list)) and given else given
