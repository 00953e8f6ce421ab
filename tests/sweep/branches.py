"""The residual branches of a network that could be dropped, counted without layermerge.

The model runs once while every operator it calls is noted; what is counted is the graph of those calls. A branch counts
where a map is added to what is computed from it through a conv, and nothing else reads what is computed on the way. Convs
that the network calls more than once do not count: their weights would stay.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from agreement import call

_COPIES = {"alias", "clone", "detach", "lift_fresh"}
"""Operators that hand on what they read."""


@dataclass
class Call:
    """One operator as it ran; calls are numbered in the order in which they ran."""

    operator: str
    operands: tuple[int, ...]
    """The calls whose results it reads, in the order of its arguments."""
    shape: torch.Size | None
    conv: str | None
    """The module that a 2-d convolution belongs to."""
    readers: set[int] = field(default_factory=set)
    above: int = 0
    """All calls that it depends on, itself included, as bits."""


def residual_branches(model: nn.Module, inputs: Any) -> list[frozenset[str]]:
    """The convs, by the names of their modules, of every residual branch beside an identity shortcut."""
    calls = recorded(model, inputs)
    times = Counter(one.conv for one in calls)
    shared = {conv for conv in times if times[conv] > 1}
    found = []
    for place, add in enumerate(calls):
        same = len(add.operands) == 2 and all(calls[operand].shape == add.shape for operand in add.operands)
        if add.operator == "add" and same:
            for fork, end in (add.operands, add.operands[::-1]):
                if convs := _branch(calls, fork, end, place) - shared:
                    found.append(convs)
                    break
    return found


def _branch(calls: list[Call], fork: int, end: int, add: int) -> frozenset[str]:
    """The convs between `fork` and `end`; none where `end` does not depend on `fork`, or others read what is between."""
    if fork == end or not calls[end].above >> fork & 1:
        return frozenset()
    between = {
        place for place in range(fork + 1, end + 1) if calls[end].above >> place & calls[place].above >> fork & 1
    }
    if any(not calls[place].readers <= between | {add} for place in between):
        return frozenset()
    return frozenset(conv for place in between if (conv := calls[place].conv) is not None)


def recorded(model: nn.Module, inputs: Any) -> list[Call]:
    recorder = _Recorder()
    with torch.no_grad(), _owners(model, recorder.owners), recorder:
        output = call(model, inputs)
    recorder.note(
        "output", tuple(recorder.known(leaf) for leaf in pytree.tree_leaves(output) if isinstance(leaf, Tensor))
    )
    return recorder.calls


@contextmanager
def _owners(model: nn.Module, stack: list[str]) -> Iterator[None]:
    """Keeps the names of the modules that are being called on `stack`, the innermost last."""
    handles: list[Any] = []

    def leave(*_args: Any) -> None:
        stack.pop()  # what a hook returns would replace the module's output

    for name, module in model.named_modules():
        handles.append(module.register_forward_pre_hook(lambda *_args, name=name: stack.append(name)))
        handles.append(module.register_forward_hook(leave))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


class _Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.calls: list[Call] = []
        self.owners: list[str] = [""]
        self._sources: dict[int, int] = {}
        self._alive: list[Tensor] = []
        """So that no two tensors have the same id."""

    def known(self, tensor: Tensor) -> int:
        """The call that gave a tensor; inputs and weights are calls that read nothing."""
        if id(tensor) not in self._sources:
            self._holds(tensor, self.note("leaf", (), tensor.shape))
        return self._sources[id(tensor)]

    def note(
        self, operator: str, operands: tuple[int, ...], shape: torch.Size | None = None, conv: str | None = None
    ) -> int:
        place = len(self.calls)
        above = 1 << place
        for operand in operands:
            self.calls[operand].readers.add(place)
            above |= self.calls[operand].above
        self.calls.append(Call(operator, operands, shape, conv, above=above))
        return place

    def _holds(self, tensor: Tensor, place: int) -> None:
        self._sources[id(tensor)] = place
        self._alive.append(tensor)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        read = [leaf for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        given = [leaf for leaf in pytree.tree_leaves(result) if isinstance(leaf, Tensor)]
        operator = func._schema.name.split("::")[1].removesuffix("_")
        if not given:
            return result
        operands = tuple(self.known(tensor) for tensor in read)
        if operator in _COPIES:
            self._holds(given[0], operands[0])
            return result
        planar = operator == "convolution" and args[1].dim() == 4 and not args[6]
        place = self.note(operator, operands, given[0].shape, self.owners[-1] if planar else None)
        if func._schema.is_mutable:
            memory = args[0].untyped_storage().data_ptr() if isinstance(args[0], Tensor) else None
            given += [one for one in self._alive if one.untyped_storage().data_ptr() == memory]
        for tensor in given:
            self._holds(tensor, place)
        return result
