"""Small ONNX files that tests make: of one operator, or of a network that torch exports."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import torch
from onnx import helper, numpy_helper
from torch import Tensor, nn

Shape = Sequence[int | str]


def graph_file(
    path: Path,
    nodes: Sequence[Any],
    constants: Mapping[str, Any] | None = None,
    inputs: Mapping[str, Shape] | None = None,
    opset: int = 18,
    **more: Any,
) -> Path:
    """A file of these nodes; the last one's outputs are the file's."""
    ports = [
        helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, list(shape))
        for name, shape in (inputs or {"x": ("N", 4, 6, 6)}).items()
    ]
    gives = more.pop("gives", onnx.TensorProto.FLOAT)
    outputs = [helper.make_tensor_value_info(name, gives, None) for name in nodes[-1].output if name]
    weights = [numpy_helper.from_array(np.asarray(value), name) for name, value in (constants or {}).items()]
    graph = helper.make_graph(list(nodes), "network", ports, outputs, weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=9, **more)
    known = onnx.shape_inference.infer_shapes(model)
    for output, inferred in zip(model.graph.output, known.graph.output, strict=True):
        output.CopyFrom(inferred)
    path.write_bytes(model.SerializeToString())
    return path


def answers(path: Path, *inputs: Tensor) -> list[Any]:
    """What onnxruntime makes of a file, without any of its optimisations."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    names = [port.name for port in session.get_inputs()]
    return list(session.run(None, {name: given.numpy() for name, given in zip(names, inputs, strict=True)}))


def exported(model: nn.Module, path: Path, example: Tensor, *, new: bool, opset: int, **how: Any) -> Path:
    """By torch's old or new exporter, with a free batch size unless said otherwise."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if new:
            shapes = ({0: torch.export.Dim.DYNAMIC},)
            how = {"dynamic_shapes": shapes, "external_data": False, "verbose": False, **how}
        else:
            how = {"input_names": ["x"], "dynamic_axes": {"x": {0: "batch"}}, **how}
        torch.onnx.export(model, (example,), str(path), dynamo=new, opset_version=opset, **how)
    return path


def settled(model: nn.Module) -> nn.Module:
    """In eval mode, its norms with statistics of their own: exporters fold them into convs."""
    generator = torch.Generator().manual_seed(0)
    for module in model.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm) and module.running_mean is not None:
            assert module.running_var is not None
            module.running_mean.normal_(0, 0.1, generator=generator)
            module.running_var.uniform_(0.5, 2, generator=generator)
            module.weight.data.uniform_(0.5, 1.5, generator=generator)
            module.bias.data.normal_(0, 0.1, generator=generator)
    return model.eval()
