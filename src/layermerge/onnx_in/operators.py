"""THE table of ONNX operators that can be read: a new operator is a row.

A row says how an operator is computed: as a layer that owns its weights, as a function of feature maps, and of sizes. What
has no row is refused by its name.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from layermerge.onnx_in import arrays, elementwise, layers, sizes, windows
from layermerge.onnx_in.layers import Layer, LayerCall


@dataclass(frozen=True)
class Operator:
    """A row. Functions take inputs in the operator's order, and attributes by their names."""

    of_maps: Callable[..., Any] | None = None
    ints: tuple[int, ...] = ()
    """Which inputs are whole numbers that have to be known, or to follow from sizes."""
    floats: tuple[int, ...] = ()
    """Which inputs are numbers that have to be known."""
    of_sizes: Callable[..., Any] | None = None
    layer: Callable[[LayerCall], Layer | None] | None = None
    same: bool = False
    """Whether it gives what it is given: the first input is its output."""
    counts_outputs: bool = False
    """Whether the function is told how many outputs the node has."""
    numbers: bool = False
    """Whether a constant of one value may be a plain number, whatever its shape."""


def _reduce(how: str) -> Operator:
    of_sizes = sizes.product if how == "Prod" else None
    return Operator(partial(arrays.reduce_by, how=how), ints=(1,), of_sizes=of_sizes)


def _plain(function: Callable[..., Any]) -> Operator:
    return Operator(function)


def _joined(function: Callable[..., Any], of_sizes: Callable[..., Any] | None = None) -> Operator:
    return Operator(function, of_sizes=of_sizes, numbers=True)


TABLE: dict[str, Operator] = {
    # layers
    "Conv": Operator(layer=layers.conv),
    "ConvTranspose": Operator(layer=layers.conv_transpose),
    "BatchNormalization": Operator(layer=layers.batch_norm),
    "InstanceNormalization": Operator(layer=layers.instance_norm),
    "GroupNormalization": Operator(layer=layers.group_norm),
    "LayerNormalization": Operator(layer=layers.layer_norm),
    "PRelu": Operator(layer=layers.prelu),
    "Gemm": Operator(arrays.gemm, layer=layers.linear),
    "MatMul": Operator(arrays.matmul, layer=layers.matmul),
    "Einsum": _plain(arrays.einsum),
    # activations
    "Relu": _plain(elementwise.relu),
    "Clip": _joined(elementwise.clip, sizes.clip),
    "LeakyRelu": _plain(elementwise.leaky_relu),
    "ThresholdedRelu": _plain(elementwise.thresholded_relu),
    "Elu": _plain(elementwise.elu),
    "Celu": _plain(elementwise.celu),
    "Selu": _plain(elementwise.selu),
    "Sigmoid": _plain(torch.sigmoid),
    "HardSigmoid": _plain(elementwise.hard_sigmoid),
    "HardSwish": _plain(elementwise.hard_swish),
    "Swish": _plain(elementwise.silu),
    "Gelu": _plain(elementwise.gelu),
    "Mish": _plain(elementwise.mish),
    "Softplus": _plain(elementwise.softplus),
    "Softsign": _plain(elementwise.softsign),
    "Tanh": _plain(torch.tanh),
    "Softmax": _plain(arrays.softmax),
    "LogSoftmax": _plain(arrays.log_softmax),
    # functions of one map
    "Abs": _plain(torch.abs),
    "Neg": Operator(torch.neg, of_sizes=sizes.negative),
    "Exp": _plain(torch.exp),
    "Log": _plain(torch.log),
    "Sqrt": _plain(torch.sqrt),
    "Reciprocal": _plain(torch.reciprocal),
    "Erf": _plain(torch.erf),
    "Sign": _plain(torch.sign),
    "Sin": _plain(torch.sin),
    "Cos": _plain(torch.cos),
    "Atan": _plain(torch.atan),
    "Round": _plain(torch.round),
    "Floor": Operator(torch.floor, of_sizes=sizes.floor),
    "Ceil": Operator(torch.ceil, of_sizes=sizes.ceil),
    "Not": _plain(torch.logical_not),
    "Cast": Operator(elementwise.cast, of_sizes=sizes.cast),
    "Identity": Operator(elementwise.identity, of_sizes=sizes.identity, same=True),
    "Dropout": Operator(elementwise.identity, same=True),
    # arithmetic
    "Add": _joined(elementwise.add, sizes.add),
    "Sub": _joined(elementwise.sub, sizes.sub),
    "Mul": _joined(elementwise.mul, sizes.mul),
    "Div": _joined(elementwise.div, sizes.div),
    "Pow": _joined(elementwise.power),
    "Mod": _joined(elementwise.modulo),
    "Min": _joined(elementwise.minimum, sizes.minimum),
    "Max": _joined(elementwise.maximum, sizes.maximum),
    "Sum": _joined(elementwise.total),
    "Mean": _joined(elementwise.average),
    "And": _plain(torch.logical_and),
    "Or": _plain(torch.logical_or),
    "Xor": _plain(torch.logical_xor),
    "Equal": _joined(elementwise.equal, sizes.equal),
    "Greater": _joined(elementwise.greater),
    "GreaterOrEqual": _joined(elementwise.greater_or_equal),
    "Less": _joined(elementwise.less),
    "LessOrEqual": _joined(elementwise.less_or_equal),
    "Where": _joined(elementwise.where, sizes.where),
    # windows
    "MaxPool": _plain(windows.max_pool),
    "AveragePool": _plain(windows.average_pool),
    "GlobalAveragePool": _plain(windows.global_average),
    "GlobalMaxPool": _plain(windows.global_max),
    "LRN": _plain(windows.local_response),
    "LpNormalization": _plain(windows.lp_normalise),
    "Resize": Operator(windows.resize, ints=(3,), floats=(1, 2)),
    "DepthToSpace": _plain(arrays.depth_to_space),
    "SpaceToDepth": _plain(arrays.space_to_depth),
    "Pad": Operator(arrays.pad, ints=(1, 3)),
    # sums
    "ReduceMean": _reduce("Mean"),
    "ReduceSum": _reduce("Sum"),
    "ReduceMax": _reduce("Max"),
    "ReduceMin": _reduce("Min"),
    "ReduceProd": _reduce("Prod"),
    "ReduceL1": _reduce("L1"),
    "ReduceL2": _reduce("L2"),
    "ReduceSumSquare": _reduce("SumSquare"),
    "ArgMax": _plain(arrays.arg_max),
    "CumSum": Operator(arrays.cum_sum, ints=(1,)),
    # shapes
    "Shape": Operator(arrays.shape, of_sizes=sizes.shape),
    "Size": Operator(arrays.size, of_sizes=sizes.size),
    "Reshape": Operator(arrays.reshape, ints=(1,), of_sizes=sizes.reshape),
    "Flatten": _plain(arrays.flatten),
    "Transpose": Operator(arrays.transpose, of_sizes=sizes.transpose),
    "Squeeze": Operator(arrays.squeeze, ints=(1,), of_sizes=sizes.squeeze),
    "Unsqueeze": Operator(arrays.unsqueeze, ints=(1,), of_sizes=sizes.unsqueeze),
    "Expand": Operator(arrays.expand, ints=(1,)),
    "Tile": Operator(arrays.tile, ints=(1,)),
    "ConstantOfShape": Operator(arrays.constant_of_shape, ints=(0,), of_sizes=sizes.constant_of_shape),
    "Range": Operator(arrays.number_range, ints=(0, 1, 2)),
    "Concat": Operator(arrays.concat, of_sizes=sizes.concat),
    "Split": Operator(arrays.split, ints=(1,), counts_outputs=True),
    "Slice": Operator(arrays.slice_of, ints=(1, 2, 3, 4), of_sizes=sizes.slice_of),
    "Gather": Operator(arrays.gather, of_sizes=sizes.gather),
}
CONVERTED = frozenset({"Constant", "Upsample"})
"""Operators that need no row: a value, and what the version converter writes as another."""
