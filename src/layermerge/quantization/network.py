"""Network: an ONNX graph as the passes here need it: which layers have constant weights, who reads what, and their numbers."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from layermerge.quantization.tensors import Array
from layermerge.runtimes.int8_file import WEIGHTED, Model, opset_of

Node = Any
"""An `onnx.NodeProto`."""


@dataclass(frozen=True)
class Layer:
    """A node with constant weights that nothing else reads."""

    node: Node
    weight: str
    bias: str | None

    @property
    def name(self) -> str:
        """As users know it: the module whose weights it has."""
        return self.weight.removesuffix(".weight")

    @property
    def groups(self) -> int:
        return int(self.attribute("group", 1))

    def attribute(self, name: str, default: Any) -> Any:
        import onnx

        found = next((one for one in self.node.attribute if one.name == name), None)
        return default if found is None else onnx.helper.get_attribute_value(found)


class Network:
    """A view of a model; `put` changes the model, which is the network's own copy."""

    def __init__(self, model: Model) -> None:
        self.model = copy.deepcopy(model)

    @cached_property
    def _constants(self) -> dict[str, Any]:
        return {tensor.name: tensor for tensor in self.model.graph.initializer}

    @cached_property
    def readers(self) -> dict[str, list[Node]]:
        """Who reads each value."""
        found: dict[str, list[Node]] = {}
        for node in self.model.graph.node:
            for name in node.input:
                found.setdefault(name, []).append(node)
        return found

    @cached_property
    def outputs(self) -> set[str]:
        return {value.name for value in self.model.graph.output}

    @cached_property
    def layers(self) -> list[Layer]:
        """In the order in which they run; those that share weights are left as they are."""
        return [layer for node in self.model.graph.node if (layer := self._layer(node)) is not None]

    def _layer(self, node: Node) -> Layer | None:
        if node.op_type not in WEIGHTED or len(node.input) < 2 or not self._own(node.input[1]):
            return None
        bias = node.input[2] if len(node.input) > 2 and node.input[2] else None
        return Layer(node, node.input[1], bias) if bias is None or self._own(bias) else None

    def _own(self, name: str) -> bool:
        return name in self._constants and len(self.readers[name]) == 1

    def constant(self, name: str) -> Array | None:
        from onnx import numpy_helper

        return np.array(numpy_helper.to_array(self._constants[name])) if name in self._constants else None

    def array(self, name: str) -> Array:
        found = self.constant(name)
        assert found is not None, "layers have constant weights"
        return found

    def put(self, name: str, array: Array) -> None:
        from onnx import numpy_helper

        self._constants[name].CopyFrom(numpy_helper.from_array(np.ascontiguousarray(array), name))

    def put_bias(self, layer: Layer, bias: Array) -> None:
        """Sets the bias of a layer, which may have had none."""
        from onnx import numpy_helper

        if layer.bias is not None:
            self.put(layer.bias, bias)
            return
        name = f"{layer.weight}_corrected_bias"
        self.model.graph.initializer.append(numpy_helper.from_array(np.ascontiguousarray(bias), name))
        del layer.node.input[2:]
        layer.node.input.append(name)


# -- what its feature maps are like


def channel_maxima(model: Model, names: Iterable[str], feeds: Iterable[Mapping[str, Array]]) -> dict[str, Array]:
    """The largest number, sign aside, of each channel of feature maps, over all images."""
    found: dict[str, Array] = {}
    for name, _, batch in _reduced(model, sorted(set(names)), feeds, "ReduceMax", [0, 2, 3], absolute=True):
        found[name] = np.maximum(found.get(name, batch), batch)
    return found


def mean_maps(model: Model, names: Iterable[str], feeds: Iterable[Mapping[str, Array]]) -> dict[str, Array]:
    """The mean of feature maps over all images."""
    sums: dict[str, Array] = {}
    images: dict[str, int] = {}
    for name, count, batch in _reduced(model, sorted(set(names)), feeds, "ReduceMean", [0], absolute=False):
        sums[name] = sums.get(name, np.zeros(batch.shape)) + batch.astype(np.float64) * count
        images[name] = images.get(name, 0) + count
    return {name: total / images[name] for name, total in sums.items()}


def _reduced(
    model: Model, names: list[str], feeds: Iterable[Mapping[str, Array]], kind: str, axes: list[int], *, absolute: bool
) -> Iterator[tuple[str, int, Array]]:
    """What an operator leaves of feature maps, batch by batch, computed in the graph: maps themselves would fill memory."""
    from onnx import helper, numpy_helper

    watched = copy.deepcopy(model)
    graph = watched.graph
    by_input = opset_of(model) >= 18
    if by_input:
        graph.initializer.append(numpy_helper.from_array(np.array(axes, np.int64), "watched_axes"))
    for name in names:
        read = name
        if absolute:
            read = f"{name}_watched_absolute"
            graph.node.append(helper.make_node("Abs", [name], [read]))
        inputs, options = ([read, "watched_axes"], {}) if by_input else ([read], {"axes": axes})
        graph.node.append(helper.make_node(kind, inputs, [f"{name}_watched"], keepdims=0, **options))
        graph.output.append(helper.make_tensor_value_info(f"{name}_watched", 1, None))
    session = float32_session(watched)
    for feed in feeds:
        count = len(next(iter(feed.values())))
        taken = session.run([f"{name}_watched" for name in names], dict(feed)) if names else []
        yield from ((name, count, np.asarray(one)) for name, one in zip(names, taken, strict=True))


def float32_session(model: Model) -> Any:
    """onnxruntime on a network in memory, with one thread, so that sums do not depend on how many there are."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
