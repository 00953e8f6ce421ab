"""Workloads: what a candidate makes the runtime do, apart from whose weights it does it with.

Candidates that need the same conv, on a map of the same size, followed by the same operators, share one workload and so one
measurement. A workload is plain data, so that a device can time it without the model's code or weights.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn import functional as F

from layermerge.conv import ConvSpec
from layermerge.planning.plan import Plan
from layermerge.planning.reading import read
from layermerge.runtimes.recording import Operator
from layermerge.surgery.mean_gates import lonely_gates
from layermerge.tracing.inputs import Inputs
from layermerge.tracing.operators import Role, build_stand_in
from layermerge.tracing.structure import MapShape, Operation
from layermerge.tracing.trace import Trace


@dataclass(frozen=True)
class Follower:
    """An operator after the conv that is worth timing: a residual add, a norm that does not fold, or an activation."""

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
    """A conv with bias on a map of this shape, and the operators after it: activations, GroupNorms, a residual add.

    Without a conv it is what one that was dropped leaves behind.
    """

    spec: ConvSpec | None
    input_shape: MapShape
    follow: tuple[Follower, ...] = ()

    @property
    def output_shape(self) -> MapShape:
        _, height, width = self.input_shape
        return (self.spec.out_channels, *self.spec.output_size(height, width)) if self.spec else self.input_shape

    @property
    def work(self) -> int:
        """Multiplications of one image: the more, the longer; only the order counts."""
        _, height, width = self.output_shape
        return self.spec.weights * height * width if self.spec else 0

    @cached_property
    def key(self) -> str:
        """Names the workload in any table: all that its time depends on. For people to read and programs to compare."""
        channels, height, width = self.input_shape
        return f"{channels}{self._conv} on {height}x{width} {'+'.join(map(str, self.follow))}".rstrip()

    @property
    def _conv(self) -> str:
        spec = self.spec
        if spec is None:
            return ""
        numbers = "".join(
            f"{name}{'.'.join(map(str, value))}"
            for name, value in (("k", spec.kernel), ("s", spec.stride), ("p", spec.padding), ("d", spec.dilation))
        )
        return f">{spec.out_channels} g{spec.groups} {numbers}"


def workloads_of(trace: Trace, plan: Plan) -> dict[str, Workload | None]:
    """The workload of every candidate, by key; None where nothing runs, and for fixed ones, which are not measured alone."""
    workloads: dict[str, Workload | None] = {}
    lonely = lonely_gates(trace.structure) if any(one.replaced == "gate" for one in plan.candidates) else ()
    for candidate in plan.candidates:
        workloads[candidate.key] = None
        if not candidate.fixed:
            reading = read(trace.structure, candidate)
            followers = (_follower(trace, one, stands_in=one is reading.replaced) for one in reading.follow)
            follow = tuple(one for one in followers if one)
            shape = trace.layers[candidate.start].input_shape
            if candidate.spec is None:
                shape = reading.gate.shape if reading.gate else trace.layers[candidate.end - 1].output_shape
            if reading.gate in lonely:
                follow = (ADD,)  # its product with a constant: a pass over the map, too
            if candidate.spec or follow:
                workloads[candidate.key] = Workload(candidate.spec, shape, follow)
    return workloads


def _follower(trace: Trace, operation: Operation, *, stands_in: bool) -> Follower | None:
    module = trace.module.get_submodule(operation.module) if operation.module else None
    if stands_in and operation.stand_in:
        module = build_stand_in(operation.stand_in)
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
    """A workload between neighbours, which take the data in and out of the runtime's own layout, as its network would.

    `told`: the runtime says by itself what each operator took. Then neighbours are dense convs from and to very few channels,
    since those come in the runtime's own layout whatever the channels between them; otherwise they are the cheapest convs
    there are, so that little is taken off. `fuses`: the runtime runs an activation within the conv before it; where a
    dropped conv leaves one behind, that conv has one of its own already.
    """

    def __init__(self, workload: Workload, *, told: bool = False, fuses: bool = False) -> None:
        super().__init__()
        self.shapes = _input_shapes(workload, told)
        entering, leaving = workload.input_shape[0], workload.output_shape[0]
        self.before = None if told and _is_image(workload) else _before(entering, told)
        self.after = nn.Conv2d(leaving, 1, 1) if told else neighbour(leaving)
        self.beside = _before(leaving, told) if len(self.shapes) == 2 else None
        self.conv, self.sides = _conv(workload.spec)
        self.lead = nn.ReLU() if fuses and workload.spec is None else None
        self.follow = workload.follow
        self.operators = nn.ModuleList(_operator(one, leaving) for one in workload.follow if one != ADD)

    def forward(self, x: Tensor, y: Tensor | None = None) -> Tensor:
        x = x if self.before is None else self.before(x)
        x = x if self.lead is None else self.lead(x)
        other = x if self.beside is None else self.beside(y)
        out = x if self.conv is None else self.conv(F.pad(x, self.sides) if self.sides else x)
        operators = iter(self.operators)
        for follower in self.follow:
            out = out + other if follower == ADD else next(operators)(out)
        result: Tensor = self.after(out)
        return result

    def inputs(self, batch: int) -> Inputs:
        generator = torch.Generator().manual_seed(0)
        return Inputs(tuple(torch.randn(batch, *shape, generator=generator) for shape in self.shapes), {})

    def own_ms(self, operators: Sequence[Operator]) -> float:
        """What a pass took besides the neighbours: all but their convs, what these need of their inputs, and what follows.

        What an image needs before its conv is charged to no layer in a network either.
        """
        taken = pending = 0.0
        begun = self.before is not None
        for operator in operators:
            if operator.owner is None:
                pending += operator.ms
                continue
            neighbour_conv = operator.is_conv and operator.owner in ("before", "beside")
            taken += 0.0 if neighbour_conv or not begun else pending
            pending, begun = 0.0, True
            if operator.owner == "after":
                break
            taken += 0.0 if neighbour_conv else operator.ms
        return taken


_FEW = 3
"""Channels of what neighbours read where the runtime reports it: all runtimes take images as they come."""


def _is_image(workload: Workload) -> bool:
    """Whether it is the first conv of a network: nothing runs before it."""
    return workload.spec is not None and workload.input_shape[0] <= _FEW


def _input_shapes(workload: Workload, told: bool) -> list[MapShape]:
    shapes = [workload.input_shape, *([workload.output_shape] if told or needs_other(workload) else [])]
    shapes = shapes if ADD in workload.follow else shapes[:1]
    if not told:
        return shapes
    few = [(_FEW, height, width) for _, height, width in shapes]
    return [workload.input_shape, *few[1:]] if _is_image(workload) else few


def _before(channels: int, told: bool) -> nn.Conv2d:
    return nn.Conv2d(_FEW, channels, 1) if told else neighbour(channels)


def _conv(spec: ConvSpec | None) -> tuple[nn.Conv2d | None, list[int]]:
    """The conv, and what has to be padded ahead of it because its sides differ."""
    if spec is None:
        return None, []
    shape = (spec.in_channels, spec.out_channels, spec.kernel, spec.stride, 0, spec.dilation, spec.groups)
    # Random numbers for tens of millions of weights take longer than the conv.
    with torch.device("meta"):
        conv = nn.Conv2d(*shape)
    conv.weight = nn.Parameter(torch.full(conv.weight.shape, 1 / spec.weights))
    conv.bias = nn.Parameter(torch.zeros(spec.out_channels))
    top, bottom, left, right = spec.padding
    if top == bottom and left == right:
        conv.padding = (top, left)
        return conv, []
    return conv, [left, right, top, bottom]


def neighbour(channels: int) -> nn.Conv2d:
    """The cheapest conv there is: 1x1 depthwise."""
    return nn.Conv2d(channels, channels, 1, groups=channels)


def empty(channels: int) -> nn.Module:
    """Two neighbours with nothing between them: what a sandwich costs besides its filling, for one shape."""
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
