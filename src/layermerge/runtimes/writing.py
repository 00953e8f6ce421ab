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
from torch import nn
from torch.utils import _pytree as pytree

from layermerge.errors import ArtifactError, first_line, require_package
from layermerge.runtimes.onnx_workarounds import keep_padding_before_pooling, with_plain_attention
from layermerge.tracing.file_interface import file_interface_of
from layermerge.tracing.inputs import Inputs
from layermerge.tracing.quiet import quiet_loggers
from layermerge.tracing.uninterrupted import uninterrupted


def for_serving(module: nn.Module) -> nn.Module:
    """A copy in eval mode without the hooks that translate calls: the file has one signature.

    Weights are laid out as usual: of a network that was trained channels last, exporters write what its strides mean, a dozen
    nodes that take a twentieth of a small network's time.
    """
    served = copy.deepcopy(module).eval()
    served.to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]
    served._forward_pre_hooks.clear()
    served._forward_hooks.clear()
    return served


def run_once(module: nn.Module, inputs: Inputs) -> Any:
    with torch.no_grad():
        return module(*inputs.cloned().args, **inputs.cloned().kwargs)


def write_onnx(module: nn.Module, path: Path, inputs: Inputs) -> None:
    """Writes the ONNX file; the batch size is free, and so are height and width where the inputs say so."""
    require_package("onnxscript", "exporting to ONNX", "layermerge[export]")
    taken, given = list(bound_names(module, inputs)), _output_names(module, inputs)
    free = inputs.resized(max(2, inputs.batch))
    try:
        with quiet():
            program: Any = torch.onnx.export(
                with_plain_attention(module),
                free.args,
                kwargs=dict(free.kwargs),
                input_names=taken,
                output_names=given,
                dynamic_shapes=_named_shapes(module, free),
                dynamo=True,
                verbose=False,
            )
        with quiet():  # again: an interrupt that the exporter swallowed has been raised by now
            keep_padding_before_pooling(program.model)
            program.save(path, external_data=False)
    except torch.onnx.OnnxExporterError as error:
        raise ArtifactError(
            f"torch cannot write this network as ONNX: {first_line(error.__cause__ or error)}; nothing written, try .pt2"
        ) from error


def bound_names(module: nn.Module, inputs: Inputs) -> dict[str, Any]:
    """Inputs by their names in the file: those of the file that the network was read from, or else of its forward()."""
    known = file_interface_of(module)
    if known is None:
        return inputs.bound_to(module)
    return {port.name: tensor for port, tensor in zip(known.inputs, inputs.tensors, strict=True)}


def _output_names(module: nn.Module, inputs: Inputs) -> list[str]:
    known = file_interface_of(module)
    if known is not None:
        return [port.name for port in known.outputs]
    count = len(pytree.tree_leaves(run_once(module, inputs)))
    return [f"output_{index}" if count > 1 else "output" for index in range(count)]


def write_onnx_quickly(module: nn.Module, path: Path, inputs: Inputs) -> None:
    """The TorchScript exporter: 30 times faster than the other on graphs of a few operators, and the same file for those."""
    with quiet(), torch.no_grad():
        torch.onnx.export(module, inputs.args, str(path), dynamo=False)


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
    with uninterrupted(), warnings.catch_warnings(), quiet_loggers(logging.WARNING):
        warnings.simplefilter("ignore")
        yield
