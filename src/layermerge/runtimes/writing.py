"""Writing: a module as an ONNX file, unchecked. `exporting` checks what users are given."""

from __future__ import annotations

import copy
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.utils import _pytree as pytree

from layermerge.errors import ArtifactError, first_line, require_package
from layermerge.tracing.inputs import Inputs
from layermerge.tracing.uninterrupted import uninterrupted


def for_serving(module: nn.Module) -> nn.Module:
    """A copy in eval mode without the hooks that translate calls: the file has one signature."""
    served = copy.deepcopy(module).eval()
    served._forward_pre_hooks.clear()
    served._forward_hooks.clear()
    return served


def run_once(module: nn.Module, inputs: Inputs) -> Any:
    with torch.no_grad():
        return module(*inputs.cloned().args, **inputs.cloned().kwargs)


def write_onnx(module: nn.Module, path: Path, inputs: Inputs) -> None:
    """Writes the ONNX file; the batch size is free, and so are height and width where the inputs say so."""
    require_package("onnxscript", "exporting to ONNX", "layermerge[export]")
    names = list(inputs.bound_to(module))
    outputs = pytree.tree_leaves(run_once(module, inputs))
    free = inputs.resized(max(2, inputs.batch))
    try:
        with quiet():
            torch.onnx.export(
                _with_four_dimensions(module),
                free.args,
                path,
                kwargs=dict(free.kwargs),
                input_names=names,
                output_names=[f"output_{index}" if len(outputs) > 1 else "output" for index in range(len(outputs))],
                dynamic_shapes=_named_shapes(module, free),
                dynamo=True,
                external_data=False,
                verbose=False,
            )
    except torch.onnx.OnnxExporterError as error:
        raise ArtifactError(
            f"torch cannot write this network as ONNX: {first_line(error.__cause__ or error)}; nothing written, try .pt2"
        ) from error


def write_onnx_quickly(module: nn.Module, path: Path, inputs: Inputs) -> None:
    """The TorchScript exporter: 30 times faster than the other on graphs of a few operators, and the same file for those."""
    with quiet(), torch.no_grad():
        torch.onnx.export(module, inputs.args, str(path), dynamo=False)


_ATTENTION = torch.ops.aten.scaled_dot_product_attention.default


def _with_four_dimensions(module: nn.Module) -> nn.Module:
    """Torch's exporter knows attention over four dimensions only: where there is any, a copy that has no other."""

    def attending(net: nn.Module) -> list[fx.Node]:
        graphs = [part.graph for part in net.modules() if isinstance(part, fx.GraphModule)]
        return [node for graph in graphs for node in graph.find_nodes(op="call_function", target=_ATTENTION)]

    if not attending(module):
        return module
    copied = copy.deepcopy(module)
    for node in attending(copied):
        node.target = _attention
    for part in copied.modules():
        if isinstance(part, fx.GraphModule):
            part.recompile()
    return copied


def _attention(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None, *args: Any, **options: Any
) -> Tensor:
    """Leading dimensions, of which each is a batch of its own, become one, with a single head."""
    mask = options.pop("attn_mask", mask)
    leading = query.shape[:-2]
    if len(leading) == 2 or options.get("enable_gqa"):  # which shares heads among heads
        return _ATTENTION(query, key, value, mask, *args, **options)  # type: ignore[no-any-return]

    def folded(tensor: Tensor) -> Tensor:
        return tensor.expand(*leading, *tensor.shape[-2:]).flatten(0, -3).unsqueeze(1)

    spread = mask if mask is None or mask.dim() == 2 else folded(mask)
    mixed = _ATTENTION(folded(query), folded(key), folded(value), spread, *args, **options)
    return mixed.reshape(*leading, *mixed.shape[-2:])  # type: ignore[no-any-return]


def _named_shapes(module: nn.Module, inputs: Inputs) -> dict[str, Any]:
    """As `dynamic_shapes`, but what is free must stay so."""

    def name(leaf: Any) -> Any:
        return dict.fromkeys(leaf, torch.export.Dim.DYNAMIC) if leaf is not None else None

    def is_mark(leaf: Any) -> bool:
        return isinstance(leaf, dict) and bool(leaf) and all(isinstance(place, int) for place in leaf)

    shapes: dict[str, Any] = pytree.tree_map(name, inputs.dynamic_shapes(module), is_leaf=is_mark)
    return shapes


@contextmanager
def quiet() -> Iterator[None]:
    """For torch's exporters, which report their progress and internals on several channels; errors still raise."""
    level = logging.root.manager.disable
    with uninterrupted(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        logging.disable(logging.WARNING)
        try:
            yield
        finally:
            logging.disable(level)
