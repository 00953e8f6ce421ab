"""Weights from a file: safetensors, or a `.pth` of tensors. No code in it is ever run."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from layermerge.errors import ModelError, first_line


def load_weights(module: nn.Module, path: Path) -> None:
    """Loads a checkpoint strictly; every missing or unexpected key is an error."""
    if not path.is_file():
        raise ModelError(f"weights file '{path}' does not exist")
    try:
        safe = path.suffix == ".safetensors"
        state = load_file(path) if safe else torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        raise ModelError(
            f"weights file '{path}' cannot be read ({first_line(error)}); give a .safetensors file, or a .pth of tensors only"
        ) from error
    if not isinstance(state, dict) or not all(isinstance(value, Tensor) for value in state.values()):
        raise ModelError(f"weights file '{path}' does not hold a plain state_dict; save model.state_dict() alone")
    wanted = module.state_dict()
    missing, unexpected = sorted(wanted.keys() - state.keys()), sorted(state.keys() - wanted.keys())
    misfits = sorted(key for key in wanted.keys() & state.keys() if wanted[key].shape != state[key].shape)
    for kind, keys in (("lacks", missing), ("has unknown", unexpected), ("has another shape for", misfits)):
        if keys:
            more = f" and {len(keys) - 1} more" if len(keys) > 1 else ""
            raise ModelError(f"weights file '{path}' {kind} '{keys[0]}'{more}; it belongs to another model")
    module.load_state_dict(state)
