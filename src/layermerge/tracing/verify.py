"""Verify: the lifted module computes what the user's model computes, in eval and in train mode, gradients included.

Runs on copies, with the same seeds. Raises a `TraceError` that names the first module whose output differs, or the first
parameter whose gradient does. Warns of what the model has or returns in train mode alone: the eval graph rules.
"""

from __future__ import annotations

import copy
import warnings
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from layermerge.errors import TraceError, first_line
from layermerge.tracing.capture import Inputs, located, twin, untouched
from layermerge.tracing.gradients import compare_gradients
from layermerge.tracing.lift import LiftedModule
from layermerge.tracing.outputs import SharedOutputs, relative_difference

TOLERANCE = 1e-6
# Train mode may differ in memory layout (diffusers calls contiguous() there only), which reorders float32 sums.
TRAIN_TOLERANCE = 1e-5
_SEED = 20240721


def verify(model: nn.Module, lifted: LiftedModule, inputs: Inputs) -> None:
    """Eval mode at two batch sizes, train mode once with the same seed: outputs, BatchNorm buffers, gradients."""
    with untouched(model):
        other = inputs.batch + 1
        _compare(model, lifted, inputs, train=False)
        _compare(model, lifted, inputs.resized(other), train=False)
        missing = _compare(model, lifted, inputs, train=True)
    notes = []
    if unused := unused_modules(model, lifted):
        for name in unused:
            lifted.get_submodule(name).requires_grad_(False)
        notes.append(f"not part of the traced network, kept frozen under their names: {', '.join(unused)}")
    if missing is not None:
        notes.append(f"in train mode too the traced network returns what the model returns in eval mode ({missing})")
    if notes:
        warnings.warn("; ".join(notes), UserWarning, stacklevel=4)


def unused_modules(model: nn.Module, lifted: LiftedModule) -> list[str]:
    """The outermost modules with parameters that the captured graph never reads: auxiliary heads and the like."""
    targets = {str(node.target) for node in lifted.graph.nodes if node.op in ("call_module", "get_attr")}
    called = (lifted.get_submodule(target) for target in targets if _is_module(lifted, target))
    read = {id(parameter) for module in called for parameter in module.parameters()}
    read |= {id(parameter) for name, parameter in lifted.named_parameters() if name in targets}
    unused: list[str] = []
    for name, _ in model.named_modules():
        inside = bool(unused) and name.startswith(unused[-1] + ".")
        parameters = [id(parameter) for parameter in lifted.get_submodule(name).parameters()]
        if name and not inside and parameters and not read.intersection(parameters):
            unused.append(name)
    return unused


def _is_module(lifted: LiftedModule, target: str) -> bool:
    return any(name == target for name, _ in lifted.named_modules(remove_duplicate=False))


def _compare(model: nn.Module, lifted: LiftedModule, inputs: Inputs, *, train: bool) -> str | None:
    """Where the structures of both outputs differ, which may be in train mode, says how much was compared."""
    mode = f"in {'train' if train else 'eval'} mode at batch size {inputs.batch}"
    unused = unused_modules(model, lifted)

    def pair() -> tuple[nn.Module, LiftedModule]:
        original = twin(model).train(train)
        for name in unused:
            original.set_submodule(name, _Bypass())
        # The lifted module lends its parameters; only the buffers are copied, so that nothing of it changes.
        return original, copy.deepcopy(lifted, {id(p): p for p in lifted.parameters()}).train(train)

    original, copied = pair()
    advice = (
        "a BatchNorm that sees one value a channel needs a batch of 2 or more in train mode" if train else "report it"
    )
    trains = train
    try:
        expected = _run(original, inputs, nullcontext(), gradients=train)
    except Exception:
        trains, (original, copied) = False, pair()
        expected = _run(original, inputs, located(original, f"the model does not run {mode}", advice))
    fixed = "the batch size is fixed inside forward(): derive it from the input instead"
    guard = located(copied, f"the lifted model does not run {mode}", fixed)
    actual = _run(copied, inputs, guard, gradients=trains)
    shared = SharedOutputs.of(expected, actual, in_order=bool(unused), tolerance=TRAIN_TOLERANCE)
    if shared.differ and not train:
        raise TraceError(
            f"the model returns another structure {mode} than the one traced in eval mode; return the same in both"
        )
    worst = max((relative_difference(a, b) for a, b in shared.pairs), default=0.0)
    tolerance = TRAIN_TOLERANCE if train else TOLERANCE
    if worst > tolerance:
        where = _first_difference(original, copied, inputs, tolerance)
        raise TraceError(
            f"the lifted model differs from the original by {worst:.1e} {mode}, first at {where}; "
            "behaviour that depends on the mode must sit in a module of its own (nn.Dropout, stochastic depth)"
        )
    if train:
        _compare_buffers(original, copied)
    if trains:
        compare_gradients(original, copied, shared.pairs, _SEED)
    return str(shared) if shared.differ else None


def _compare_buffers(original: nn.Module, copied: nn.Module) -> None:
    actual = dict(copied.named_buffers())
    for name, buffer in original.named_buffers():
        if name in actual and (difference := relative_difference(buffer, actual[name])) > TRAIN_TOLERANCE:
            raise TraceError(
                f"after a step in train mode buffer '{name}' differs by {difference:.1e} from the original's; "
                "only statistics of the standard norms are followed"
            )


def _run(module: nn.Module, inputs: Inputs, guard: Any, *, gradients: bool = False) -> Any:
    fresh = inputs.cloned()
    with guard, torch.random.fork_rng(devices=[]), torch.set_grad_enabled(gradients):
        torch.manual_seed(_SEED)
        return module(*fresh.args, **fresh.kwargs)


class _Bypass(nn.Module):
    """Stands for a module that the traced network does not use: draws no random numbers, fails on no shape."""

    def forward(self, x: Any, *_args: Any, **_kwargs: Any) -> Any:
        return x


def _first_difference(original: nn.Module, lifted: nn.Module, inputs: Inputs, tolerance: float) -> str:
    """The first module, in execution order, whose outputs differ between the two."""
    records: list[dict[str, list[Tensor]]] = []
    order: list[str] = []
    for module in (original, lifted):
        seen: dict[str, list[Tensor]] = {}
        handles = []
        for name, part in module.named_modules():

            def note(_module: nn.Module, _args: Any, output: Any, name: str = name, seen: Any = seen) -> None:
                if isinstance(output, Tensor):
                    seen.setdefault(name, []).append(output.clone())
                    order.append(name)

            handles.append(part.register_forward_hook(note))
        try:
            _run(module, inputs, nullcontext())
        except Exception as error:
            return f"an error: {first_line(error)}"
        finally:
            for handle in handles:
                handle.remove()
        records.append(seen)
    for name in order:
        expected, actual = records[0].get(name), records[1].get(name)
        if name and expected and actual and len(expected) == len(actual):
            pairs = zip(expected, actual, strict=True)
            if any(relative_difference(a, b) > tolerance for a, b in pairs):
                return f"'{name}'"
    return "the output (no module of the model differs on its own)"
