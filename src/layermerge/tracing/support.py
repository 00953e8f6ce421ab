"""Support: what makes a model untraceable however it is traced, said before anything else is tried."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.utils import parametrizations, parametrize
from torch.nn.utils.spectral_norm import SpectralNorm

from layermerge.errors import TraceError


def require_traceable(model: nn.Module) -> None:
    """Refuses compiled modules, which have no Python to trace, and norms of weights that change as the weight is read."""
    for name, module in model.named_modules():
        where = f"its module '{name}'" if name else "the model"
        if isinstance(module, torch.jit.ScriptModule):
            raise TraceError(
                f"{where} is compiled TorchScript, which cannot be traced; pass the nn.Module it was made of"
            )
        if removal := _removal_of_spectral_norm(module):
            raise TraceError(
                f"{where} has spectral_norm, which in train mode changes its estimate of the weight with every call; "
                f"fix the weight with {removal} and trace again"
            )


def _removal_of_spectral_norm(module: nn.Module) -> str | None:
    """How to take it off, in either of its forms; None where there is none."""
    if any(isinstance(hook, SpectralNorm) for hook in module._forward_pre_hooks.values()):
        return "torch.nn.utils.remove_spectral_norm(module)"
    if not parametrize.is_parametrized(module):
        return None
    for name, steps in module.parametrizations.items():  # type: ignore[union-attr,operator]
        if any(isinstance(step, parametrizations._SpectralNorm) for step in steps):
            return f"torch.nn.utils.parametrize.remove_parametrizations(module, '{name}')"
    return None
