"""Export: a network as a file that others can run, checked against the torch module before it is left in place.

`.onnx` (batch size free; onnxruntime, OpenVINO and TensorRT read it), `.pt2` (torch.export) or `.safetensors` (weights).
"""

from __future__ import annotations

import copy
import importlib.util
import logging
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from layermerge.errors import ArtifactError, first_line
from layermerge.files import write_files
from layermerge.tracing.capture import Inputs
from layermerge.tracing.verify import relative_difference

TOLERANCE = 1e-4


def export(module: nn.Module, path: str | Path, example_inputs: Any) -> Path:
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
        _run(served, inputs)
    except Exception as error:
        raise ArtifactError(
            f"the network does not run on these example inputs: {first_line(error)}; nothing written"
        ) from error
    write_files({target: lambda file: writers[target.suffix](served, file, inputs)})
    return target


def for_serving(module: nn.Module) -> nn.Module:
    """A copy in eval mode without the hooks that translate calls: the file has one signature."""
    served = copy.deepcopy(module).eval()
    served._forward_pre_hooks.clear()
    served._forward_hooks.clear()
    return served


def _write_safetensors(module: nn.Module, path: Path, _inputs: Inputs) -> None:
    state = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in module.state_dict().items()}
    save_file(state, path, metadata={"format": "pt"})


def _write_pt2(module: nn.Module, path: Path, inputs: Inputs) -> None:
    program = _program(module, inputs)
    with quiet():
        torch.export.save(program, path)
        runner = torch.export.load(path).module()
    _compare(module, lambda given: runner(*given.args, **given.kwargs), inputs, "pt2")


def write_onnx(module: nn.Module, path: Path, inputs: Inputs) -> None:
    """Writes the ONNX file, unchecked."""
    _require("onnxscript")
    names = list(inputs.bound_to(module))
    outputs = pytree.tree_leaves(_run(module, inputs))
    free = inputs.resized(max(2, inputs.batch))
    with quiet():
        torch.onnx.export(
            module,
            free.args,
            path,
            kwargs=dict(free.kwargs),
            input_names=names,
            output_names=[f"output_{index}" if len(outputs) > 1 else "output" for index in range(len(outputs))],
            dynamic_shapes=_batch_shapes(module, free),
            dynamo=True,
            external_data=False,
            verbose=False,
        )


def _write_checked_onnx(module: nn.Module, path: Path, inputs: Inputs) -> None:
    runtime = _require("onnxruntime")
    write_onnx(module, path, inputs)
    session = runtime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    taken = [value.name for value in session.get_inputs()]
    _compare(module, _fed(module, taken, lambda feed: session.run(None, feed)), inputs, "ONNX (onnxruntime)")
    if importlib.util.find_spec("openvino"):
        compiled = (
            importlib.import_module("openvino")
            .Core()
            .compile_model(str(path), "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
        )
        read = _fed(module, taken, lambda feed: list(compiled(feed).to_tuple()))
        _compare(module, read, inputs, "ONNX (OpenVINO)")


def _fed(module: nn.Module, taken: list[str], run: Callable[[dict[str, Any]], list[Any]]) -> Callable[[Inputs], Any]:
    """Runs a session by input name, tensors in and out."""

    def feed(given: Inputs) -> Any:
        arrays = {name: value.numpy() for name, value in given.bound_to(module).items() if name in taken}
        return [torch.from_numpy(array.copy()) for array in run(arrays)]

    return feed


def _program(module: nn.Module, inputs: Inputs) -> torch.export.ExportedProgram:
    free = inputs.resized(max(2, inputs.batch))
    return torch.export.export(
        module, free.args, dict(free.kwargs), dynamic_shapes=free.dynamic_shapes(module), strict=False
    )


def _batch_shapes(module: nn.Module, inputs: Inputs) -> dict[str, Any]:
    """As `dynamic_shapes`, with the batch named: that name is what users of the ONNX file see."""

    def name(leaf: Any) -> Any:
        return {0: torch.export.Dim.DYNAMIC} if leaf is not None else None

    def is_mark(leaf: Any) -> bool:
        return isinstance(leaf, dict) and set(leaf) == {0}

    shapes: dict[str, Any] = pytree.tree_map(name, inputs.dynamic_shapes(module), is_leaf=is_mark)
    return shapes


def _run(module: nn.Module, inputs: Inputs) -> Any:
    with torch.no_grad():
        return module(*inputs.cloned().args, **inputs.cloned().kwargs)


def _compare(module: nn.Module, run: Callable[[Inputs], Any], inputs: Inputs, kind: str) -> None:
    for batch in (inputs.batch, inputs.batch + 1):
        given = inputs.resized(batch)
        expected = [leaf for leaf in pytree.tree_leaves(_run(module, given)) if isinstance(leaf, Tensor)]
        actual = [leaf for leaf in pytree.tree_leaves(run(given)) if isinstance(leaf, Tensor)]
        worst = max(relative_difference(a, b) for a, b in zip(expected, actual, strict=True))
        if not worst <= TOLERANCE:
            raise ArtifactError(
                f"the {kind} file differs from the module by {worst:.1e} at batch size {batch}; not written"
            )


@contextmanager
def quiet() -> Iterator[None]:
    """The exporters report their progress and internals on several channels; errors still raise."""
    level = logging.root.manager.disable
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        logging.disable(logging.WARNING)
        try:
            yield
        finally:
            logging.disable(level)


def _require(package: str) -> ModuleType:
    try:
        return importlib.import_module(package)
    except ImportError as error:
        raise ArtifactError(f"{package} is not installed; try: pip install 'layermerge[export]'") from error
