"""Export: a network as a file that others can run, compared with the torch module before it is kept.

`.onnx` (for onnxruntime, OpenVINO and TensorRT), `.pt2` (torch.export) or `.safetensors` (weights). The batch size is
free, and so are height and width of a network that was traced so.
"""

from __future__ import annotations

import copy
import importlib.util
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from layermerge.arguments import FilePath, checked
from layermerge.errors import ArtifactError, first_line
from layermerge.files import write_files
from layermerge.runtimes.base import RuntimeSettings
from layermerge.runtimes.labelling import label_like
from layermerge.runtimes.onnx_file import OnnxRuntimeBase
from layermerge.runtimes.onnx_runtime import OnnxRuntime
from layermerge.runtimes.openvino_runtime import OpenVino
from layermerge.runtimes.writing import bound_names, for_serving, quiet, run_once, write_onnx
from layermerge.tracing.file_interface import file_interface_of
from layermerge.tracing.inputs import Inputs
from layermerge.tracing.lift import LiftedModule
from layermerge.tracing.outputs import relative_difference, runtime_difference
from layermerge.tracing.verify_sizes import other_sizes

TOLERANCE = 1e-4
_ROUNDING_FACTOR = 10
"""Of the network's own rounding, where that is larger: two orders of summation may be so far apart, both right."""
_MOST = 1e-2
"""Whatever the network's own rounding."""


@checked(ArtifactError)
def export(module: nn.Module, path: FilePath, example_inputs: Any) -> Path:
    """Exports a network in eval mode; the kind of file follows from the suffix.

    Nothing is written unless the file's own outputs agree with the module's to 1e-4 relative (or ten times as far as the module
    itself is from float64, as where steep logits end in a sigmoid; 0.01 at most), at two batch sizes, and at other heights and
    widths where those are free. A network that was read from an ONNX file keeps its names of inputs and outputs, its metadata
    and its free axes; where it takes batches of one size only, so does the new file.
    """
    target = Path(path)
    writers = {".onnx": _write_checked_onnx, ".pt2": _write_pt2, ".safetensors": _write_safetensors}
    if target.suffix not in writers:
        raise ArtifactError(f"cannot export to '{target.name}'; give a name that ends in {', '.join(writers)}")
    inputs = Inputs.of(example_inputs, free_size=isinstance(module, LiftedModule) and module.free_size)
    served = for_serving(module)
    try:
        run_once(served, inputs)
    except Exception as error:
        raise ArtifactError(
            f"the network does not run on these example inputs: {first_line(error)}; nothing written"
        ) from error
    write_files({target: lambda file: writers[target.suffix](served, file, inputs)})
    return target


def _write_safetensors(module: nn.Module, path: Path, _inputs: Inputs) -> None:
    state = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in module.state_dict().items()}
    save_file(state, path, metadata={"format": "pt"})


def _write_pt2(module: nn.Module, path: Path, inputs: Inputs) -> None:
    free = inputs.resized(max(2, inputs.batch))
    shapes = free.dynamic_shapes(module)
    with quiet():
        program = torch.export.export(module, free.args, dict(free.kwargs), dynamic_shapes=shapes, strict=False)
        torch.export.save(program, path)
        runner = torch.export.load(path).module()
    _compare(module, lambda given: runner(*given.args, **given.kwargs), inputs, "pt2")


def _write_checked_onnx(module: nn.Module, path: Path, inputs: Inputs) -> None:
    runtimes: list[OnnxRuntimeBase] = [OnnxRuntime(RuntimeSettings())]
    if importlib.util.find_spec("openvino"):
        runtimes.append(OpenVino(RuntimeSettings()))
    write_onnx(module, path, inputs)
    known = file_interface_of(module)
    if known is not None:
        label_like(path, known)
    for runtime in runtimes:
        network = runtime.serve_file(path)

        def run(given: Inputs, network: Any = network) -> Any:
            bound = bound_names(module, given)  # of which the file has only what the network reads
            return network(**{name: bound[name] for name in network.names})

        _compare(module, run, inputs, f"ONNX ({runtime.name})", known.batch if known is not None else None)


def _compare(
    module: nn.Module, run: Callable[[Inputs], Any], inputs: Inputs, kind: str, batch: int | None = None
) -> None:
    """At two batch sizes, unless the file takes but one, and at other sizes where those are free."""
    batches = (inputs.resized(batch),) if batch else (inputs, inputs.resized(inputs.batch + 1))
    others = (given.resized(batch) if batch else given for given in other_sizes(module, inputs))
    for given in (*batches, *others):
        expected, actual = _tensors(run_once(module, given)), _tensors(run(given))
        worst = max(runtime_difference(a, b) for a, b in zip(expected, actual, strict=True))
        if not worst <= TOLERANCE and not worst <= _ROUNDING_FACTOR * _own_rounding(module, given, expected):
            raise ArtifactError(
                f"the {kind} file differs from the module by {worst:.1e} at batch size {given.batch}{given.size_text}; "
                "not written"
            )


def _tensors(outputs: Any) -> list[Tensor]:
    return [leaf for leaf in pytree.tree_leaves(outputs) if isinstance(leaf, Tensor)]


def _own_rounding(module: nn.Module, given: Inputs, outputs: Sequence[Tensor]) -> float:
    """How far a network's outputs are from what it computes in float64, as far as that counts; 0 where it cannot."""
    try:
        exact = _tensors(run_once(copy.deepcopy(module).double(), given.in_float64()))
    except (RuntimeError, TypeError):  # of networks that are bound to their dtype
        return 0.0
    pairs = [(a, b) for a, b in zip(exact, outputs, strict=True) if b.is_floating_point()]
    found = max((relative_difference(wide, own.double()) for wide, own in pairs), default=0.0)
    return min(found, _MOST / _ROUNDING_FACTOR) if math.isfinite(found) else 0.0
