"""A runtime with invented effects of context: what a conv takes in a network is not what it takes by itself.

Prices are those of `fake_runtime`. In a network a conv takes less than alone, by its kind, since kernels share code; and
where the channels of two neighbours do not fit a block of four, the runtime changes the layout between them, which is
nobody's operator.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import fx, nn

from fake_runtime import FakeRuntime, milliseconds
from layermerge.runtimes.base import Pass
from layermerge.runtimes.recording import Operator, Recording
from layermerge.tables.workloads import Sandwich
from layermerge.tracing.inputs import Inputs

DENSE, POINTWISE, GROUPED = 0.9, 0.8, 0.7
REORDER_MS = 0.002
NEIGHBOUR_MS = 0.01


def in_network(conv: nn.Conv2d) -> float:
    """What it takes within a network, relative to alone."""
    if conv.groups > 1:
        return GROUPED
    return POINTWISE if conv.kernel_size == (1, 1) else DENSE


class Recorded(Recording):
    """Tells the same of every pass."""

    def __init__(self, run: Pass, operators: Sequence[Operator]) -> None:
        self.run, self.operators, self.count = run, operators, 0

    def __call__(self) -> object:
        self.count += 1
        return self.run()

    def passes(self) -> list[Sequence[Operator]]:
        return [self.operators] * self.count


class ContextRuntime(FakeRuntime):
    """Tells what every operator takes, unless it is `silent`."""

    name = "context"

    def __init__(self, *, silent: bool = False, **given: Any) -> None:
        super().__init__(**given)
        self.silent = silent

    def prepare(self, module: nn.Module, inputs: Inputs, *, small: bool = False) -> Pass:
        if isinstance(module, fx.GraphModule):
            self.built.append(module)
            return self.lasting(sum(one.ms for one in operators_of(module)))
        return super().prepare(module, inputs, small=small)

    def record(self, module: nn.Module, inputs: Inputs, *, small: bool = False) -> Recording | None:
        del inputs, small
        if self.silent:
            return None
        operators = operators_of(module)
        return Recorded(self.lasting(sum(one.ms for one in operators)), operators)


def operators_of(module: nn.Module) -> list[Operator]:
    if isinstance(module, Sandwich):
        own = milliseconds(module.operators) + (milliseconds(module.conv) if module.conv is not None else 0.0)
        filling = Operator("conv" if module.conv is not None else "before", module.conv is not None, own)
        return [Operator("before", True, NEIGHBOUR_MS), filling, Operator("after", True, NEIGHBOUR_MS)]
    assert isinstance(module, fx.GraphModule)
    found: list[Operator] = []
    owner, odd = None, False
    for node in module.graph.nodes:
        part = module.get_submodule(str(node.target)) if node.op == "call_module" else None
        if isinstance(part, nn.Conv2d):
            owner = str(node.target)
            if odd != bool(part.out_channels % 4):
                found.append(Operator(None, False, REORDER_MS))
            odd = bool(part.out_channels % 4)
            found.append(Operator(owner, True, milliseconds(part) * in_network(part)))
        elif part is not None and (own := milliseconds(part)):
            found.append(Operator(owner, False, own))
    found.append(Operator(None, False, 0.05))  # pooling, a classifier
    return found
