"""Sources: what is to be quantised, as a float32 ONNX network, and images as its inputs.

A module is exported; a file is read, brought to an opset that quantises per channel, and its norms are folded into its convs.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from layermerge.calibration.sample import Sources
from layermerge.errors import ArtifactError, first_line
from layermerge.quantization.examples import Examples, example_for_file, example_for_module
from layermerge.runtimes.int8_file import (
    OLDEST_OPSET,
    WEIGHTED,
    Model,
    input_names,
    is_quantised,
    opset_of,
    quantisation_library,
    quieted,
    read_model,
)
from layermerge.runtimes.writing import for_serving, write_onnx
from layermerge.tracing.inputs import Inputs

_NEWER_OPSET = 17
"""What older files are converted to."""
_FLOAT = 1
"""onnx's `TensorProto.FLOAT`."""


@dataclass(frozen=True)
class Source:
    """A float32 network, an example of its inputs, and images."""

    model: Model
    example: Inputs
    """By position, in the order of the file's inputs."""
    examples: Examples


def read_source(source: nn.Module | str | Path, images: Sources | str | Path, count: int) -> Source:
    quantisation_library()  # says first what is not installed
    if isinstance(source, nn.Module):
        return _from_module(source, images, count)
    path = Path(source)
    if not path.is_file():
        raise ArtifactError(f"'{path}' is not a file; give a module or an ONNX file")
    model = _prepared(read_model(path), path.name)
    shapes = {value.name: _shape(value) for value in model.graph.input if value.name in input_names(model)}
    images, example = example_for_file(shapes, images, count)
    examples = Examples.of(images, example, count, list(shapes))
    return Source(model, _by_position(example, list(shapes)), examples)


def _from_module(module: nn.Module, images: Sources | str | Path, count: int) -> Source:
    images, example = example_for_module(module, images, count)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "float32.onnx"
        served = for_serving(module)
        write_onnx(served, path, example.resized(2))
        model = _prepared(read_model(path), type(module).__name__)
    bound, names = list(example.bound_to(served)), input_names(model)
    if not example.kwargs and names != bound:
        raise ArtifactError(f"the network never reads some of its inputs ({', '.join(bound)}); give them by name")
    return Source(model, _by_position(example, names), Examples.of(images, example, count, names))


def _by_position(example: Inputs, names: list[str]) -> Inputs:
    return Inputs(tuple(example.kwargs[name] for name in names), {}) if example.kwargs else example


def _prepared(model: Model, name: str) -> Model:
    if is_quantised(model):
        raise ArtifactError(f"'{name}' is already quantised; give the float32 network")
    if opset_of(model) < OLDEST_OPSET:
        model = _newer(model, name)
    if any(node.op_type in ("BatchNormalization", "Constant", "Identity") for node in model.graph.node):
        model = _folded(model, name)
    if not any(node.op_type in WEIGHTED for node in model.graph.node):
        raise ArtifactError(f"'{name}' has nothing to quantise: no conv and no linear layer")
    return model


def _newer(model: Model, name: str) -> Model:
    from onnx import version_converter

    try:
        return version_converter.convert_version(model, _NEWER_OPSET)
    except Exception as error:  # the converter's own
        raise ArtifactError(
            f"'{name}' has opset {opset_of(model)}, quantising per channel needs {OLDEST_OPSET}, and onnx cannot convert "
            f"it: {first_line(error)}; export it again"
        ) from error


def _folded(model: Model, name: str) -> Model:
    """Norms folded into convs, and constants into weights, by onnxruntime's own optimisation."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
    options.log_severity_level = 3
    with tempfile.TemporaryDirectory() as folder, quieted():
        target = Path(folder) / "folded.onnx"
        options.optimized_model_filepath = str(target)
        try:
            onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        except Exception as error:  # onnxruntime's own
            raise ArtifactError(f"onnxruntime cannot load '{name}': {first_line(error)}") from error
        return read_model(target)


def _shape(value: Any) -> list[int | None]:
    """What a file says of an input: sizes, None where they are free."""
    if value.type.tensor_type.elem_type != _FLOAT:
        raise ArtifactError(f"input '{value.name}' of the file does not take float32 images")
    return [one.dim_value if one.HasField("dim_value") else None for one in value.type.tensor_type.shape.dim]
