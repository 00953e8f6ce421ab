"""Small networks as ONNX models, and what tests read off them without the code under test."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime
import torch
from onnx import numpy_helper
from torch import nn

from layermerge.runtimes.writing import write_onnx_quickly
from layermerge.tracing.inputs import Inputs

Array = npt.NDArray[Any]


def model_of(module: nn.Module, example: torch.Tensor) -> Any:
    """The module as an ONNX model, its initialisers named as its parameters."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "network.onnx"
        write_onnx_quickly(module.eval(), path, Inputs.of(example))
        model = onnx.load(str(path))
    for number, node in enumerate(model.graph.node):
        node.name = node.name or f"{node.op_type}_{number}"
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.shape.dim[0].dim_param = "batch"
    return model


def feeds(model: Any, images: torch.Tensor) -> list[dict[str, Array]]:
    """Images in two batches, by the name of the only input."""
    constants = {tensor.name for tensor in model.graph.initializer}
    (name,) = [value.name for value in model.graph.input if value.name not in constants]
    return [{name: part.numpy()} for part in torch.split(images, -(-len(images) // 2))]


def constants(model: Any) -> dict[str, Array]:
    return {tensor.name: np.array(numpy_helper.to_array(tensor)) for tensor in model.graph.initializer}


def with_weights_of(model: Any, module: nn.Module) -> nn.Module:
    """The module in float64 with the weights and biases that the model has for its convs."""
    found, double = constants(model), module.double()
    for name, part in double.named_modules():
        if isinstance(part, nn.Conv2d):
            kept = {key: torch.from_numpy(found[f"{name}.{key}"]).double() for key in part.state_dict()}
            part.load_state_dict(kept)
    return double


def run(model: Any, images: torch.Tensor) -> Array:
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    (name,) = [given.name for given in session.get_inputs()]
    output: Array = session.run(None, {name: images.numpy()})[0]
    return output


def uneven(module: nn.Sequential, first: str, second: str, factors: torch.Tensor) -> None:
    """Multiplies channels between two convs by factors and takes that back in the second: the network computes the same."""
    before, after = module.get_submodule(first), module.get_submodule(second)
    assert isinstance(before, nn.Conv2d)
    assert isinstance(after, nn.Conv2d)
    with torch.no_grad():
        before.weight.mul_(factors.view(-1, 1, 1, 1))
        if before.bias is not None:
            before.bias.mul_(factors)
        after.weight.div_(factors.view(-1, 1, 1, 1) if after.groups > 1 else factors.view(1, -1, 1, 1))
