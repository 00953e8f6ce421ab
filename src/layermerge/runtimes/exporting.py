"""Export: a network as a file that others can run, checked against the torch module before it is left in place.

`.onnx` (batch size free; onnxruntime, OpenVINO and TensorRT read it), `.pt2` (torch.export) or `.safetensors` (weights).
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
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
from layermerge.runtimes.onnx_file import OnnxRuntimeBase
from layermerge.runtimes.onnx_runtime import OnnxRuntime
from layermerge.runtimes.openvino_runtime import OpenVino
from layermerge.runtimes.writing import for_serving, quiet, run_once, write_onnx
from layermerge.tracing.capture import Inputs
from layermerge.tracing.outputs import relative_difference

TOLERANCE = 1e-4


@checked(ArtifactError)
def export(module: nn.Module, path: FilePath, example_inputs: Any) -> Path:
    """Exports a network in eval mode; the kind of file follows from the suffix.

    Nothing is written unless the file's own outputs agree with the module's to 1e-4 relative, at two batch sizes.
    """
    target = Path(path)
    writers = {".onnx": _write_checked_onnx, ".pt2": _write_pt2, ".safetensors": _write_safetensors}
    if target.suffix not in writers:
        raise ArtifactError(f"cannot export to '{target.name}'; give a name that ends in {', '.join(writers)}")
    inputs = Inputs.of(example_inputs)
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
    for runtime in runtimes:
        network = runtime.serve_file(path)

        def run(given: Inputs, network: Any = network) -> Any:
            bound = given.bound_to(module)  # of which the file has only what the network reads
            return network(**{name: bound[name] for name in network.names})

        _compare(module, run, inputs, f"ONNX ({runtime.name})")


def _compare(module: nn.Module, run: Callable[[Inputs], Any], inputs: Inputs, kind: str) -> None:
    for batch in (inputs.batch, inputs.batch + 1):
        given = inputs.resized(batch)
        expected = [leaf for leaf in pytree.tree_leaves(run_once(module, given)) if isinstance(leaf, Tensor)]
        actual = [leaf for leaf in pytree.tree_leaves(run(given)) if isinstance(leaf, Tensor)]
        worst = max(relative_difference(a, b) for a, b in zip(expected, actual, strict=True))
        if not worst <= TOLERANCE:
            raise ArtifactError(
                f"the {kind} file differs from the module by {worst:.1e} at batch size {batch}; not written"
            )
