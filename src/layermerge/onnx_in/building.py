"""Building: the nodes of a file, one by one, as steps of a module.

In: a checked ModelProto and the shapes of example inputs. Out: an `OnnxNetwork`. What is constant is computed here, by the
same functions that a step would call. Every step is tried on tensors without values first, so that the shape of all that
would be computed is known before any memory is taken: no shape that a file asks for is believed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from layermerge.errors import LayerMergeError, ModelError, first_line
from layermerge.onnx_in import arrays, sizes
from layermerge.onnx_in.layers import LayerCall
from layermerge.onnx_in.names import Names
from layermerge.onnx_in.network import Held, OnnxNetwork, Step, Value
from layermerge.onnx_in.operators import CONVERTED, TABLE, Operator
from layermerge.onnx_in.patterns import Found, find_patterns
from layermerge.onnx_in.reading import import_onnx, named, shown
from layermerge.tracing.file_interface import FileInterface

MOST_VALUES = 1 << 29
"""Of one tensor: 2 GB in float32."""
MOST_FOLDED = 1 << 27
"""Of all constants that are computed: 512 MB."""
_KNOWN_TYPES = {
    torch.float32,
    torch.float64,
    torch.int64,
    torch.int32,
    torch.int16,
    torch.int8,
    torch.uint8,
    torch.bool,
}


def require_known_operators(model: Any, place: str) -> None:
    """Before anything is made of a file: every operator without a row, by its first node."""
    unknown = {node.op_type: node for node in reversed(model.graph.node) if node.op_type not in {*TABLE, *CONVERTED}}
    if unknown:
        *_, first = unknown.values()
        others = sorted(set(unknown) - {first.op_type})
        more = f", nor can {shown(', '.join(others))}" if others else ""
        raise ModelError(f"{place}: {named(first)} cannot be read{more}; layermerge reads {len(TABLE)} others")


def build(model: Any, interface: FileInterface, shapes: Sequence[Sequence[int]], place: str) -> OnnxNetwork:
    """The network, tried at these shapes of its inputs."""
    return _Builder(model, interface, shapes, place).network()


class _Builder:
    """What is known of each value of the file while its nodes are read in order.

    Functions are tried on copies without values: what has values would be computed even in a mode for trying.
    """

    def __init__(self, model: Any, interface: FileInterface, shapes: Sequence[Sequence[int]], place: str) -> None:
        self.graph, self.interface, self.place = model.graph, interface, place
        self.mode = FakeTensorMode(allow_non_fake_inputs=True)
        self.batch = shapes[0][0]
        self.names = Names()
        self.constants: dict[str, Tensor] = {}
        self.tried: dict[str, Any] = {}
        """By name, what is computed when the network runs: a tensor without values, or sizes."""
        self.args: dict[str, Any] = {}
        """By name, how a step reads it."""
        self.layers: dict[str, nn.Module] = {}
        self.known_layers: dict[Any, str] = {}
        self.buffers: dict[str, Tensor] = {}
        self.held: dict[str, Held] = {}
        self.steps: list[Step] = []
        self.folded = 0
        self._read_inputs(shapes)
        for tensor in self.graph.initializer:
            self.constants[tensor.name] = self._tensor(tensor)

    def _read_inputs(self, shapes: Sequence[Sequence[int]]) -> None:
        types = {each.name: each.type.tensor_type.elem_type for each in self.graph.input}
        for port, shape in zip(self.interface.inputs, shapes, strict=True):
            if types[port.name] not in (1, 7):
                kind = import_onnx().TensorProto.DataType.Name(types[port.name]).lower()
                raise ModelError(f"{self.place}: input '{shown(port.name)}' is {kind}; export the network in float32")
            dtype = torch.float32 if types[port.name] == 1 else torch.int64
            with self.mode:
                self.tried[port.name] = self._bounded(torch.empty(*shape, dtype=dtype))
            self.args[port.name] = Value(port.name)

    def network(self) -> OnnxNetwork:
        nodes = list(self.graph.node)
        results = [port.name for port in self.interface.outputs]
        patterns = find_patterns(nodes, self._numbers(nodes), results)
        within = {index for found in patterns.values() for index in found.nodes}
        self.readers = Counter([*(name for node in nodes for name in node.input), *results])
        for index, node in enumerate(nodes):
            if index in within and index not in patterns:
                continue
            try:
                self._read(node, patterns.get(index))
            except LayerMergeError:
                raise
            except Exception as error:  # whatever torch makes of what the file asks for
                raise ModelError(f"{self.place}: {named(node)} cannot be read: {first_line(error)}") from error
        returned = [self._argument(name) for name in results]
        return OnnxNetwork(self.interface, self.layers, self.buffers, self.steps, returned)

    # -- nodes

    def _read(self, node: Any, pattern: Found | None) -> None:
        if pattern is not None:
            self._add(TABLE[pattern.kind].of_maps, [self.args[pattern.source]], [self.tried[pattern.source]], node)
            return
        if node.op_type == "Constant":
            self.constants[node.output[0]] = self._constant(node)
            return
        row, attributes = TABLE[node.op_type], self._attributes(node)
        inputs = list(node.input)
        while inputs and not inputs[-1]:
            inputs.pop()
        extra = [name for name in node.output[1:] if name and self.readers[name]]
        if extra and not row.counts_outputs:
            raise ValueError(f"its output '{shown(extra[0])}' is used, which is not computed")
        if row.counts_outputs:
            attributes["outputs"] = len(node.output)
        moving = [name for name in inputs if name and name not in self.constants]
        if row.same:
            self._alias(node.output[0], inputs[0])
        elif not moving:
            self._fold(row, node, inputs, attributes)
        elif all(self._is_sizes(name) for name in moving):
            self._add_sizes(row, node, inputs, attributes)
        elif not self._add_layer(row, node, inputs, attributes):
            self._add_function(row, node, inputs, attributes)

    def _alias(self, name: str, source: str) -> None:
        if source in self.constants:
            self.constants[name] = self.constants[source]
        else:
            self.tried[name], self.args[name] = self.tried[source], self.args[source]

    def _fold(self, row: Operator, node: Any, inputs: Sequence[str], attributes: dict[str, Any]) -> None:
        """Computes what is constant; its shape first."""
        function = self._function(row, attributes)
        given = [self._plain(row, place, name) for place, name in enumerate(inputs)]
        without = [self.mode.from_tensor(each) if isinstance(each, Tensor) else each for each in given]
        with self.mode, torch.no_grad():
            tried = function(*without)
        for each in tried if isinstance(tried, tuple) else (tried,):
            self.folded += each.size if isinstance(each, np.ndarray) else self._bounded(each).numel()
        if self.folded > MOST_FOLDED:
            raise ModelError(
                f"{self.place} computes constants of more than {MOST_FOLDED:,} values; no more are computed"
            )
        with torch.no_grad():
            result = function(*given)
        for name, value in zip(node.output, result if isinstance(result, tuple) else (result,), strict=False):
            self.constants[name] = torch.from_numpy(value.astype(np.int64)) if isinstance(value, np.ndarray) else value

    def _plain(self, row: Operator, place: int, name: str) -> Any:
        if not name:
            return None
        constant = self.constants[name]
        if place in row.ints or place in row.floats:
            return tuple(constant.reshape(-1).tolist())
        return constant

    def _add_sizes(self, row: Operator, node: Any, inputs: Sequence[str], attributes: dict[str, Any]) -> None:
        """Arithmetic on sizes; where there is none of it, a function that takes them as whole numbers."""
        if row.of_sizes is None:
            self._add_function(row, node, inputs, attributes)
            return
        args, tried = list[Any](), list[Any]()
        for place, name in enumerate(inputs):
            whole = place in row.ints
            if not name or name in self.constants:
                constant = self._plain(row, place, name) if whole or not name else self.constants[name].numpy()
                value = constant if whole or not name else constant.astype(object)
                args.append(value)
                tried.append(value)
            else:
                self._append_moving(name, args, tried, convert=sizes.as_ints if whole else None)
        self._add(partial(row.of_sizes, **attributes), args, tried, node)

    def _append_moving(
        self, name: str, args: list[Any], tried: list[Any], convert: Callable[[Any], Any] | None = None
    ) -> None:
        """An argument that is computed when the network runs; by a step of its own where it has to be converted."""
        if convert is None:
            args.append(self.args[name])
            tried.append(self.tried[name])
            return
        made = f"{name}:{convert.__name__}"
        if made not in self.args:
            self.steps.append(Step(convert, (self.args[name],), (made,)))
            self.args[made], self.tried[made] = Value(made), convert(self.tried[name])
        args.append(self.args[made])
        tried.append(self.tried[made])

    def _add_layer(self, row: Operator, node: Any, inputs: Sequence[str], attributes: dict[str, Any]) -> bool:
        """Whether it became a module that owns its weights."""
        source = inputs[0]
        if row.layer is None or source in self.constants or self._is_sizes(source):
            return False
        constants = tuple(self.constants.get(name) for name in inputs)
        if any(name and constant is None for name, constant in zip(inputs[1:], constants[1:], strict=True)):
            if row.of_maps is None:
                raise ValueError("its weights are computed in the network; only constant ones can be read")
            return False
        layer = row.layer(LayerCall(tuple(self.tried[source].shape), constants, attributes))
        if layer is None:
            if row.of_maps is None:
                raise ValueError("this form of it is not supported")
            return False
        key = (node.op_type, tuple(inputs[1:]), repr(sorted(attributes.items())))
        if key not in self.known_layers:
            path = self.names.layer(node, inputs[1])
            self.known_layers[key], self.layers[path] = path, layer.module
        path, arg, tried = self.known_layers[key], self.args[source], self.tried[source]
        if layer.before is not None:
            padded = f"{node.output[0]}:padded"
            tried = self._step(layer.before, [arg], [tried], (padded,))
            arg = Value(padded)
        self._add(path, [arg], [tried], node)
        return True

    def _add_function(self, row: Operator, node: Any, inputs: Sequence[str], attributes: dict[str, Any]) -> None:
        function = self._function(row, attributes)
        if node.op_type == "Reshape" and self._fixes_batch(inputs):
            function = arrays.reshape_batch
        args, tried = list[Any](), list[Any]()
        ranks = [self.tried[name].ndim for name in inputs if name in self.tried]
        for place, name in enumerate(inputs):
            if name and name not in self.constants:
                self._append_moving(name, args, tried, self._conversion(row, place, name))
                continue
            value = self._given(row, place, name, max(ranks, default=0))
            args.append(value)
            tried.append(self.buffers[value.path] if isinstance(value, Held) else value)
        self._add(function, args, tried, node)

    def _conversion(self, row: Operator, place: int, name: str) -> Callable[[Any], Any] | None:
        if not self._is_sizes(name):
            if place in row.ints or place in row.floats:
                raise ValueError(
                    f"its input '{shown(name)}' follows from the values of feature maps, so no shape is known"
                )
            return None
        if place in row.floats:
            return sizes.as_floats
        return sizes.as_ints if place in row.ints else sizes.as_number

    def _given(self, row: Operator, place: int, name: str, rank: int) -> Any:
        """A constant as an argument: numbers as they are, tensors as buffers of the network."""
        if not name or place in row.ints or place in row.floats:
            return self._plain(row, place, name)
        constant = self.constants[name]
        if constant.numel() == 1 and (constant.dim() == 0 or (row.numbers and constant.dim() <= rank)):
            return constant.item()
        if name not in self.held:
            path = self.names.constant(name)
            self.held[name], self.buffers[path] = Held(path), constant.contiguous().clone()
        return self.held[name]

    def _fixes_batch(self, inputs: Sequence[str]) -> bool:
        """Whether a constant shape begins with the one batch size that the file takes, and the map with the one tried."""
        fixed = self.interface.batch
        if fixed is None or inputs[1] not in self.constants:
            return False
        wanted, shape = self.constants[inputs[1]].reshape(-1).tolist(), self.tried[inputs[0]].shape
        return len(shape) > 0 and shape[0] == self.batch and wanted[:1] == [fixed]

    # -- steps

    def _add(self, run: Any, args: Sequence[Any], tried: Sequence[Any], node: Any) -> None:
        gives = tuple(name or f"{node.output[0]}:{place}" for place, name in enumerate(node.output))
        row = TABLE[node.op_type]
        results = self._step(run, args, tried, gives if row.counts_outputs else gives[:1])
        del results

    def _step(self, run: Any, args: Sequence[Any], tried: Sequence[Any], gives: tuple[str, ...]) -> Any:
        """Adds a step once it has been tried on tensors without values."""
        called = self.layers[run] if isinstance(run, str) else run
        without = [self.mode.from_tensor(each) if isinstance(each, Tensor) else each for each in tried]
        with self.mode, torch.no_grad():
            result = called(*without)
        several = result if len(gives) > 1 else (result,)
        for name, value in zip(gives, several, strict=True):
            if isinstance(value, (bool, int, float, torch.SymInt)):
                value = sizes.as_sizes(value)
            if isinstance(value, np.ndarray) and value.size > sizes.MOST:
                raise ValueError(f"it computes more than {sizes.MOST:,} sizes")
            self.tried[name] = self._bounded(value) if isinstance(value, Tensor) else value
            self.args[name] = Value(name)
        self.steps.append(Step(run, tuple(args), gives))
        return result

    def _bounded(self, tensor: Tensor) -> Tensor:
        if tensor.numel() > MOST_VALUES:
            raise ModelError(
                f"{self.place} computes a tensor of shape {list(tensor.shape)}; at most {MOST_VALUES:,} values are computed"
            )
        return tensor

    def _function(self, row: Operator, attributes: Mapping[str, Any]) -> Callable[..., Any]:
        if row.of_maps is None:
            raise ValueError(
                "all its inputs are constants, or its weights are computed; only layers of maps can be read"
            )
        return partial(row.of_maps, **attributes) if attributes else row.of_maps

    def _is_sizes(self, name: str) -> bool:
        return not isinstance(self.tried[name], Tensor)

    def _argument(self, name: str) -> Any:
        if name in self.constants:
            self.buffers.setdefault(path := self.names.constant(name), self.constants[name])
            return Held(path)
        if self._is_sizes(name):
            raise ModelError(
                f"{self.place}: output '{shown(name)}' is a size, not a feature map; leave it out of the file"
            )
        return self.args[name]

    # -- constants

    def _attributes(self, node: Any) -> dict[str, Any]:
        onnx = import_onnx()
        found: dict[str, Any] = {}
        for each in node.attribute:
            value = onnx.helper.get_attribute_value(each)
            if isinstance(value, bytes):
                value = value.decode("utf-8", "replace")
            elif isinstance(value, onnx.TensorProto):
                value = self._tensor(value).numpy()
            found[each.name] = list(value) if isinstance(value, Sequence) and not isinstance(value, str) else value
        return found

    def _constant(self, node: Any) -> Tensor:
        ((kind, value),) = self._attributes(node).items()
        if kind in ("value_int", "value_ints"):
            return torch.tensor(value, dtype=torch.int64)
        return torch.from_numpy(value) if isinstance(value, np.ndarray) else torch.tensor(value, dtype=torch.float32)

    def _tensor(self, tensor: Any) -> Tensor:
        onnx = import_onnx()
        array = np.array(onnx.numpy_helper.to_array(tensor))
        try:
            found = torch.from_numpy(array)
        except TypeError:
            found = torch.empty(0, dtype=torch.float16)
        if found.dtype not in _KNOWN_TYPES:
            kind = onnx.TensorProto.DataType.Name(tensor.data_type).lower()
            raise ModelError(f"{self.place}: tensor '{shown(tensor.name)}' is {kind}; export the network in float32")
        return found

    def _numbers(self, nodes: Sequence[Any]) -> dict[str, float]:
        """The constants of one value, for patterns."""
        found = {name: tensor for name, tensor in self.constants.items() if tensor.numel() == 1}
        for node in nodes:
            if node.op_type == "Constant":
                tensor = self._constant(node)
                found |= {node.output[0]: tensor} if tensor.numel() == 1 else {}
        return {name: float(tensor.item()) for name, tensor in found.items()}
