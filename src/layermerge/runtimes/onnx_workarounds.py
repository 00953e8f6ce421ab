"""What torch's ONNX exporter cannot write or onnxruntime gets wrong, and forms of the same that both have right."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import torch
from torch import Tensor, fx, nn

_ATTENTION = torch.ops.aten.scaled_dot_product_attention.default


def with_plain_attention(module: nn.Module) -> nn.Module:
    """Where there is attention, a copy that calls it as torch's exporter knows it."""

    def attending(net: nn.Module) -> list[fx.Node]:
        graphs = [part.graph for part in net.modules() if isinstance(part, fx.GraphModule)]
        return [node for graph in graphs for node in graph.find_nodes(op="call_function", target=_ATTENTION)]

    if not attending(module):
        return module
    copied = copy.deepcopy(module)
    for node in attending(copied):
        node.target = _attention
    for part in copied.modules():
        if isinstance(part, fx.GraphModule):
            part.recompile()
    return copied


def _attention(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None, *args: Any, **options: Any
) -> Tensor:
    """Over four dimensions, the only number that the exporter knows: leading ones become one, with a single head.

    Its result is laid out again: the exporter decides by the layout of one implementation whether a map can be viewed in
    another shape, and then puts another implementation in its place.
    """
    mask = options.pop("attn_mask", mask)
    leading = query.shape[:-2]

    def folded(tensor: Tensor) -> Tensor:
        return tensor.expand(*leading, *tensor.shape[-2:]).flatten(0, -3).unsqueeze(1)

    if len(leading) == 2 or options.get("enable_gqa"):  # which shares heads among heads
        mixed = _ATTENTION(query, key, value, mask, *args, **options)
    else:
        spread = mask if mask is None or mask.dim() == 2 else folded(mask)
        mixed = _ATTENTION(folded(query), folded(key), folded(value), spread, *args, **options)
        mixed = mixed.reshape(*leading, *mixed.shape[-2:])
    return mixed.clone(memory_format=torch.contiguous_format)  # type: ignore[no-any-return]


def keep_padding_before_pooling(model: Any) -> None:
    """Names the axes of zero padding ahead of max pooling, although they are all.

    onnxruntime makes padding part of the pooling after it, where it counts as nothing instead of as zeros: wrong wherever a
    map is negative. It leaves padding with named axes alone.
    """
    from onnxscript import ir

    for node in list(model.graph):
        if node.op_type != "Pad" or all(reader.op_type != "MaxPool" for reader, _ in node.outputs[0].uses()):
            continue
        axes = np.arange(len(node.outputs[0].shape), dtype=np.int64)
        named = ir.val(f"{node.outputs[0].name}_axes", const_value=ir.tensor(axes))
        model.graph.register_initializer(named)
        node.resize_inputs(4)
        node.replace_input_with(3, named)
