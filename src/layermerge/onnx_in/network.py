"""The module that an ONNX file becomes: layers under readable names, and the order in which they and functions are called."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from layermerge.tracing.file_interface import FileInterface


@dataclass(frozen=True)
class Value:
    """What an earlier step gave, or an input, by its name in the file."""

    name: str


@dataclass(frozen=True)
class Held:
    """A constant of the network, by the name of its buffer."""

    path: str


@dataclass(frozen=True)
class Step:
    """One call: of a submodule by its path, or of a function; `frees` is not read by any later step."""

    run: str | Callable[..., Any]
    args: tuple[Any, ...]
    gives: tuple[str, ...]
    frees: tuple[str, ...] = ()


class OnnxNetwork(nn.Module):
    """A network read from an ONNX file; `file_interface` is what the file says of its inputs, outputs and itself."""

    def __init__(
        self,
        interface: FileInterface,
        layers: dict[str, nn.Module],
        constants: dict[str, Tensor],
        steps: Sequence[Step],
        results: Sequence[Any],
    ) -> None:
        super().__init__()
        self.file_interface, self.steps, self.results = interface, _freeing(steps, results), tuple(results)
        for path, layer in layers.items():
            *outer, _ = path.split(".")
            for depth in range(1, len(outer) + 1):
                if not any(name == ".".join(outer[:depth]) for name, _ in self.named_modules()):
                    self.set_submodule(".".join(outer[:depth]), nn.Module())
            self.set_submodule(path, layer)
        for name, tensor in constants.items():
            self.register_buffer(name, tensor)

    def forward(self, *inputs: Tensor) -> Any:
        if len(inputs) != len(self.file_interface.inputs):
            raise TypeError(f"the network takes {len(self.file_interface.inputs)} inputs, but {len(inputs)} were given")
        values: dict[str, Any] = {
            port.name: tensor for port, tensor in zip(self.file_interface.inputs, inputs, strict=True)
        }
        for step in self.steps:
            given = [self._read(values, arg) for arg in step.args]
            called = self.get_submodule(step.run) if isinstance(step.run, str) else step.run
            result = called(*given)
            values.update(zip(step.gives, result if len(step.gives) > 1 else (result,), strict=True))
            for name in step.frees:
                del values[name]
        returned = tuple(self._read(values, result) for result in self.results)
        return returned[0] if len(returned) == 1 else returned

    def _read(self, values: dict[str, Any], arg: Any) -> Any:
        if isinstance(arg, Value):
            return values[arg.name]
        if isinstance(arg, Held):
            return self.get_buffer(arg.path)
        return [self._read(values, part) for part in arg] if isinstance(arg, list) else arg


def names_in(args: Sequence[Any]) -> list[str]:
    """The values that arguments refer to."""
    found = []
    for arg in args:
        if isinstance(arg, Value):
            found.append(arg.name)
        elif isinstance(arg, list):
            found += names_in(arg)
    return found


def _freeing(steps: Sequence[Step], results: Sequence[Any]) -> tuple[Step, ...]:
    """The steps, each with what need not be held behind it; steps that nothing depends on are left out."""
    needed, kept = set(names_in(results)), list[Step]()
    for step in reversed(steps):
        if not needed.intersection(step.gives):
            continue
        last = {*names_in(step.args), *step.gives} - needed
        kept.append(Step(step.run, step.args, step.gives, tuple(sorted(last))))
        needed.update(names_in(step.args))
    return tuple(reversed(kept))
