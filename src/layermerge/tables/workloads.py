"""Workloads: what a candidate makes the runtime do, apart from whose weights it does it with.

Candidates that need the same conv, on a map of the same size, followed by the same operators, share one workload and so one
measurement. A workload is plain data, so that a device can time it without the model's code or weights.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn import functional as F

from layermerge.conv import ConvSpec
from layermerge.planning.plan import Plan
from layermerge.planning.reading import read
from layermerge.tracing.operators import Role
from layermerge.tracing.structure import MapShape, Operation
from layermerge.tracing.trace import Trace


@dataclass(frozen=True)
class Follower:
    """An operator behind the conv that is worth timing: a residual add, a norm that does not fold, or an activation."""

    kind: str
    """`add`, `GroupNorm`, or an activation of `torch.nn` by name; its settings do not change its time."""
    groups: int = 0
    """Of a GroupNorm."""

    def __post_init__(self) -> None:
        known = getattr(nn.modules.activation, self.kind, None)
        activation = isinstance(known, type) and issubclass(known, nn.Module)
        if not activation and (self.kind, self.groups) != ("add", 0) and (self.kind != "GroupNorm" or self.groups < 1):
            raise ValueError(f"{self} is not an operator that can be timed")

    def __str__(self) -> str:
        return f"{self.kind}{self.groups or ''}"


ADD = Follower("add")


@dataclass(frozen=True)
class Workload:
    """A conv with bias on a map of this shape, and the operators behind it: activations, GroupNorms, a residual add."""

    spec: ConvSpec
    input_shape: MapShape
    follow: tuple[Follower, ...] = ()

    @staticmethod
    def between(shape: MapShape) -> Workload:
        """No workload at all, on a map of this shape."""
        return Workload(ConvSpec.identity(shape[0]), shape)

    @property
    def output_shape(self) -> MapShape:
        _, height, width = self.input_shape
        return (self.spec.out_channels, *self.spec.output_size(height, width))

    @property
    def key(self) -> str:
        """Names the workload in any table: all that its time depends on. For people to read and programs to compare."""
        spec, (channels, height, width) = self.spec, self.input_shape
        numbers = "".join(
            f"{name}{'.'.join(map(str, value))}"
            for name, value in (("k", spec.kernel), ("s", spec.stride), ("p", spec.padding), ("d", spec.dilation))
        )
        follow = "+".join(map(str, self.follow))
        return f"{channels}>{spec.out_channels} g{spec.groups} {numbers} on {height}x{width} {follow}".rstrip()


def workloads_of(trace: Trace, plan: Plan) -> dict[str, Workload | None]:
    """The workload of every candidate, by key; None where nothing is kept, and for fixed ones, which are not measured alone."""
    workloads: dict[str, Workload | None] = {}
    for candidate in plan.candidates:
        workloads[candidate.key] = None
        if candidate.spec is not None and not candidate.fixed:
            follow = (_follower(trace, operation) for operation in read(trace.structure, candidate).follow)
            shape = trace.layers[candidate.start].input_shape
            workloads[candidate.key] = Workload(candidate.spec, shape, tuple(one for one in follow if one))
    return workloads


def _follower(trace: Trace, operation: Operation) -> Follower | None:
    module = trace.module.get_submodule(operation.module) if operation.module else None
    if operation.role is Role.ACTIVATION:
        return Follower(_kind(module))
    if operation.role is Role.STAT_NORM:
        return Follower("GroupNorm", getattr(module, "num_groups", 1))
    return ADD if operation.role is Role.ADD else None


def _kind(activation: nn.Module | None) -> str:
    """An activation of torch.nn that takes as long: itself, or for one written by hand one with as many passes over the map."""
    if not isinstance(activation, fx.GraphModule):
        return type(activation or nn.PReLU()).__name__  # a call without a module has weights that belong elsewhere
    passes = sum(node.op == "call_function" for node in activation.graph.nodes)
    return "ReLU6" if passes == 1 else "Tanhshrink"


class Sandwich(nn.Module):
    """A workload between neighbours, which take the data in and out of the runtime's own layout, as its network would."""

    def __init__(self, workload: Workload) -> None:
        super().__init__()
        spec = workload.spec
        self.before, self.after = neighbour(spec.in_channels), neighbour(spec.out_channels)
        self.conv = nn.Conv2d(
            spec.in_channels, spec.out_channels, spec.kernel, spec.stride, 0, spec.dilation, spec.groups
        )
        top, bottom, left, right = spec.padding
        self.sides = [left, right, top, bottom]
        if top == bottom and left == right:
            self.conv.padding, self.sides = (top, left), []
        self.beside = neighbour(spec.out_channels) if needs_other(workload) else None
        self.follow = workload.follow
        self.operators = nn.ModuleList(_operator(one, spec.out_channels) for one in workload.follow if one != ADD)

    def forward(self, x: Tensor, y: Tensor | None = None) -> Tensor:
        x = self.before(x)
        other = x if y is None or self.beside is None else self.beside(y)
        out = self.conv(F.pad(x, self.sides) if self.sides else x)
        operators = iter(self.operators)
        for follower in self.follow:
            out = out + other if follower == ADD else next(operators)(out)
        result: Tensor = self.after(out)
        return result


def neighbour(channels: int) -> nn.Conv2d:
    """The cheapest conv there is: 1x1 depthwise."""
    return nn.Conv2d(channels, channels, 1, groups=channels)


def empty(channels: int) -> nn.Module:
    """Two neighbours with nothing between them: what a sandwich costs beside its filling, for one shape."""
    return nn.Sequential(neighbour(channels), neighbour(channels))


def call() -> nn.Module:
    """Nothing at all: what a pass costs for being called."""
    return nn.Identity()


def needs_other(workload: Workload) -> bool:
    """Whether its residual add needs a second input: the one it has is of another shape."""
    return ADD in workload.follow and workload.input_shape != workload.output_shape


def _operator(follower: Follower, channels: int) -> nn.Module:
    if follower.kind == "GroupNorm":
        return nn.GroupNorm(follower.groups, channels)
    kind: Any = getattr(nn, follower.kind)
    module: nn.Module = kind()
    return module


def sandwich_inputs(workload: Workload, batch: int) -> tuple[Tensor, ...]:
    generator = torch.Generator().manual_seed(0)
    shapes = [workload.input_shape, *([workload.output_shape] if needs_other(workload) else [])]
    return tuple(torch.randn(batch, *shape, generator=generator) for shape in shapes)
