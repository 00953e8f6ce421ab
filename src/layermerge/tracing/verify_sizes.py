"""Verify sizes: a network traced with free sizes computes what the model computes at other heights and widths.

Sizes that the model itself refuses are left out. Raises a `TraceError` where it takes no other size, naming the operator that
fixes it, or where the lifted network differs.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from layermerge.errors import InputError, TraceError
from layermerge.tracing.capture import located, twin, untouched
from layermerge.tracing.inputs import Inputs, Size
from layermerge.tracing.lift import LiftedModule
from layermerge.tracing.verify import compare

CHANGES: tuple[Callable[[int, int], Size], ...] = (
    lambda high, wide: (high + 1, wide + 3),
    lambda high, wide: (2 * high, wide),
    lambda high, wide: (high, 2 * wide),
    lambda high, wide: (2 * high, 2 * wide),
)
"""Other sizes to try: odd ones, where the traced ones are even, and multiples, which U-Nets need."""


def verify_sizes(model: nn.Module, lifted: LiftedModule, inputs: Inputs) -> None:
    """Eval mode at several other sizes; warns of sizes that the model takes and the lifted network refuses."""
    with untouched(model):
        original = twin(model).eval()
        takes = [given for given in _others(inputs) if _failure(original, given) is None]
        if not takes:
            _explain(original, inputs, _others(inputs)[-1])
        for given in takes:
            refusal = _failure(lifted, given)
            if not isinstance(refusal, InputError):
                compare(model, lifted, given)
            elif _is_multiple(inputs, given):
                raise TraceError(f"free_size: height and width are not free: {refusal}, or trace without free_size")
            else:
                warnings.warn(f"some sizes that the model takes are refused: {refusal}", UserWarning, stacklevel=4)


def _others(inputs: Inputs) -> list[Inputs]:
    return [inputs.resized(1).at_size(change) for change in CHANGES]


def _is_multiple(inputs: Inputs, given: Inputs) -> bool:
    assert inputs.size is not None
    assert given.size is not None
    return all(new % old == 0 for new, old in zip(given.size, inputs.size, strict=True))


def other_sizes(module: nn.Module, inputs: Inputs) -> list[Inputs]:
    """The inputs at other heights and widths that the module takes; none where its sizes are fixed."""
    return [given for given in _others(inputs) if _failure(module, given) is None] if inputs.free_size else []


class _LastOperator(TorchFunctionMode):
    """Knows which function of torch was called last."""

    name = "forward()"

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        del types
        self.name = getattr(func, "__name__", str(func))
        return func(*args, **(kwargs or {}))


def _failure(module: nn.Module, inputs: Inputs, watch: _LastOperator | None = None) -> Exception | None:
    """What the module raises on these inputs, if anything."""
    fresh, was_training = inputs.cloned(), module.training
    try:
        with torch.random.fork_rng(devices=[]), torch.no_grad(), watch or _LastOperator():
            module.eval()(*fresh.args, **fresh.kwargs)
    except Exception as error:
        return error
    finally:
        module.train(was_training)
    return None


def _explain(original: nn.Module, inputs: Inputs, other: Inputs) -> None:
    """Raises what the model says against another size, with the operator that says so."""
    last = _LastOperator()
    _failure(original, other, last)
    assert inputs.size is not None
    high, wide = inputs.size
    doing = f"free_size: the model takes no other size than {high}x{wide}, {last.name} fixes it"
    advice = "pool to a fixed size before it (nn.AdaptiveAvgPool2d), or trace without free_size"
    fresh = other.cloned()
    with located(original, doing, advice), torch.no_grad():
        original(*fresh.args, **fresh.kwargs)
