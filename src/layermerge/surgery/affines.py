"""Affines: what a foldable norm or scale of a graph does to each channel, from the weights it has now."""

from __future__ import annotations

import torch
from torch import Tensor, fx, nn

from layermerge.surgery.kernels import norm_as_affine
from layermerge.tracing.constants import evaluate, is_constant
from layermerge.tracing.lift import LiftedModule
from layermerge.tracing.operators import bind


def affine_of(module: LiftedModule, node: fx.Node) -> tuple[Tensor, Tensor]:
    """The scale and the shift in float64, each of one value or of one per channel."""
    if node.op == "call_module":
        norm = module.get_submodule(str(node.target))
        assert isinstance(norm, nn.modules.batchnorm._BatchNorm)
        assert norm.running_mean is not None
        assert norm.running_var is not None
        weight, bias = (None if tensor is None else tensor.detach() for tensor in (norm.weight, norm.bias))
        return norm_as_affine(norm.running_mean, norm.running_var, norm.eps, weight, bias)
    call, operator = bind(node), node.meta["operator"]

    def value(argument: fx.Node | float) -> Tensor:
        if isinstance(argument, fx.Node):
            return evaluate(module, argument).double().reshape(-1)
        return torch.tensor([argument], dtype=torch.float64, device=module.device)

    if operator == "batch_norm":
        gain, shift = (None if call[name] is None else value(call[name]) for name in ("weight", "bias"))
        return norm_as_affine(value(call["running_mean"]), value(call["running_var"]), call["eps"], gain, shift)
    if operator == "neg":
        return value(-1.0), value(0.0)
    constant_first = is_constant(call["self"])
    constant = value(call["self"] if constant_first else call["other"])
    if operator in ("mul", "div"):
        return constant if operator == "mul" else 1.0 / constant, torch.zeros_like(constant)
    if operator == "add":
        return torch.ones_like(constant), constant
    # What is subtracted: rsub(x, c) is c - x.
    map_is_subtracted = constant_first == (operator == "sub")
    sign = torch.full_like(constant, -1.0 if map_is_subtracted else 1.0)
    return sign, -sign * constant
