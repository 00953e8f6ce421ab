"""Capture: the user's model as a flat graph of torch operators.

In: an `nn.Module` and example inputs. Out: a graph in the user's parameter names, batch size free, in-place operators
made functional, every node with its shape and its place in the user's model.
Guarantees: the user's model is neither changed nor moved, its mode and its random state stay as they are.
"""

from __future__ import annotations

import copy
import re
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from layermerge.errors import TraceError, first_line
from layermerge.tracing.exported import exported
from layermerge.tracing.free_sizes import add_input_checks, note_sizes
from layermerge.tracing.inputs import Inputs
from layermerge.tracing.modes import modes_restored
from layermerge.tracing.names import fresh_name, names_in, tensor_names
from layermerge.tracing.support import require_traceable

_OURS = Path(__file__).resolve().parents[1]
_TORCH = Path(torch.__file__).resolve().parent


@contextmanager
def untouched(model: nn.Module) -> Iterator[None]:
    """Restores the training flags of every submodule, and the random state."""
    with modes_restored(model), torch.random.fork_rng(devices=[]), torch.no_grad():
        yield


def twin(model: nn.Module) -> nn.Module:
    """A copy with buffers of its own that shares the parameters: cheap, and safe to run in either mode."""
    memo: dict[int, Any] = {id(parameter): parameter for parameter in model.parameters()}
    for module in model.modules():
        # What an earlier call computed and left behind, as old-style weight_norm does; torch does not copy it by itself.
        left = (leaf for leaf in pytree.tree_leaves(vars(module)) if isinstance(leaf, Tensor) and not leaf.is_leaf)
        memo.update({id(tensor): tensor.detach().clone() for tensor in left})
    return copy.deepcopy(model, memo)


def _user_frame(error: BaseException) -> str:
    """The last line of the user's code (or their library's) that the error came through."""
    frames = traceback.extract_tb(error.__traceback__)
    for frame in reversed(frames):
        path = Path(frame.filename).resolve()
        if _TORCH not in path.parents and _OURS not in path.parents and path.suffix == ".py":
            return f"{path.name}:{frame.lineno} ({(frame.line or '').strip()})"
    return "unknown place"


@contextmanager
def located(model: nn.Module, doing: str, advice: str) -> Iterator[None]:
    """Turns whatever the model raises into one line: what we did, where in the model it failed, what to try."""
    open_modules: list[str] = []
    handles = []
    for name, module in model.named_modules():

        def enter(_module: nn.Module, _args: Any, name: str = name) -> None:
            open_modules.append(name)

        def leave(_module: nn.Module, _args: Any, _output: Any) -> None:
            open_modules.pop()

        handles += [module.register_forward_pre_hook(enter), module.register_forward_hook(leave)]
    try:
        yield
    except TraceError:
        raise
    except (Exception, SystemExit) as error:
        reason = f"it calls sys.exit({error.code})" if isinstance(error, SystemExit) else first_line(error)
        where = next((f"'{name}'" for name in reversed(open_modules) if name), type(model).__name__)
        raise TraceError(f"{doing}: {reason}; in {where}, at {_user_frame(error)}; {advice}") from error
    finally:
        for handle in handles:
            handle.remove()


@dataclass(frozen=True)
class TrainOnly:
    """A module that does nothing in eval mode, and what it is called with besides the feature map."""

    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]


class _CountOperators(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the operators that run."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        del types
        self.count += 1
        return func(*args, **(kwargs or {}))


def _train_only_modules(model: nn.Module, inputs: Inputs) -> dict[str, TrainOnly]:
    """Leaf modules that hand their input through in eval mode and run no operator: stochastic depth and its kin.

    They leave nothing in the captured graph, so the capture puts a marker in their place.
    """
    found: dict[str, TrainOnly | None] = {}
    counter, before, handles = _CountOperators(), [0], []
    for name, module in model.named_modules():
        plain = type(module).__module__.startswith("torch.nn.")
        if plain or any(True for _ in module.children()) or any(True for _ in module.parameters()):
            continue

        def enter(*_: Any) -> None:
            before[0] = counter.count

        def look(_module: nn.Module, args: Any, kwargs: Any, output: Any, name: str = name) -> None:
            extra = (*args[1:], *kwargs.values())
            constant = all(isinstance(value, (bool, int, float, str, type(None))) for value in extra)
            idle = bool(args) and output is args[0] and isinstance(output, Tensor) and counter.count == before[0]
            call = TrainOnly(args[1:], dict(kwargs)) if idle and constant else None
            found[name] = call if found.get(name, call) == call else None

        handles += [module.register_forward_pre_hook(enter), module.register_forward_hook(look, with_kwargs=True)]
    try:
        with counter:
            model(*inputs.args, **inputs.kwargs)
    finally:
        for handle in handles:
            handle.remove()
    return {name: call for name, call in found.items() if call is not None}


class _Marker(nn.Module):
    """Stands for a module that does nothing in eval mode, and shows in the graph."""

    def forward(self, x: Tensor, *_args: Any, **_kwargs: Any) -> Tensor:
        return torch.dropout(x, 0.0, False)


@dataclass(frozen=True)
class Capture:
    """The captured graph, the constants that are not in the user's state, and the modules only train mode uses."""

    graph: fx.Graph
    constants: dict[str, Tensor]
    train_only: Mapping[str, TrainOnly]


def capture(model: nn.Module, inputs: Inputs) -> Capture:
    """Captures the model in eval mode with `torch.export`; batch size, and where asked height and width, are left free."""
    require_traceable(model)
    inputs.bound_to(model)
    with untouched(model):
        with located(
            model, "the model cannot be copied", "remove attributes and hooks that hold open files, locks or generators"
        ):
            tried, copied = twin(model).eval(), twin(model)
        with located(tried, "the model does not run on the example inputs", "check their number and shapes"):
            train_only = _train_only_modules(tried, inputs.cloned())
        # On their way to train mode, models let go of what they keep from one call in eval mode to the next: it would be a
        # constant of the graph. For the same reason it is another copy that was tried.
        copied.train().eval()
        for name in train_only:
            copied.set_submodule(name, _Marker())
        # Not the batch size that the model has probably run with: one that keeps what it computed for a shape (a detector its
        # anchors) would compare it with the free one, and so fix it.
        free = inputs.resized(max(2, inputs.batch) + 1).cloned()
        batched = (
            "give inputs with a leading batch dimension, such as torch.randn(2, 3, 224, 224), whose size may change"
        )
        with located(tried, f"the model does not run at batch size {free.batch}", batched):
            tried(*free.cloned().args, **free.cloned().kwargs)
        advice = "control flow that depends on tensor values, or a fixed batch size, cannot be traced: move it out of forward()"
        with located(copied, "torch.export cannot trace the model", advice):
            flat, watch = exported(copied, free)
    add_input_checks(flat.graph, watch)
    note_sizes(flat.graph)
    return Capture(flat.graph, _constants(flat, model), train_only)


def _constants(flat: fx.GraphModule, model: nn.Module) -> dict[str, Tensor]:
    """The tensors that are not in the user's state, such as a plain attribute of a module, under legal names of their own."""
    known, taken = tensor_names(model), names_in(model)
    names: dict[str, str] = {}
    constants: dict[str, Tensor] = {}
    for node in flat.graph.nodes:
        path = str(node.target)
        if node.op != "get_attr" or path in known:
            continue
        if path not in names:
            names[path] = fresh_name(re.sub(r"\W", "_", path), taken)
            constants[names[path]] = _attribute(flat, path)
        node.target = names[path]
    return constants


def _attribute(module: nn.Module, path: str) -> Tensor:
    parent, _, name = path.rpartition(".")
    value = getattr(module.get_submodule(parent), name)
    if not isinstance(value, Tensor):
        raise TraceError(
            f"the captured graph refers to '{path}', which is not a tensor; higher-order control flow cannot be traced"
        )
    return value.detach().clone()
