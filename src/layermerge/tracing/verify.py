"""Verify: the lifted module computes what the user's model computes, in eval and in train mode.

Runs on copies, with the same seeds. Raises a `TraceError` that names the first module whose output differs.
"""

from __future__ import annotations

import copy
import warnings
from contextlib import nullcontext
from math import isfinite
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from layermerge.errors import TraceError, first_line
from layermerge.tracing.capture import located, twin, untouched
from layermerge.tracing.inputs import Inputs
from layermerge.tracing.lift import LiftedModule

TOLERANCE = 1e-6
# Train mode may differ in memory layout (diffusers calls contiguous() there only), which reorders float32 sums.
TRAIN_TOLERANCE = 1e-5
_SEED = 20240721


def relative_difference(expected: Tensor, actual: Tensor) -> float:
    """max|a - b| / max|a|; infinite where the shapes differ. The measure used for exactness everywhere."""
    if expected.shape != actual.shape:
        return float("inf")
    if expected.numel() == 0:
        return 0.0
    if not (expected.is_floating_point() or expected.is_complex()):
        return 0.0 if torch.equal(expected, actual) else float("inf")
    if torch.equal(expected, actual):
        return 0.0
    difference, largest = (expected - actual).abs().max().item(), expected.abs().max().item()
    if isfinite(difference):
        return difference / largest if largest > 0 else float("inf")
    finite = expected.isfinite()
    if not torch.equal(finite, actual.isfinite()):
        return float("inf")
    return relative_difference(expected[finite], actual[finite])  # a network that overflows does so in both


def verify(model: nn.Module, lifted: LiftedModule, inputs: Inputs) -> None:
    """Eval mode at two batch sizes, train mode once with the same seed, BatchNorm buffers included."""
    with untouched(model):
        other = inputs.batch + 1
        compare(model, lifted, inputs, train=False)
        compare(model, lifted, inputs.resized(other), train=False)
        compare(model, lifted, inputs, train=True)


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


def freeze_unused(model: nn.Module, lifted: LiftedModule) -> None:
    """Keeps the keys of modules that only train mode uses, frozen, and says so."""
    unused = unused_modules(model, lifted)
    if not unused:
        return
    for name in unused:
        lifted.get_submodule(name).requires_grad_(False)
    warnings.warn(
        f"not part of the traced network, kept frozen under their names: {', '.join(unused)}", UserWarning, stacklevel=4
    )


def compare(model: nn.Module, lifted: LiftedModule, inputs: Inputs, *, train: bool) -> None:
    """Raises where the two differ on these inputs, or one of them does not run; to be called within `untouched`."""
    mode = f"in {'train' if train else 'eval'} mode at batch size {inputs.batch}{inputs.size_text}"
    original = twin(model).train(train)
    unused = unused_modules(model, lifted)
    for name in unused:
        original.set_submodule(name, _Bypass())
    # The lifted module lends its parameters; only the buffers are copied, so that nothing of it changes.
    copied = copy.deepcopy(lifted, {id(p): p for p in lifted.parameters()}).train(train)
    advice = (
        "a BatchNorm that sees one value a channel needs a batch of 2 or more in train mode" if train else "report it"
    )
    expected = _run(original, inputs, located(original, f"the model does not run {mode}", advice))
    fixed = "the batch size is fixed inside forward(): derive it from the input instead"
    actual = _run(copied, inputs, located(copied, f"the lifted model does not run {mode}", fixed))
    # In train mode auxiliary outputs may follow the main ones; the eval graph rules, so the main ones are compared.
    if pytree.tree_structure(expected) != pytree.tree_structure(actual) and not (train and unused):
        raise TraceError(
            f"the model returns another structure {mode} than the one traced in eval mode; return the same in both"
        )
    wanted, got = ([leaf for leaf in pytree.tree_leaves(out) if isinstance(leaf, Tensor)] for out in (expected, actual))
    worst = max((relative_difference(a, b) for a, b in zip(wanted, got, strict=False)), default=0.0)
    tolerance = TRAIN_TOLERANCE if train else TOLERANCE
    if worst > tolerance:
        where = _first_difference(original, copied, inputs, tolerance)
        raise TraceError(
            f"the lifted model differs from the original by {worst:.1e} {mode}, first at {where}; "
            "behaviour that depends on the mode must sit in a module of its own (nn.Dropout, stochastic depth)"
        )
    if train:
        _compare_buffers(original, copied)


def _compare_buffers(original: nn.Module, copied: nn.Module) -> None:
    actual = dict(copied.named_buffers())
    for name, buffer in original.named_buffers():
        if name in actual and (difference := relative_difference(buffer, actual[name])) > TRAIN_TOLERANCE:
            raise TraceError(
                f"after a step in train mode buffer '{name}' differs by {difference:.1e} from the original's; "
                "only statistics of the standard norms are followed"
            )


def _run(module: nn.Module, inputs: Inputs, guard: Any) -> Any:
    fresh = inputs.cloned()
    with guard, torch.random.fork_rng(devices=[]), torch.no_grad():
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
