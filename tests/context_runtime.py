"""A runtime with invented effects of context: what a conv takes in a network is not what it takes by itself.

Prices are those of `fake_runtime`. In a network a conv takes less than alone, by its kind, since kernels share code; and
where the channels of two neighbours do not fit a block of four, the runtime changes the layout between them, which is
nobody's operator. Nor is what takes an input out of the user's layout. And where a network happens to lie in memory makes a
copy of it faster or slower, operator by operator (`luck`).
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
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
INPUT_MS = 0.02


def in_network(conv: nn.Conv2d) -> float:
    """What it takes within a network, relative to alone."""
    if conv.groups > 1:
        return GROUPED
    return POINTWISE if conv.kernel_size == (1, 1) else DENSE


class Recorded(Recording):
    """Tells of every pass what its operators take in the state that the caches are in."""

    def __init__(self, runtime: ContextRuntime, operators: Sequence[Operator]) -> None:
        self.runtime, self.run, self.operators = runtime, runtime.passing(operators), operators
        self.found: list[Sequence[Operator]] = []

    def __call__(self) -> object:
        self.found.append(self.runtime.in_state(self.operators))
        return self.run()

    def passes(self) -> list[Sequence[Operator]]:
        return self.found


class ContextRuntime(FakeRuntime):
    """Tells what every operator takes, unless it is `silent`.

    `luck` is how far the operators of a copy scatter, relative. `cold` is how much longer, relative, convs take after a pass
    of something else, which leaves nothing of their weights in the caches.
    """

    name = "context"

    def __init__(self, *, silent: bool = False, luck: float = 0.0, cold: float = 0.0, **given: Any) -> None:
        super().__init__(**given)
        self.silent, self.luck, self.cold = silent, luck, cold
        self.last: object = None
        self.random = random.Random(0)

    def prepare(self, module: nn.Module, inputs: Inputs, *, small: bool = False) -> Pass:
        if isinstance(module, fx.GraphModule):
            self.built.append(module)
            return self.passing(self._copy_of(module))
        return super().prepare(module, inputs, small=small)

    def passing(self, operators: Sequence[Operator]) -> Callable[[], float]:
        def run() -> float:
            taken = sum(one.ms for one in self.in_state(operators))
            self.last = operators
            self.seconds += taken / 1000
            return taken

        return run

    def in_state(self, operators: Sequence[Operator]) -> list[Operator]:
        """What they take now."""
        cold = 0.0 if self.last is operators else self.cold
        return [Operator(one.owner, one.is_conv, one.ms * (1 + cold * one.is_conv)) for one in operators]

    def _copy_of(self, module: nn.Module) -> list[Operator]:
        if isinstance(module, Sandwich) or not self.luck:
            return operators_of(module)
        return [
            Operator(one.owner, one.is_conv, one.ms * (1 + self.luck * self.random.uniform(-1, 1)))
            for one in operators_of(module)
        ]

    def record(self, module: nn.Module, inputs: Inputs, *, small: bool = False) -> Recording | None:
        del inputs, small
        if self.silent:
            return None
        operators = self._copy_of(module)
        return Recorded(self, operators)


def operators_of(module: nn.Module) -> list[Operator]:
    if isinstance(module, Sandwich):
        own = milliseconds(module.operators) + (milliseconds(module.conv) if module.conv is not None else 0.0)
        filling = Operator("conv" if module.conv is not None else "before", module.conv is not None, own)
        entering = [
            Operator(None, False, INPUT_MS),
            *([Operator("before", True, NEIGHBOUR_MS)] if module.before else []),
        ]
        return [*entering, filling, Operator("after", True, NEIGHBOUR_MS)]
    assert isinstance(module, fx.GraphModule)
    found = [Operator(None, False, INPUT_MS)]
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
