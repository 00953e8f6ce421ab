"""A runtime whose passes take a known time, so that what a table makes of them can be worked out by hand."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType

from torch import nn

from layermerge.runtimes.base import Pass, Runtime, RuntimeSettings, Served
from layermerge.runtimes.clock import Clocks, ClockSettings
from layermerge.tables.workloads import Sandwich
from layermerge.tracing.inputs import Inputs

QUICK = ClockSettings(warm_up=1, least_rounds=2, most_rounds=2, seconds=0)


def milliseconds(module: nn.Module) -> float:
    """A microsecond for each conv weight, three for each activation and five for each norm."""
    total = 0.0
    for part in module.modules():
        if isinstance(part, nn.Conv2d):
            total += part.weight.numel()
        elif isinstance(part, (nn.ReLU, nn.ReLU6, nn.SiLU)):
            total += 3
        elif isinstance(part, nn.GroupNorm):
            total += 5
    return total / 1000


class FakeRuntime(Runtime):
    """A machine whose passes say what they took: a module's price, and `call_ms` for the call itself.

    `slowness` says by how much more they take at a time.
    """

    name, package, extra = "fake", "torch", "fake"
    clocks = Clocks.alike(QUICK)

    def __init__(
        self,
        threads: int = 1,
        call_ms: float = 0.0,
        version: str = "1",
        slowness: Callable[[float], float] = lambda _seconds: 1.0,
    ) -> None:
        self.seconds = 0.0
        self.slowness = slowness
        self.call_ms = call_ms
        self.version = version
        self.built: list[nn.Module] = []
        self.shapes: list[tuple[int, ...]] = []
        self.broken: Callable[[nn.Module], bool] = lambda _module: False
        super().__init__(RuntimeSettings(threads=threads))

    def _load(self) -> ModuleType:
        library = ModuleType("fake")
        library.__version__ = self.version  # type: ignore[attr-defined]
        return library

    def prepare(self, module: nn.Module, inputs: Inputs, *, small: bool = False) -> Pass:
        del small
        if self.broken(module):
            raise RuntimeError("operator not known here\nand more")
        self.built.append(module)
        self.shapes.append(tuple(inputs.tensors[0].shape))
        return self.lasting(milliseconds(module) + self.call_ms)

    used = None

    def now(self) -> float:
        """Its own clock: nothing but passes takes time."""
        return self.seconds

    def lasting(self, passing_ms: float) -> Pass:
        def run() -> float:
            taken_ms = passing_ms * self.slowness(self.seconds)
            self.seconds += taken_ms / 1000
            return taken_ms

        return run

    def serve(self, module: nn.Module, inputs: Inputs) -> Served:
        raise NotImplementedError

    @property
    def sandwiches(self) -> int:
        return sum(isinstance(module, Sandwich) for module in self.built)
