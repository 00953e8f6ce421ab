"""The plan as a file: what the network was, what it takes and what was on the menu; enough to trace it again."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor

from layermerge.errors import ArtifactError
from layermerge.files import SCHEMA, STRICT
from layermerge.planning.barriers import barrier_ahead, barrier_behind
from layermerge.planning.candidate import Candidate
from layermerge.planning.plan import Plan, Rejection
from layermerge.planning.rules import Rules
from layermerge.tables.branches import Branch
from layermerge.tables.workloads import Workload
from layermerge.tracing.inputs import Inputs
from layermerge.tracing.structure import Block, Layer


@dataclass(frozen=True)
class TensorShape:
    """An example input without its values."""

    shape: tuple[int, ...]
    dtype: str


InputShape = TensorShape | bool | int | float | str | None


@dataclass(frozen=True)
class BlockSpan:
    """A residual block: what comes before layer `start` is added to what layer `end` - 1 gives."""

    name: str
    start: int
    end: int


@dataclass(frozen=True)
class PlanFile:
    """plan.json. `workloads`, by candidate key, and `branches` are all that a device needs to measure the latency table."""

    __pydantic_config__ = STRICT

    fingerprint: str
    args: tuple[InputShape, ...]
    kwargs: Mapping[str, InputShape]
    layers: tuple[Layer, ...]
    candidates: tuple[Candidate, ...]
    rejections: tuple[Rejection, ...] = ()
    rules: Rules = field(default_factory=Rules)
    method: str = "layermerge"
    workloads: Mapping[str, Workload | None] = field(default_factory=dict)
    branches: tuple[Branch, ...] = ()
    blocks: tuple[BlockSpan, ...] = ()
    """For pictures of the network."""
    original: str | None = None
    """Digest of the untouched network's file, where one was written with the plan."""
    free_size: bool = False
    """Whether the network takes images of any height and width; the plan and its tables are of the size traced with."""
    schema_version: Literal[2] = SCHEMA

    def __post_init__(self) -> None:
        if not self.layers:
            raise ValueError("it lists no layers")
        if any(not 0 <= candidate.start < candidate.end <= len(self.layers) for candidate in self.candidates):
            raise ValueError("a candidate covers layers that it does not list")

    @staticmethod
    def of(
        inputs: Inputs,
        plan: Plan,
        workloads: Mapping[str, Workload | None] | None = None,
        branches: tuple[Branch, ...] = (),
        blocks: Iterable[Block] = (),
    ) -> PlanFile:
        return PlanFile(
            plan.network,
            tuple(_shape_of(value) for value in inputs.args),
            {name: _shape_of(value) for name, value in inputs.kwargs.items()},
            plan.layers,
            plan.candidates,
            _told(plan),
            plan.rules,
            plan.method,
            workloads or {},
            branches,
            tuple(BlockSpan(block.name, block.start, block.end) for block in blocks),
            free_size=inputs.free_size,
        )

    @property
    def plan(self) -> Plan:
        """The menu, without the network it is of: enough for tables and the solver."""
        return Plan(self.layers, self.candidates, self.rejections, self.rules, self.method, self.fingerprint)

    def is_of_network(self, other: PlanFile) -> bool:
        """Whether both are of one network, traced alike."""
        return (self.fingerprint, self.free_size) == (other.fingerprint, other.free_size)

    @property
    def shapes(self) -> tuple[tuple[int, ...], ...]:
        """Of the inputs, without the batch."""
        given = (*self.args, *self.kwargs.values())
        return tuple(value.shape[1:] for value in given if isinstance(value, TensorShape) and len(value.shape) > 1)

    @property
    def example_inputs(self) -> Any:
        """Inputs of the saved shapes and dtypes: random where floating point, zero where not."""
        generator = torch.Generator().manual_seed(0)

        def make(value: InputShape) -> Any:
            if not isinstance(value, TensorShape):
                return value
            dtype = getattr(torch, value.dtype, None)
            if not isinstance(dtype, torch.dtype):
                raise ArtifactError(f"plan.json names an unknown dtype '{value.dtype}'")
            if dtype.is_floating_point:
                return torch.randn(value.shape, generator=generator).to(dtype)
            return torch.zeros(value.shape, dtype=dtype)

        args = tuple(make(value) for value in self.args)
        kwargs = {name: make(value) for name, value in self.kwargs.items()}
        if args and kwargs:
            raise ArtifactError("plan.json mixes positional and keyword inputs; plan again")
        return kwargs or args


def _told(plan: Plan) -> tuple[Rejection, ...]:
    """All that rules forbid; of what only lies on no path, the first that stops a range from each layer."""
    places = range(len(plan.layers))
    near = {barrier for place in places for barrier in (barrier_behind(plan, place), barrier_ahead(plan, place))}
    return tuple(each for each in plan.rejections if not each.topological or each in near)


def _shape_of(value: Any) -> InputShape:
    if isinstance(value, Tensor):
        return TensorShape(tuple(value.shape), str(value.dtype).removeprefix("torch."))
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise ArtifactError(
        f"an example input of type {type(value).__name__} cannot be saved; pass tensors and plain values only"
    )
