"""Equalising: channels of a feature map brought to one range, where the network computes the same to the bit.

One scale serves all channels of a quantised map: of a map whose channels differ a hundredfold, the small ones keep one of
a hundred steps. Merged kernels have such channels. Where a map lies between two convs, a channel divided by a power of two by
the first and multiplied by the second changes nothing but the map. What lies between must not be affected: rectifiers are
not, nor are pooling and padding with zeros; a bound such as ReLU6's is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from layermerge.quantization.network import Layer, Network, Node, channel_maxima
from layermerge.quantization.tensors import (
    Array,
    equalising_scales,
    largest_by_input,
    with_inputs_scaled,
    with_outputs_divided,
)
from layermerge.runtimes.int8_file import Model

_CARRIERS = ("Relu", "LeakyRelu", "PRelu", "MaxPool", "AveragePool", "GlobalAveragePool", "GlobalMaxPool", "Identity")
"""What a channel can be multiplied through by any positive number."""


@dataclass(frozen=True)
class Pair:
    """Two convs, the second of which alone reads what the first gives; and the map that it reads."""

    first: Layer
    second: Layer
    between: str


def equalised(model: Model, feeds: Sequence[Mapping[str, Array]]) -> tuple[Model, int]:
    """The network with the maps between convs equalised, and how many there were to equalise."""
    network = Network(model)
    pairs = pairs_of(network)
    # One after the other along a chain: what the second conv of a pair gives is not changed by it.
    maxima = channel_maxima(model, (pair.between for pair in pairs), feeds)
    changed = sum(_equalise(network, pair, maxima[pair.between]) for pair in pairs)
    return network.model, changed


def _equalise(network: Network, pair: Pair, maxima: Array) -> bool:
    weight = network.array(pair.second.weight)
    depthwise = weight.shape[1] == 1  # then every channel is read by weights that have a scale of their own
    scales = equalising_scales(maxima, None if depthwise else largest_by_input(weight, pair.second.groups))
    if np.all(scales == 1):
        return False
    network.put(pair.second.weight, with_inputs_scaled(weight, pair.second.groups, scales))
    for name in (pair.first.weight, pair.first.bias):
        if name is not None:
            network.put(name, with_outputs_divided(network.array(name), scales))
    return True


def pairs_of(network: Network) -> list[Pair]:
    convs = {layer.node.name: layer for layer in network.layers if layer.node.op_type == "Conv"}
    found = []
    for first in convs.values():
        value = first.node.output[0]
        while (reader := _only_reader(network, value)) is not None:
            if reader.name in convs and reader.input[0] == value:
                found.append(Pair(first, convs[reader.name], value))
                break
            if not _carries(network, reader, value):
                break
            value = reader.output[0]
    return found


def _only_reader(network: Network, value: str) -> Node | None:
    readers = network.readers.get(value, [])
    return readers[0] if len(readers) == 1 and value not in network.outputs else None


def _carries(network: Network, node: Node, value: str) -> bool:
    if node.op_type == "Pad":
        filled = network.constant(node.input[2]) if len(node.input) > 2 and node.input[2] else np.zeros(())
        constant = all(one.s == b"constant" for one in node.attribute if one.name == "mode")
        return constant and filled is not None and not np.any(filled)
    return node.op_type in _CARRIERS and node.input[0] == value and len(node.output) == 1
