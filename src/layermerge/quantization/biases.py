"""Biases: what rounding weights shifts on average, taken back.

Rounded weights are off by a fixed amount, and feature maps are not zero on average: after a rectifier they are positive. So a
channel of a conv is shifted, by the mean map times what its weights are off, for all images alike. Its bias takes that back.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from layermerge.quantization.network import Layer, Network, mean_maps
from layermerge.quantization.tensors import Array, dequantised, mean_conv_output
from layermerge.runtimes.int8_file import Model


def shifts_of(model: Model, integers: Model, feeds: Sequence[Mapping[str, Array]]) -> dict[str, Array]:
    """By node, by how much the rounding of its weights in `integers`, made from the model, shifts each of its channels."""
    network = Network(model)
    rounded = rounded_weights(integers)
    layers = [layer for layer in network.layers if layer.weight in rounded and _correctable(layer)]
    means = mean_maps(model, (layer.node.input[0] for layer in layers), feeds)
    found = {}
    for layer in layers:
        off = rounded[layer.weight] - network.array(layer.weight).astype(np.float64)
        shift = _mean_output(layer, means[layer.node.input[0]], off)
        if shift is not None:
            found[layer.node.name] = shift
    return found


def with_shifts_taken_back(model: Model, shifts: Mapping[str, Array]) -> Model:
    """The float32 network with biases that make up for what the rounding of its weights will shift."""
    network = Network(model)
    for layer in network.layers:
        shift = shifts.get(layer.node.name)
        if shift is not None:
            before = np.zeros(len(shift)) if layer.bias is None else network.array(layer.bias).astype(np.float64)
            network.put_bias(layer, (before - shift).astype(np.float32))
    return network.model


def rounded_weights(integers: Model) -> dict[str, Array]:
    """By name, the numbers that a quantised network has in place of its weights."""
    network = Network(integers)
    found = {}
    for node in network.model.graph.node:
        if node.op_type != "DequantizeLinear":
            continue
        whole, scale = network.constant(node.input[0]), network.constant(node.input[1])
        if whole is None or scale is None or whole.ndim < 2:
            continue
        zero = network.constant(node.input[2]) if len(node.input) > 2 else None
        axis = next((one.i for one in node.attribute if one.name == "axis"), 1)
        name = node.input[0].removesuffix("_quantized")
        found[name] = dequantised(whole, scale, np.zeros(()) if zero is None else zero, axis)
    return found


def _correctable(layer: Layer) -> bool:
    if layer.node.op_type == "Gemm":
        return not layer.attribute("transA", 0) and layer.attribute("alpha", 1.0) == layer.attribute("beta", 1.0) == 1.0
    return layer.node.op_type == "Conv" and layer.attribute("auto_pad", b"NOTSET") in (b"NOTSET", b"VALID")


def _mean_output(layer: Layer, mean: Array, weight: Array) -> Array | None:
    if layer.node.op_type == "Gemm" and mean.ndim == 1:
        product: Array = (weight if layer.attribute("transB", 0) else weight.T) @ mean
        return product
    if layer.node.op_type != "Conv" or weight.ndim != 4 or mean.ndim != 3:
        return None
    return mean_conv_output(
        mean,
        weight,
        layer.attribute("strides", [1, 1]),
        layer.attribute("pads", [0, 0, 0, 0]),
        layer.attribute("dilations", [1, 1]),
        layer.groups,
    )
