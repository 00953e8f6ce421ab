"""INT8 files: a float32 ONNX network as one of 8-bit integers, by onnxruntime's static quantisation.

In: a network, the ranges of its feature maps on some inputs, what the processor multiplies integers with. Out: the network with
QuantizeLinear and DequantizeLinear around what is to be computed in integers (QDQ), weights per channel, which onnxruntime and
OpenVINO both read. How good the integers are is the business of `quantization`; runtimes time such files with any ranges.
"""

from __future__ import annotations

import copy
import logging
import tempfile
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from torch import Tensor

from layermerge.errors import ArtifactError, first_line, require_package
from layermerge.runtimes.instructions import Instructions
from layermerge.runtimes.onnx_file import Array, as_array
from layermerge.tracing.quiet import quiet_loggers

Model = Any
"""An `onnx.ModelProto`."""
Ranges = Any
"""onnxruntime's `TensorsData`: the smallest and largest number of every feature map."""

OLDEST_OPSET = 13
"""The first in which weights are quantised per channel."""
WEIGHTED = ("Conv", "ConvTranspose", "Gemm", "MatMul")
"""Operators whose weights become integers."""


def quantisation_library() -> Any:
    require_package("onnx", "quantising", "layermerge[export]")
    return require_package("onnxruntime.quantization", "quantising", "layermerge[export]")


def read_model(path: Path) -> Model:
    """A network from a file, with every node named: layers are left out by name."""
    onnx: Any = require_package("onnx", "quantising", "layermerge[export]")
    try:
        model = onnx.load(str(path))
    except Exception as error:  # protobuf's and the system's own
        raise ArtifactError(f"'{path}' cannot be read as ONNX: {first_line(error)}") from error
    if not model.graph.node:
        raise ArtifactError(f"'{path}' is not an ONNX network: it holds no operators")
    taken = {node.name for node in model.graph.node}
    for number, node in enumerate(model.graph.node):
        if not node.name:
            node.name = next(name for name in _names(f"{node.op_type}_{number}") if name not in taken)
            taken.add(node.name)
    return model


def _names(stem: str) -> Iterator[str]:
    yield stem
    yield from (f"{stem}_{number}" for number in range(1, 1 << 20))


def is_quantised(model: Model) -> bool:
    return any(node.op_type in ("QuantizeLinear", "QLinearConv", "DynamicQuantizeLinear") for node in model.graph.node)


def opset_of(model: Model) -> int:
    return next((int(one.version) for one in model.opset_import if one.domain in ("", "ai.onnx")), 0)


def observed_ranges(model: Model, feeds: Iterable[dict[str, Array]]) -> Ranges:
    """The smallest and largest number of every feature map over these inputs."""
    library, onnx = quantisation_library(), require_package("onnx", "quantising", "layermerge[export]")
    with tempfile.TemporaryDirectory() as folder, quieted():
        path = Path(folder) / "float32.onnx"
        onnx.save(model, str(path))
        calibrator = library.create_calibrator(
            path, None, augmented_model_path=str(Path(folder) / "observed.onnx"), extra_options={"symmetric": False}
        )
        calibrator.collect_data(_reader(library, feeds))
        return calibrator.compute_data()


def in_integers(
    model: Model,
    ranges: Ranges,
    instructions: Instructions,
    *,
    left_out: Collection[str] = (),
    per_channel: bool = True,
) -> Model:
    """The network with all operators quantised that onnxruntime knows, but those whose nodes are left out by name."""
    library = quantisation_library()
    integers = library.QuantType.QInt8 if instructions.activations == "int8" else library.QuantType.QUInt8
    with quieted():
        quantizer = library.QDQQuantizer(
            copy.deepcopy(model),
            per_channel,
            instructions.weight_bits == 7,
            library.QuantType.QInt8,
            integers,
            copy.deepcopy(ranges),  # which it adjusts
            [],
            list(left_out),
            list(library.registry.QDQRegistry),
            {},
        )
        quantizer.quantize_model()
        quantizer.model.topological_sort()
        quantizer.model.clean_initializers()  # bounds of activations that became part of a range
    return quantizer.model.model


def write_int8_for_timing(model: Model, target: Path, inputs: Sequence[Tensor], instructions: Instructions) -> None:
    """A file that takes as long as one that was calibrated well: ranges are those of one batch, which may be random."""
    onnx: Any = require_package("onnx", "quantising", "layermerge[export]")
    known = any(node.op_type in WEIGHTED for node in model.graph.node)
    feed = dict(zip(input_names(model), map(as_array, inputs), strict=True))
    onnx.save(in_integers(model, observed_ranges(model, [feed]), instructions) if known else model, str(target))


def input_names(model: Model) -> list[str]:
    constants = {tensor.name for tensor in model.graph.initializer}
    return [value.name for value in model.graph.input if value.name not in constants]


def _reader(library: Any, feeds: Iterable[dict[str, Array]]) -> Any:
    class Reader(library.CalibrationDataReader):  # type: ignore[misc]
        def __init__(self) -> None:
            self.left = iter(feeds)

        def get_next(self) -> dict[str, Array] | None:
            return next(self.left, None)

    return Reader()


def quieted() -> AbstractContextManager[None]:
    """onnxruntime's quantiser advises on its log what is done here anyway."""
    return quiet_loggers(logging.WARNING)
