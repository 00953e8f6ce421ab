"""THE operator table: what each operator is to us, and how it becomes a module again.

A new operator is one row here. What has no row is a barrier: it stays as it is and nothing merges across it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any

import torch
from torch import fx, nn

from layermerge.tracing.computed_conv import ComputedConv2d
from layermerge.tracing.constants import is_constant

Shape = tuple[int | None, ...]
"""A tensor's shape; None where the size is free (the batch)."""


class Role(Enum):
    """What an operator is on the data path between two convolutions."""

    CONV = "convolution"
    NORM = "foldable norm"
    STAT_NORM = "statistical norm"
    ACTIVATION = "activation"
    ADD = "residual add"
    SHIFT = "per-channel shift"
    SCALE = "scale"
    PAD = "zero padding"
    DROPOUT = "identity at inference"
    BARRIER = "barrier"


@dataclass(frozen=True)
class Call:
    """One call of an operator in the captured graph, its arguments by name."""

    arguments: dict[str, Any]
    output_shape: Shape | None

    def __getitem__(self, name: str) -> Any:
        return self.arguments[name]

    def shape(self, name: str) -> Shape | None:
        value = self.arguments.get(name)
        shape: Shape | None = value.meta.get("shape") if isinstance(value, fx.Node) else None
        return shape

    def channels(self, name: str = "input") -> int:
        shape = self.shape(name)
        assert shape is not None
        assert shape[1] is not None
        return shape[1]


@dataclass(frozen=True)
class Operator:
    """A row: the role (or how the call decides it), the module to lift to, and the tensors that module owns.

    `build_computed` makes a module that is called with these tensors instead, where constants are computed to them.
    `stand_in` is the row of a cheaper activation that comes near to this one, and maps every value to the nearest that it
    can give.
    """

    role: Role | Callable[[Call], Role]
    build: Callable[[Call], nn.Module] | None = None
    owns: tuple[str, ...] = ()
    build_computed: Callable[[Call], nn.Module] | None = None
    stand_in: str | None = None
    steep: bool = False
    """Grows faster than its input: a part of an activation's formula that is no activation to be put after a sum of maps."""

    def role_of(self, call: Call) -> Role:
        return self.role if isinstance(self.role, Role) else self.role(call)


def _is_map(shape: Shape | None) -> bool:
    return shape is not None and len(shape) == 4


def _per_channel(shape: Shape | None, of: Shape | None) -> bool:
    """Whether `shape` broadcasts over the map `of` with one value per channel: (N, C, 1, 1), (1, C, 1, 1), (C, 1, 1)."""
    if shape is None or of is None or len(shape) not in (3, 4) or len(of) != 4:
        return False
    return shape[-3:] == (of[1], 1, 1) and (len(shape) == 3 or shape[0] in (1, of[0]))


def _one_value(shape: Shape | None) -> bool:
    return shape is not None and len(shape) <= 4 and all(size == 1 for size in shape)


def _affine_role(call: Call) -> Role:
    """A feature map and a number, or a constant of one value or one a channel: added, subtracted, multiplied, divided."""
    out, operands = call.output_shape, ("self", "other")
    plain = call.arguments.get("alpha", 1) == 1 and call.arguments.get("rounding_mode") is None
    if not plain or not _is_map(out):
        return Role.BARRIER
    if isinstance(call["other"], (int, float)):
        return Role.SCALE
    constants = [call.shape(name) for name in operands if is_constant(call[name])]
    maps = [call.shape(name) for name in operands if not is_constant(call[name])]
    folds = maps == [out] and (_one_value(constants[0]) or _per_channel(constants[0], out))
    return Role.NORM if folds else Role.BARRIER


def _add_role(call: Call) -> Role:
    left, right, out = call.shape("self"), call.shape("other"), call.output_shape
    if call["alpha"] != 1 or not _is_map(out):
        return Role.BARRIER
    if left == right == out:
        return Role.ADD
    if is_constant(call["self"]) or is_constant(call["other"]) or right is None:
        return _affine_role(call)
    if (left == out and _per_channel(right, out)) or (right == out and _per_channel(left, out)):
        return Role.SHIFT
    return Role.BARRIER


def _div_role(call: Call) -> Role:
    return Role.BARRIER if is_constant(call["self"]) else _affine_role(call)


def _neg_role(call: Call) -> Role:
    return Role.SCALE if _is_map(call.output_shape) else Role.BARRIER


def _pad_role(call: Call) -> Role:
    pad = call["pad"]
    zero = call.arguments.get("mode", "constant") == "constant" and not call["value"]
    plain = len(pad) <= 4 and all(isinstance(side, int) and side >= 0 for side in pad)
    return Role.PAD if zero and plain and _is_map(call.output_shape) else Role.BARRIER


def _cast_role(call: Call) -> Role:
    """A cast to the dtype that the map already has, as in code that guards against half precision, does nothing."""
    other, own = call.arguments.get("other"), call["self"].meta["dtype"]
    wanted = other.meta["dtype"] if isinstance(other, fx.Node) else call.arguments.get("dtype", own)
    return Role.DROPOUT if wanted == own and _is_map(call.output_shape) else Role.BARRIER


def pads_by_size(node: fx.Node) -> bool:
    """Whether a call pads with zeros by amounts that follow from the size of the inputs, as TensorFlow's 'same' does."""
    if operator_name(node.target) not in ("pad", "constant_pad_nd"):
        return False
    call = bind(node)
    zero = call.arguments.get("mode", "constant") == "constant" and not call["value"]
    return zero and any(isinstance(side, fx.Node) for side in call["pad"])


def _batch_norm_role(call: Call) -> Role:
    if call["running_mean"] is None or call["training"]:
        return Role.STAT_NORM
    tensors = (call[name] for name in _STATEFUL_NORM)
    return Role.NORM if all(tensor is None or is_constant(tensor) for tensor in tensors) else Role.BARRIER


def _conv2d(kind: type[nn.Conv2d]) -> Callable[[Call], nn.Module]:
    def build(call: Call) -> nn.Module:
        weight = call.shape("weight")
        assert weight is not None
        out, per_group, *kernel = (size or 0 for size in weight)
        return kind(
            per_group * call["groups"],
            out,
            tuple(kernel),  # type: ignore[arg-type]
            stride=tuple(call["stride"]),
            padding=call["padding"] if isinstance(call["padding"], str) else tuple(call["padding"]),
            dilation=tuple(call["dilation"]),
            groups=call["groups"],
            bias=call["bias"] is not None,
            device="meta",
        )

    return build


def _batch_norm(call: Call) -> nn.Module:
    rank = len(call.output_shape or ())
    kind: type[nn.Module] = {2: nn.BatchNorm1d, 3: nn.BatchNorm1d, 4: nn.BatchNorm2d, 5: nn.BatchNorm3d}[rank]
    tracked = call["running_mean"] is not None
    affine = call["weight"] is not None
    return kind(
        call.channels(),
        eps=call["eps"],
        momentum=call["momentum"],
        affine=affine,
        track_running_stats=tracked,
        device="meta",
    )


def _instance_norm(call: Call) -> nn.Module:
    kinds: dict[int, type[nn.Module]] = {3: nn.InstanceNorm1d, 4: nn.InstanceNorm2d, 5: nn.InstanceNorm3d}
    return kinds[len(call.output_shape or ())](
        call.channels(),
        eps=call["eps"],
        momentum=call["momentum"],
        affine=call["weight"] is not None,
        track_running_stats=call["running_mean"] is not None,
        device="meta",
    )


def _group_norm(call: Call) -> nn.Module:
    affine = call["weight"] is not None
    return nn.GroupNorm(call["num_groups"], call.channels(), eps=call["eps"], affine=affine, device="meta")


def _layer_norm(call: Call) -> nn.Module:
    affine, bias = call["weight"] is not None, call["bias"] is not None
    return nn.LayerNorm(call["normalized_shape"], call["eps"], elementwise_affine=affine, bias=bias, device="meta")


def _linear(call: Call) -> nn.Module:
    weight = call.shape("weight")
    assert weight is not None
    return nn.Linear(weight[1] or 0, weight[0] or 0, bias=call["bias"] is not None, device="meta")


def _dropout(kind: type[nn.Module]) -> Callable[[Call], nn.Module]:
    return lambda call: kind(p=call["p"])


def _function_role(call: Call) -> Role:
    """An element-wise function of one map; bounds and exponents that are tensors make it one of several."""
    tensors = sum(isinstance(value, fx.Node) for value in call.arguments.values())
    return Role.ACTIVATION if tensors == 1 else Role.BARRIER


_FUNCTION = Operator(_function_role)
"""An activation that torch.nn has no module for."""
_STEEP = Operator(_function_role, steep=True)


def _activation(kind: Callable[..., nn.Module], *arguments: str, stand_in: str | None = None) -> Operator:
    """A parameter-free element-wise function; `arguments` are passed on to the module in this order."""
    return Operator(Role.ACTIVATION, lambda call: kind(*(call[name] for name in arguments)), stand_in=stand_in)


_STATEFUL_NORM = ("weight", "bias", "running_mean", "running_var")

TABLE: dict[str, Operator] = {
    "conv2d": Operator(Role.CONV, _conv2d(nn.Conv2d), ("weight", "bias"), _conv2d(ComputedConv2d)),
    "batch_norm": Operator(_batch_norm_role, _batch_norm, _STATEFUL_NORM),
    "group_norm": Operator(Role.STAT_NORM, _group_norm, ("weight", "bias")),
    "layer_norm": Operator(Role.STAT_NORM, _layer_norm, ("weight", "bias")),
    "instance_norm": Operator(Role.STAT_NORM, _instance_norm, _STATEFUL_NORM),
    "linear": Operator(Role.BARRIER, _linear, ("weight", "bias")),
    "relu": _activation(nn.ReLU),
    "relu6": _activation(nn.ReLU6),
    "hardtanh": _activation(nn.Hardtanh, "min_val", "max_val"),
    "silu": _activation(nn.SiLU, stand_in="relu"),
    "hardswish": _activation(nn.Hardswish, stand_in="relu"),
    "hardsigmoid": _activation(nn.Hardsigmoid),
    "sigmoid": _activation(nn.Sigmoid),
    "tanh": _activation(nn.Tanh),
    "mish": _activation(nn.Mish, stand_in="relu"),
    "selu": _activation(nn.SELU),
    "log_sigmoid": _activation(nn.LogSigmoid),
    "leaky_relu": _activation(nn.LeakyReLU, "negative_slope"),
    "rrelu": _activation(nn.RReLU, "lower", "upper"),
    "elu": _activation(nn.ELU, "alpha"),
    "celu": _activation(nn.CELU, "alpha"),
    "softplus": _activation(nn.Softplus, "beta", "threshold"),
    "threshold": _activation(nn.Threshold, "threshold", "value"),
    "softshrink": _activation(nn.Softshrink, "lambd"),
    "hardshrink": _activation(nn.Hardshrink, "lambd"),
    "clamp": _FUNCTION,
    "clamp_min": _FUNCTION,
    "clamp_max": _FUNCTION,
    "abs": _FUNCTION,
    "square": _STEEP,
    "pow": _STEEP,
    "sqrt": _FUNCTION,
    "rsqrt": _FUNCTION,
    "reciprocal": _FUNCTION,
    "exp": _STEEP,
    "expm1": _STEEP,
    "log1p": _FUNCTION,
    "sign": _FUNCTION,
    "erf": _FUNCTION,
    "sin": _FUNCTION,
    "cos": _FUNCTION,
    "atan": _FUNCTION,
    "gt": _FUNCTION,
    "ge": _FUNCTION,
    "lt": _FUNCTION,
    "le": _FUNCTION,
    "gelu": Operator(Role.ACTIVATION, lambda call: nn.GELU(approximate=call["approximate"]), stand_in="relu"),
    "prelu": Operator(
        Role.ACTIVATION, lambda call: nn.PReLU((call.shape("weight") or (1,))[0] or 1, device="meta"), ("weight",)
    ),
    "dropout": Operator(Role.DROPOUT, _dropout(nn.Dropout)),
    "feature_dropout": Operator(Role.DROPOUT, _dropout(nn.Dropout2d)),
    "alpha_dropout": Operator(Role.DROPOUT, _dropout(nn.AlphaDropout)),
    "contiguous": Operator(Role.DROPOUT),
    "clone": Operator(Role.DROPOUT),
    "alias": Operator(Role.DROPOUT),
    "to": Operator(_cast_role),
    "type_as": Operator(_cast_role),
    "add": Operator(_add_role),
    "sub": Operator(_affine_role),
    "rsub": Operator(_affine_role),
    "mul": Operator(_affine_role),
    "div": Operator(_div_role),
    "neg": Operator(_neg_role),
    "pad": Operator(_pad_role),
    "constant_pad_nd": Operator(_pad_role),
}

RESIZE = frozenset({"upsample_nearest2d", "upsample_bilinear2d", "upsample_bicubic2d", "interpolate", "pixel_shuffle"})
"""Operators that enlarge a feature map; the paper drops convs that directly follow one."""


def build_stand_in(name: str) -> nn.Module:
    """The module of a row that stands in for others: an activation without settings or weights."""
    build = TABLE[name].build
    assert build is not None
    return build(Call({}, None))


def operator_name(target: object) -> str:
    """`relu` for torch's relu, its in-place form and every overload; the plain name of other callables."""
    if isinstance(target, torch._ops.OpOverload):
        name: str = target._schema.name.split("::")[1]
        return name[:-1] if name.endswith("_") and not name.startswith("_") else name
    return getattr(target, "__name__", str(target))


def bind(node: fx.Node) -> Call:
    """The node's arguments by their schema names, defaults filled in."""
    arguments: dict[str, Any] = {}
    if isinstance(node.target, torch._ops.OpOverload):
        for position, slot in enumerate(node.target._schema.arguments):
            if position < len(node.args):
                arguments[slot.name] = node.args[position]
            else:
                arguments[slot.name] = node.kwargs.get(slot.name, slot.default_value)
    return Call(arguments, node.meta.get("shape"))


def classify(node: fx.Node) -> tuple[Role, Operator | None]:
    """The role of a captured call, and its row of the table if it has one."""
    known = isinstance(node.target, torch._ops.OpOverload) and not node.target._schema.is_mutable
    row = TABLE.get(operator_name(node.target)) if known else None
    if row is None:
        return Role.BARRIER, None
    role = row.role_of(bind(node))
    if role is Role.DROPOUT and bind(node).arguments.get("train"):
        return Role.BARRIER, None  # dropout that is always on: random at inference too
    return role, row
