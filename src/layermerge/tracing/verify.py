"""Verify: the lifted module computes what the user's model computes, in eval and in train mode, gradients included.

Runs on copies, with the same seeds. Raises a `TraceError` that names the first module whose output differs, or the first
parameter whose gradient does. Warns of what the model has or returns in train mode alone: the eval graph rules.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from layermerge.errors import TraceError, first_line
from layermerge.tracing.capture import located, twin, untouched
from layermerge.tracing.gradients import compare_gradients
from layermerge.tracing.inputs import Inputs
from layermerge.tracing.lift import LiftedModule
from layermerge.tracing.outputs import SharedOutputs, relative_difference

TOLERANCE = 1e-6
# Train mode may differ in memory layout (diffusers calls contiguous() there only), which reorders float32 sums.
TRAIN_TOLERANCE = 1e-5
_SEED = 20240721


def verify(model: nn.Module, lifted: LiftedModule, inputs: Inputs) -> None:
    """Eval mode at two batch sizes, train mode once with the same seed: outputs, BatchNorm buffers, gradients."""
    unused = unused_modules(model, lifted)
    with untouched(model):
        # The same copies at both sizes: what one call leaves behind for the next shows in the second.
        copies = _Copies(model, lifted, unused, train=False)
        for batch in (inputs, inputs.resized(inputs.batch + 1)):
            _compare(copies, batch, copies.run_original(batch))
        missing = _compare_training(model, lifted, unused, inputs)
    notes = []
    if unused:
        for name in unused:
            lifted.get_submodule(name).requires_grad_(False)
        notes.append(f"not part of the traced network, kept frozen under their names: {', '.join(unused)}")
    if missing is not None:
        notes.append(f"in train mode too the traced network returns what the model returns in eval mode ({missing})")
    if notes:
        warnings.warn("; ".join(notes), UserWarning, stacklevel=4)


def compare(model: nn.Module, lifted: LiftedModule, inputs: Inputs) -> None:
    """Raises where the two differ in eval mode on these inputs, or one of them does not run. Needs `untouched` around it."""
    copies = _Copies(model, lifted, unused_modules(model, lifted), train=False)
    _compare(copies, inputs, copies.run_original(inputs))


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


class _Copies:
    """The model and the lifted module as copies that may be run: parameters are shared, buffers are not."""

    def __init__(self, model: nn.Module, lifted: LiftedModule, unused: Sequence[str], *, train: bool) -> None:
        self.train, self.unused = train, unused
        self.original = twin(model).train(train)
        for name in unused:
            self.original.set_submodule(name, _Bypass())
        self.lifted = copy.deepcopy(lifted, {id(p): p for p in lifted.parameters()}).train(train)

    def run_original(self, inputs: Inputs, *, gradients: bool = False) -> Any:
        advice = "a BatchNorm that sees one value per channel needs a batch of 2 or more in train mode"
        doing = f"the model does not run {self.mode(inputs)}"
        guard = located(self.original, doing, advice if self.train else "report it")
        return _run(self.original, inputs, guard, gradients=gradients)

    def run_lifted(self, inputs: Inputs, *, gradients: bool = False) -> Any:
        advice = "the batch size is fixed inside forward(): derive it from the input instead"
        guard = located(self.lifted, f"the lifted model does not run {self.mode(inputs)}", advice)
        return _run(self.lifted, inputs, guard, gradients=gradients)

    def mode(self, inputs: Inputs) -> str:
        return f"in {'train' if self.train else 'eval'} mode at batch size {inputs.batch}{inputs.size_text}"


def _compare(copies: _Copies, inputs: Inputs, expected: Any, *, gradients: bool = False) -> SharedOutputs:
    actual, mode = copies.run_lifted(inputs, gradients=gradients), copies.mode(inputs)
    shared = SharedOutputs.of(expected, actual, in_order=bool(copies.unused), tolerance=TRAIN_TOLERANCE)
    if shared.differ and not copies.train:
        raise TraceError(
            f"the model returns another structure {mode} than the one traced in eval mode; return the same in both"
        )
    worst = max((relative_difference(a, b) for a, b in shared.pairs), default=0.0)
    tolerance = TRAIN_TOLERANCE if copies.train else TOLERANCE
    if worst > tolerance:
        where = _first_difference(copies.original, copies.lifted, inputs, tolerance)
        in_training = (
            "behaviour that depends on the mode must sit in a module of its own (nn.Dropout, stochastic depth)"
        )
        in_eval = (
            "what depends on values, on chance or on what an earlier call left behind must be moved out of forward()"
        )
        raise TraceError(
            f"the lifted model differs from the original by {worst:.1e} {mode}, first at {where}; "
            f"{in_training if copies.train else in_eval}"
        )
    return shared


def _compare_training(model: nn.Module, lifted: LiftedModule, unused: Sequence[str], inputs: Inputs) -> str | None:
    """Where the two return different structures, says how much was compared."""
    copies, trains = _Copies(model, lifted, unused, train=True), True
    try:
        expected = copies.run_original(inputs, gradients=True)
    except TraceError:  # it may still run without
        copies, trains = _Copies(model, lifted, unused, train=True), False
        expected = copies.run_original(inputs)
    shared = _compare(copies, inputs, expected, gradients=trains)
    _compare_buffers(copies.original, copies.lifted)
    if trains:
        compare_gradients(copies.original, copies.lifted, shared.pairs, _SEED)
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
