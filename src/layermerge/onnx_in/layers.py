"""Operators with weights, as modules of torch.nn that own them: convolution, norms, linear, PReLU.

In: a call whose weights are constants. Out: the module, and what comes before it where torch's does not pad alike; None where
this form of the operator is not a layer, but a function of maps.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from layermerge.onnx_in import windows


@dataclass(frozen=True)
class LayerCall:
    """A node with its constant inputs; None stands for an input that is a feature map, or left out."""

    input_shape: tuple[int, ...]
    constants: tuple[Tensor | None, ...]
    attributes: Mapping[str, Any]

    def constant(self, place: int) -> Tensor | None:
        return self.constants[place] if place < len(self.constants) else None

    def get(self, name: str, default: Any) -> Any:
        return self.attributes.get(name, default)

    @property
    def rank(self) -> int:
        return len(self.input_shape)


@dataclass(frozen=True)
class Layer:
    """A module, and a function that the feature map goes through before it."""

    module: nn.Module
    before: Callable[[Tensor], Tensor] | None = None


_CONVS: dict[int, type[nn.Module]] = {3: nn.Conv1d, 4: nn.Conv2d, 5: nn.Conv3d}
_TRANSPOSED: dict[int, type[nn.Module]] = {3: nn.ConvTranspose1d, 4: nn.ConvTranspose2d, 5: nn.ConvTranspose3d}
_BATCH_NORMS: dict[int, type[nn.Module]] = {
    2: nn.BatchNorm1d,
    3: nn.BatchNorm1d,
    4: nn.BatchNorm2d,
    5: nn.BatchNorm3d,
}
_INSTANCE_NORMS: dict[int, type[nn.Module]] = {3: nn.InstanceNorm1d, 4: nn.InstanceNorm2d, 5: nn.InstanceNorm3d}


def filled(module: nn.Module, **tensors: Tensor | None) -> nn.Module:
    """The module with these weights, in eval mode."""
    module.load_state_dict(
        {name: tensor.detach().clone() for name, tensor in tensors.items() if tensor is not None}, strict=True
    )
    return module.eval()


def _require_weight(call: LayerCall) -> Tensor:
    weight = call.constant(1)
    if weight is None:
        raise ValueError("its weights are computed in the network; only constant ones can be read")
    if weight.dim() != call.rank or weight.dim() not in _CONVS:
        raise ValueError(
            f"its weights have {weight.dim()} axes, its input {call.rank}; 1 to 3 beside channels can be read"
        )
    return weight


def conv(call: LayerCall) -> Layer:
    weight, bias = _require_weight(call), call.constant(2)
    kernel, sides = tuple(weight.shape[2:]), weight.dim() - 2
    groups = call.get("group", 1)
    strides, dilations = call.get("strides", [1] * sides), call.get("dilations", [1] * sides)
    before, padding = _padding(call, kernel, strides, dilations)
    module = _CONVS[weight.dim()](
        weight.shape[1] * groups,
        weight.shape[0],
        kernel,
        stride=tuple(strides),
        padding=tuple(padding),
        dilation=tuple(dilations),
        groups=groups,
        bias=bias is not None,
    )
    return Layer(filled(module, weight=weight, bias=bias), before)


def _padding(
    call: LayerCall, kernel: Sequence[int], strides: Sequence[int], dilations: Sequence[int]
) -> tuple[Callable[[Tensor], Tensor] | None, Sequence[int]]:
    """What is padded ahead of the conv, because it differs from side to side, and what the conv pads itself."""
    sides, auto = len(kernel), call.get("auto_pad", "NOTSET")
    pads = call.get("pads", [0] * 2 * sides) if auto == "NOTSET" else [0] * 2 * sides
    if auto.startswith("SAME"):
        lower = auto == "SAME_LOWER"
        if any(stride != 1 for stride in strides):
            by_size = partial(
                windows.pad_same, kernel=tuple(kernel), strides=tuple(strides), dilations=tuple(dilations)
            )
            return partial(by_size, lower=lower), [0] * sides
        pads = windows.same_pads(call.input_shape[2:], kernel, strides, dilations, lower=lower)
    if pads[:sides] == pads[sides:] and min(pads, default=0) >= 0:
        return None, pads[:sides]
    return partial(windows.pad_sides, pads=tuple(pads)), [0] * sides


def conv_transpose(call: LayerCall) -> Layer:
    weight, bias = _require_weight(call), call.constant(2)
    sides, groups = weight.dim() - 2, call.get("group", 1)
    pads = call.get("pads", [0] * 2 * sides)
    if call.get("auto_pad", "NOTSET") != "NOTSET" or "output_shape" in call.attributes or pads[:sides] != pads[sides:]:
        raise ValueError("it pads by the size of its output, or differently from side to side")
    module = _TRANSPOSED[weight.dim()](
        weight.shape[0],
        weight.shape[1] * groups,
        tuple(weight.shape[2:]),
        stride=tuple(call.get("strides", [1] * sides)),
        padding=tuple(pads[:sides]),
        output_padding=tuple(call.get("output_padding", [0] * sides)),
        dilation=tuple(call.get("dilations", [1] * sides)),
        groups=groups,
        bias=bias is not None,
    )
    return Layer(filled(module, weight=weight, bias=bias))


def batch_norm(call: LayerCall) -> Layer:
    scale, shift, mean, var = (call.constant(place) for place in range(1, 5))
    if call.get("training_mode", 0) or scale is None or shift is None or mean is None or var is None:
        raise ValueError("it is in training mode, or its statistics are computed; export the network in eval mode")
    momentum = 1 - call.get("momentum", 0.9)
    module = _BATCH_NORMS[call.rank](len(scale), eps=call.get("epsilon", 1e-5), momentum=momentum)
    seen = torch.zeros((), dtype=torch.int64)
    tensors = {"running_mean": mean, "running_var": var, "num_batches_tracked": seen}
    return Layer(filled(module, weight=scale, bias=shift, **tensors))


def instance_norm(call: LayerCall) -> Layer | None:
    scale, shift = call.constant(1), call.constant(2)
    if scale is None or shift is None:
        return None
    module = _INSTANCE_NORMS[call.rank](len(scale), eps=call.get("epsilon", 1e-5), affine=True)
    return Layer(filled(module, weight=scale, bias=shift))


def group_norm(call: LayerCall) -> Layer | None:
    scale, shift = call.constant(1), call.constant(2)
    if scale is None or shift is None:
        return None
    groups, channels = call.get("num_groups", 1), call.input_shape[1]
    module = nn.GroupNorm(groups, channels, eps=call.get("epsilon", 1e-5))
    return Layer(filled(module, weight=scale, bias=shift))


def layer_norm(call: LayerCall) -> Layer | None:
    scale, shift = call.constant(1), call.constant(2)
    if scale is None:
        return None
    axis = call.get("axis", -1) % call.rank
    shape = tuple(call.input_shape[axis:])
    module = nn.LayerNorm(shape, eps=call.get("epsilon", 1e-5), bias=shift is not None)
    return Layer(filled(module, weight=scale.expand(shape), bias=None if shift is None else shift.expand(shape)))


def linear(call: LayerCall) -> Layer | None:
    """Gemm with constant weights."""
    weight, bias = call.constant(1), call.constant(2)
    given_bias = len(call.constants) > 2
    if weight is None or call.get("transA", 0) or weight.dim() != 2 or call.rank != 2 or (given_bias and bias is None):
        return None
    weight = (weight if call.get("transB", 0) else weight.t()) * call.get("alpha", 1.0)
    if bias is not None:
        bias = (bias * call.get("beta", 1.0)).reshape(-1)
        bias = bias.expand(len(weight)) if len(bias) == 1 else bias
    module = nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None)
    return Layer(filled(module, weight=weight, bias=bias))


def matmul(call: LayerCall) -> Layer | None:
    weight = call.constant(1)
    if weight is None or weight.dim() != 2 or call.rank < 2:
        return None
    return Layer(filled(nn.Linear(weight.shape[0], weight.shape[1], bias=False), weight=weight.t()))


def prelu(call: LayerCall) -> Layer | None:
    """One slope in all, or one a channel."""
    slope = call.constant(1)
    if slope is None:
        return None
    one_each = slope.dim() == call.rank - 1 or slope.dim() == call.rank
    channels = slope.shape[-(call.rank - 1)] if one_each and call.rank > 1 else slope.numel()
    if slope.numel() not in (1, channels) or (slope.numel() != 1 and channels != call.input_shape[1]):
        return None
    return Layer(filled(nn.PReLU(slope.numel()), weight=slope.reshape(-1)))
