"""From ONNX: a file in, a module out that can be traced, checked against onnxruntime on the file."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from layermerge.arguments import Count, FilePath, checked
from layermerge.errors import LayerMergeError, ModelError, first_line, require_package
from layermerge.onnx_in.building import build, require_known_operators
from layermerge.onnx_in.interface import interface_of
from layermerge.onnx_in.network import OnnxNetwork
from layermerge.onnx_in.reading import import_onnx, read_model, require_valid, shown
from layermerge.tracing.file_interface import FileInterface, Port
from layermerge.tracing.outputs import runtime_difference
from layermerge.tracing.quiet import quiet_loggers

TOLERANCE = 1e-4
"""Of the largest value of an output: what two runtimes may differ by in float32."""
OPSET = 21
"""The version of operators that files are brought to."""
_SIDES = (64, 224, 48, 32, 320, 640)
"""Height and width to try where the file leaves them free."""
_SEED = 20240721
_WHOLE_NUMBERS = {"tensor(int64)": torch.int64, "tensor(int32)": torch.int32, "tensor(uint8)": torch.uint8}
_LARGEST = 8
"""Whole numbers are tried below this, since they may be indices."""


@checked(ModelError)
def from_onnx(file: FilePath, input_shape: Sequence[Count] | None = None) -> OnnxNetwork:
    """Reads a network from an ONNX file: a module with its weights under readable names, in eval mode.

    It is compared with onnxruntime on the file, at two batch sizes, to 1e-4 of the largest output (or 5e-7, where outputs are
    tiny), and refused if it differs. A file with a fixed batch size becomes a network for any, which is compared image by
    image. `input_shape` is without the batch, such as (3, 224, 224): at which height and width to compare where the file
    leaves them free. Only operators of a fixed table are run; one that is not in the table is named in the error.
    """
    path = Path(file)
    place = f"'{path}'"
    model = read_model(path)
    interface = interface_of(model, place)
    require_known_operators(model, place)
    require_valid(model, place)
    served = model.SerializeToString()
    converted = _converted(model, place)
    require_known_operators(converted, place)
    with quiet_loggers():  # torch logs a traceback for every call that it cannot try; what is raised says enough
        network, shapes = _built(converted, interface, _shapes(interface, input_shape, place), place)
        _verify(network, served, shapes, place)
    return network


def _converted(model: Any, place: str) -> Any:
    """The file with its operators brought to one version; newer ones are read as they are."""
    onnx = import_onnx()
    version = max(opset.version for opset in model.opset_import if opset.domain in ("", "ai.onnx"))
    if version >= OPSET:
        return model
    try:
        return onnx.version_converter.convert_version(model, OPSET)
    except Exception as error:  # whatever the converter raises
        raise ModelError(f"{place} cannot be brought from opset {version} to {OPSET}: {first_line(error)}") from None


# -- shapes to try


def _shapes(interface: FileInterface, given: Sequence[int] | None, place: str) -> Iterator[tuple[tuple[int, ...], ...]]:
    """Shapes of the inputs, at a batch size that the file does not have written in."""
    batch = 2 if interface.batch is None else interface.batch + 2
    if given is not None and len(interface.inputs) > 1:
        raise ModelError(f"{place} has {len(interface.inputs)} inputs; input_shape is for networks of one")
    if given is not None:
        yield ((batch, *_checked_shape(interface.inputs[0], tuple(given), place)),)
        return
    free = any(port.is_free(axis) for port in interface.inputs for axis in range(1, len(port.axes or ())))
    for side in _SIDES if free else _SIDES[:1]:
        yield tuple(_shape(port, batch, side, place) for port in interface.inputs)


def _shape(port: Port, batch: int, side: int, place: str) -> tuple[int, ...]:
    if port.axes is None:
        raise ModelError(f"{place} does not say the shape of input '{shown(port.name)}'; give it as input_shape")
    return (batch, *(axis if isinstance(axis, int) else side for axis in port.axes[1:]))


def _checked_shape(port: Port, given: tuple[int, ...], place: str) -> tuple[int, ...]:
    axes = port.axes[1:] if port.axes is not None else given
    pairs = zip(axes, given, strict=False)
    if len(axes) != len(given) or not all(isinstance(axis, str) or axis == size for axis, size in pairs):
        wanted, said = ("x".join(map(str, sizes)) for sizes in (axes, given))
        raise ModelError(f"{place}: input '{shown(port.name)}' is {wanted}, not {said}; give a shape that fits")
    return given


def _built(
    model: Any, interface: FileInterface, shapes: Iterator[tuple[tuple[int, ...], ...]], place: str
) -> tuple[OnnxNetwork, tuple[tuple[int, ...], ...]]:
    """The network, at the first shapes that it can be tried at."""
    failures: list[LayerMergeError] = []
    for each in shapes:
        try:
            return build(model, interface, each, place), each
        except ModelError as error:
            failures.append(error)
    if len(failures) > 1:
        advice = "; if it needs a certain height and width, give them as input_shape"
        raise ModelError(f"{failures[0]}{advice}") from failures[0]
    raise failures[0]


# -- the check


def _verify(network: OnnxNetwork, served: bytes, shapes: Sequence[tuple[int, ...]], place: str) -> None:
    """The network and the file on the same inputs, at two batch sizes; the file image by image where it takes no others."""
    runtime = require_package("onnxruntime", "checking an ONNX file", "layermerge[export]")
    options = runtime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 4
    try:
        session = runtime.InferenceSession(served, options, providers=["CPUExecutionProvider"])
        for batch in (shapes[0][0], shapes[0][0] + 1):
            kinds = {each.name: each.type for each in session.get_inputs()}
            ports = zip(network.file_interface.inputs, shapes, strict=True)
            inputs = [
                _random((batch, *shape[1:]), number, kinds.get(port.name)) for number, (port, shape) in enumerate(ports)
            ]
            expected = _answers(session, network.file_interface, inputs)
            _compare(network, inputs, expected, place)
    except LayerMergeError:
        raise
    except Exception as error:  # whatever onnxruntime or torch raise
        raise ModelError(f"{place} does not run: {first_line(error)}") from error


def _random(shape: tuple[int, ...], number: int, kind: str | None) -> Tensor:
    generator = torch.Generator().manual_seed(_SEED + number)
    if kind in _WHOLE_NUMBERS:  # such as a time step, or an index
        return torch.randint(0, _LARGEST, shape, generator=generator, dtype=_WHOLE_NUMBERS[kind])
    return torch.randn(*shape, generator=generator)


def _answers(session: Any, interface: FileInterface, inputs: Sequence[Tensor]) -> list[Tensor]:
    """What the file gives; in parts of its one batch size, put together again, where it has one."""
    batch = len(inputs[0])
    step = interface.batch or batch
    parts = []
    for start in range(0, batch, step):
        # The last part may overlap the one before it: what it has in common is left out below.
        first = min(start, batch - step)
        feed = {
            port.name: given[first : first + step].numpy() for port, given in zip(interface.inputs, inputs, strict=True)
        }
        outputs = session.run([port.name for port in interface.outputs], feed)
        parts.append([torch.from_numpy(np.asarray(output))[start - first :] for output in outputs])
    return [torch.cat(column) for column in zip(*parts, strict=True)]


def _compare(network: OnnxNetwork, inputs: Sequence[Tensor], expected: Sequence[Tensor], place: str) -> None:
    actual = _run(network, inputs)
    for number, (port, theirs) in enumerate(zip(network.file_interface.outputs, expected, strict=True)):
        apart = runtime_difference(theirs, actual[number].to(theirs.dtype))
        if not apart <= TOLERANCE:
            raise ModelError(
                f"{place} cannot be read faithfully: output '{shown(port.name)}' differs from onnxruntime's by {apart:.1e} "
                f"at batch size {len(inputs[0])}; please report it"
            )


def _run(network: OnnxNetwork, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        outputs = network(*inputs)
    return outputs if isinstance(outputs, tuple) else (outputs,)
