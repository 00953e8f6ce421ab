"""Works: what a candidate makes the runtime do, apart from whose weights it does it with.

Candidates that need the same conv, on a map of the same size, followed by the same operators, share one workload and so one
measurement. A workload is plain data, so that a device can time it without the model's code or weights.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from layermerge.conv import ConvSpec
from layermerge.planning.geometry import Reading, read_range
from layermerge.planning.plan import Candidate, Plan
from layermerge.tracing.operators import Role
from layermerge.tracing.structure import BlockStep, ConvStep, DataPath, MapShape, OpStep, Structure
from layermerge.tracing.trace import Trace

ADD = "add"


@dataclass(frozen=True)
class Workload:
    """A conv with bias on a map of this shape, and the operators behind it: activations, GroupNorms, a residual add."""

    spec: ConvSpec
    input_shape: MapShape
    follow: tuple[str, ...] = ()

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
        """Names the workload in any table: all that its time depends on."""
        spec, (channels, height, width) = self.spec, self.input_shape
        numbers = "".join(
            f"{name}{'.'.join(map(str, value))}"
            for name, value in (("k", spec.kernel), ("s", spec.stride), ("p", spec.padding), ("d", spec.dilation))
        )
        return f"{channels}>{spec.out_channels} g{spec.groups} {numbers} on {height}x{width} {'+'.join(self.follow)}".rstrip()


def workloads_of(trace: Trace, plan: Plan) -> dict[str, Workload | None]:
    """The workload of every candidate, by key; None where nothing is kept, and for fixed ones, which are not measured alone."""
    return {candidate.key: _workload(trace, candidate) for candidate in plan.candidates}


def _workload(trace: Trace, candidate: Candidate) -> Workload | None:
    if candidate.spec is None or candidate.fixed:
        return None
    structure = trace.structure
    number = {name: index for index, name in enumerate(candidate.layers, candidate.start)}
    reading, _ = read_range(structure, candidate.start, candidate.end, {number[name] for name in candidate.kept})
    moved = [step for step in reading.steps if isinstance(step, OpStep) and step.role is Role.STAT_NORM]
    follow = [*moved[-1:], *_behind(structure, reading)]
    tokens = [token for step in follow if (token := _token(trace, step))]
    lost = None if candidate.untouched else _last_activation(structure, reading.steps)
    active = any(isinstance(step, OpStep) and step.role is Role.ACTIVATION for step in follow)
    if lost and not active and _another_item_follows(structure, reading):
        tokens.append(_token(trace, lost) or "")  # rewrite puts it back behind the range
    return Workload(candidate.spec, structure.layers[candidate.start].input_shape, tuple(tokens))


def _last_activation(structure: Structure, path: DataPath) -> OpStep | None:
    found = None
    for step in path:
        if isinstance(step, BlockStep):
            found = _last_activation(structure, structure.blocks[step.block].body) or found
        elif isinstance(step, OpStep) and step.role is Role.ACTIVATION:
            found = step
    return found


def _another_item_follows(structure: Structure, reading: Reading) -> bool:
    """Whether a conv comes next on the path, or on the one around it."""
    piece: DataPath = (*reading.steps, *reading.behind)
    for index, block in enumerate(structure.blocks):
        if block.body[-len(piece) :] == piece:
            return _another_item_follows(structure, _around(structure, index))
    return not any(path[-len(piece) :] == piece for path in structure.paths)


def _behind(structure: Structure, reading: Reading) -> list[OpStep | str]:
    """The operators from a range's end to the next item; at the end of a block's body its add, and what follows that."""
    found: list[OpStep | str] = [step for step in reading.behind if isinstance(step, OpStep)]
    piece: DataPath = (*reading.steps, *reading.behind)
    for index, block in enumerate(structure.blocks):
        if block.body[-len(piece) :] == piece:
            return [*found, ADD, *_behind(structure, _around(structure, index))]
    return found


def _around(structure: Structure, block: int) -> Reading:
    """A whole block as a piece of the path that it stands on."""
    for path in structure.paths:
        if BlockStep(block) in path:
            place = path.index(BlockStep(block))
            behind = place + 1
            while behind < len(path) and not isinstance(path[behind], (ConvStep, BlockStep)):
                behind += 1
            return Reading(path[place : place + 1], path[place + 1 : behind])
    raise AssertionError("a block stands on a path")


def _token(trace: Trace, step: OpStep | str) -> str | None:
    """What is worth timing: activations and norms that do not fold. Settings of an activation do not change its time."""
    if isinstance(step, str):
        return step
    module = trace.module.get_submodule(step.module) if step.module else None
    if step.role is Role.ACTIVATION:
        return type(module).__name__ if module is not None else nn.ReLU6.__name__
    if step.role is Role.STAT_NORM:
        return f"GroupNorm{getattr(module, 'num_groups', 1)}"
    return None


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
        self.operators = nn.ModuleList(_operator(token, spec.out_channels) for token in workload.follow if token != ADD)

    def forward(self, x: Tensor, y: Tensor | None = None) -> Tensor:
        x = self.before(x)
        other = x if y is None or self.beside is None else self.beside(y)
        out = self.conv(F.pad(x, self.sides) if self.sides else x)
        operators = iter(self.operators)
        for token in self.follow:
            out = out + other if token == ADD else next(operators)(out)
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


def _operator(token: str, channels: int) -> nn.Module:
    if token.startswith("GroupNorm"):
        return nn.GroupNorm(int(token.removeprefix("GroupNorm")), channels)
    kind: Any = getattr(nn, token)
    module: nn.Module = kind()
    return module


def sandwich_inputs(workload: Workload, batch: int) -> tuple[Tensor, ...]:
    generator = torch.Generator().manual_seed(0)
    shapes = [workload.input_shape, *([workload.output_shape] if needs_other(workload) else [])]
    return tuple(torch.randn(batch, *shape, generator=generator) for shape in shapes)
