"""Capture: the user's model as a flat graph of torch operators.

In: an `nn.Module` and example inputs. Out: a graph in the user's parameter names, batch size free, in-place operators
made functional, every node with its shape and its place in the user's model.
Guarantees: the user's model is neither changed nor moved, its mode and its random state stay as they are.
"""

from __future__ import annotations

import copy
import io
import logging
import operator
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext, redirect_stderr
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.utils._python_dispatch import TorchDispatchMode

from layermerge.errors import TraceError, first_line
from layermerge.tracing.free_sizes import add_input_checks, note_sizes, watched
from layermerge.tracing.inputs import Inputs
from layermerge.tracing.modes import modes_restored
from layermerge.tracing.operators import operator_name
from layermerge.tracing.uninterrupted import uninterrupted

_OURS = Path(__file__).resolve().parents[1]
_TORCH = Path(torch.__file__).resolve().parent


@contextmanager
def untouched(model: nn.Module) -> Iterator[None]:
    """Restores the training flags of every submodule, and the random state."""
    with modes_restored(model), torch.random.fork_rng(devices=[]), torch.no_grad():
        yield


def twin(model: nn.Module) -> nn.Module:
    """A copy with buffers of its own that shares the parameters: cheap, and safe to run in either mode."""
    return copy.deepcopy(model, {id(parameter): parameter for parameter in model.parameters()})


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
    """A module that does nothing in eval mode, and what it is called with beside the feature map."""

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


def _make_functional(graph: fx.Graph) -> None:
    """Replaces in-place operators by their functional twins, where no alias could tell the difference."""
    order = {node: place for place, node in enumerate(graph.nodes)}
    for node in graph.nodes:
        target = node.target
        if not isinstance(target, torch._ops.OpOverload) or not target._schema.is_mutable:
            continue
        name = target._schema.name.split("::")[1]
        packet = getattr(torch.ops.aten, operator_name(target), None)
        source = node.args[0] if node.args else None
        if not name.endswith("_") or packet is None or not isinstance(source, fx.Node):
            continue
        # Later uses of the tensor itself refer to the operator's result; only other names of its memory would notice.
        read_later = any(
            order[user] > order[node] for alias in _aliases(source) for user in alias.users if user is not node
        )
        overload = target._overloadname
        if read_later or _base(source).op != "call_function" or overload not in packet.overloads():
            continue
        node.target = getattr(packet, overload)


def _base(node: fx.Node) -> fx.Node:
    """The node whose memory this one looks at."""
    while _is_view(node) and isinstance(node.args[0], fx.Node):
        node = node.args[0]
    return node


def _aliases(node: fx.Node) -> set[fx.Node]:
    """All nodes that look at the same memory as this one, itself included."""
    found, waiting = set[fx.Node](), [_base(node)]
    while waiting:
        alias = waiting.pop()
        found.add(alias)
        waiting += [user for user in alias.users if user not in found and _is_view(user)]
    return found


def _is_view(node: fx.Node) -> bool:
    """Whether the node's value may share memory with its input; a piece of a split map does."""
    target = node.target
    if target is operator.getitem:
        source = node.args[0]
        return isinstance(source, fx.Node) and _is_view(source)
    if not isinstance(target, torch._ops.OpOverload) or target._schema.is_mutable:
        return False
    return any(result.alias_info is not None for result in target._schema.returns)


def _strip_guards(graph: fx.Graph) -> None:
    """Shape guards and assertions go: the check of the lifted module against the original stands in for them."""
    for node in reversed(graph.nodes):
        named = operator_name(node.target)
        guard = node.op == "call_module" and str(node.target).startswith("_guards")
        if (guard or named.startswith(("_assert", "sym_constrain"))) and not node.users:
            graph.erase_node(node)
    graph.eliminate_dead_code()


@dataclass(frozen=True)
class Capture:
    """The captured graph, the constants that are not in the user's state, and the modules only train mode uses."""

    graph: fx.Graph
    constants: dict[str, Tensor]
    train_only: Mapping[str, TrainOnly]


def _require_python_module(model: object) -> None:
    if not isinstance(model, nn.Module):
        raise TraceError(f"the model is of type {type(model).__name__}; pass an nn.Module")
    for name, module in model.named_modules():
        if isinstance(module, torch.jit.ScriptModule):
            where = f"its module '{name}'" if name else "the model"
            raise TraceError(
                f"{where} is compiled TorchScript, which cannot be traced; pass the nn.Module it was made of"
            )


@contextmanager
def _quiet() -> Iterator[None]:
    """torch.export logs and prints half-made graphs when it fails; what it raises says enough."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with redirect_stderr(io.StringIO()):
            yield
    finally:
        logging.disable(before)


def capture(model: nn.Module, inputs: Inputs) -> Capture:
    """Captures the model in eval mode with `torch.export`; batch size, and where asked height and width, are left free."""
    _require_python_module(model)
    inputs.bound_to(model)
    with untouched(model):
        with located(
            model, "the model cannot be copied", "remove hooks and weight_norm() that keep tensors of their own"
        ):
            copied = twin(model).eval()
        with located(model, "the model does not run on the example inputs", "check their number and shapes"):
            model.eval()
            model(*inputs.cloned().args, **inputs.cloned().kwargs)
        train_only = _train_only_modules(copied, inputs.cloned())
        for name in train_only:
            copied.set_submodule(name, _Marker())
        free = inputs.resized(max(2, inputs.batch)).cloned()
        advice = "control flow that depends on tensor values, or a fixed batch size, cannot be traced: move it out of forward()"
        watching = watched(copied) if inputs.free_size else nullcontext()
        with (
            uninterrupted(),
            located(copied, "torch.export cannot trace the model", advice),
            _quiet(),
            watching as watch,
        ):
            program = torch.export.export(
                copied, free.args, dict(free.kwargs), dynamic_shapes=free.dynamic_shapes(copied), strict=False
            )
            flat = program.module()
    assert isinstance(flat, fx.GraphModule)
    _strip_guards(flat.graph)
    add_input_checks(flat.graph, watch)
    note_sizes(flat.graph)
    _make_functional(flat.graph)
    known = {name for name, _ in model.named_parameters(remove_duplicate=False)}
    known |= {name for name, _ in model.named_buffers(remove_duplicate=False)}
    constants = {
        str(node.target): _attribute(flat, str(node.target))
        for node in flat.graph.nodes
        if node.op == "get_attr" and node.target not in known
    }
    return Capture(flat.graph, constants, train_only)


def _attribute(module: nn.Module, path: str) -> Tensor:
    parent, _, name = path.rpartition(".")
    value = getattr(module.get_submodule(parent), name)
    if not isinstance(value, Tensor):
        raise TraceError(
            f"the captured graph refers to '{path}', which is not a tensor; higher-order control flow cannot be traced"
        )
    return value.detach().clone()
