"""Exported: what `torch.export` makes of a model, as one flat graph of operators that write to nothing.

In: a model and the inputs it runs on. Out: a graph module whose nodes still carry torch.export's own notes.
"""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, redirect_stderr
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.overrides import TorchFunctionMode

from layermerge.tracing.free_sizes import SizeWatch, watched
from layermerge.tracing.inputs import Inputs
from layermerge.tracing.nested import inline_nested
from layermerge.tracing.operators import operator_name
from layermerge.tracing.quiet import quiet_loggers
from layermerge.tracing.uninterrupted import uninterrupted
from layermerge.tracing.writes import make_functional


def exported(model: nn.Module, inputs: Inputs) -> tuple[fx.GraphModule, SizeWatch | None]:
    """The model's graph; where height and width are free, also who decided what about them."""
    shapes = inputs.dynamic_shapes(model)

    def export(*, gradients: bool) -> tuple[fx.GraphModule, SizeWatch | None]:
        watching = watched(model) if inputs.free_size else nullcontext()
        with torch.set_grad_enabled(gradients), watching as watch:
            program = torch.export.export(model, inputs.args, dict(inputs.kwargs), dynamic_shapes=shapes, strict=False)
            flat = program.module()
        assert isinstance(flat, fx.GraphModule)
        return flat, watch

    with uninterrupted(), _quiet(), _DataIsDetached():
        # With gradients on, the parts of forward() that switch them off show in the graph; a few models run only without.
        try:
            flat, watch = export(gradients=True)
        except RuntimeError:
            flat, watch = export(gradients=False)
    inline_nested(flat)
    _strip_guards(flat.graph)
    make_functional(flat.graph, {name for name, _ in model.named_parameters(remove_duplicate=False)})
    _accept_any_layout(flat.graph)
    return flat, watch


class _DataIsDetached(TorchFunctionMode):
    """`tensor.data` as `tensor.detach()`, which is the same to all but autograd's checks; torch.export fails on the former."""

    def __torch_function__(self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None) -> Any:
        del types
        if func == _READ_DATA and isinstance(args[0], Tensor):
            return args[0].detach()
        return func(*args, **(kwargs or {}))


_READ_DATA = torch.Tensor.data.__get__  # type: ignore[attr-defined]


@contextmanager
def _quiet() -> Iterator[None]:
    """torch.export logs and prints half-made graphs when it fails; what it raises says enough.

    It warns of attributes that forward() sets; whether that matters is seen when the lifted network is compared.
    """
    with quiet_loggers(), redirect_stderr(io.StringIO()), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The tensor attribute")
        yield


def _accept_any_layout(graph: fx.Graph) -> None:
    """A view asks for strides as the capture met them; a reshape gives the same values for channels_last, too.

    Nothing writes through a view any more, so it does not matter which of them are copies.
    """
    for node in graph.nodes:
        if node.target in (torch.ops.aten.view.default, torch.ops.aten._unsafe_view.default):
            node.target = torch.ops.aten.reshape.default


def _strip_guards(graph: fx.Graph) -> None:
    """Shape guards and assertions go: the check of the lifted module against the original stands in for them."""
    for node in reversed(graph.nodes):
        named = operator_name(node.target)
        guard = node.op == "call_module" and str(node.target).startswith("_guards")
        if (guard or named.startswith(("_assert", "sym_constrain"))) and not node.users:
            graph.erase_node(node)
    graph.eliminate_dead_code()
