"""Evaluation: what all tasks share when they look at a network: its mode, its device, its answer."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from layermerge.tasks.base import Network


def device_of(network: Network) -> torch.device:
    parameter = next(network.parameters(), None) if isinstance(network, nn.Module) else None
    return torch.device("cpu") if parameter is None else parameter.device


@contextmanager
def evaluating(network: Network) -> Iterator[None]:
    """Evaluation mode, and afterwards every module as it was: some may have been in another mode than the whole."""
    if not isinstance(network, nn.Module):
        yield
        return
    before = [(module, module.training) for module in network.modules()]
    network.eval()
    try:
        yield
    finally:
        network.train(before[0][1])
        for module, training in before:
            module.training = training


def answer_of(outputs: Any, name: str) -> Any:
    """What a network says, where it may say it under a name (as an attribute or a key), or first of several."""
    if isinstance(outputs, Tensor):
        return outputs
    given = outputs.get(name) if isinstance(outputs, dict) else getattr(outputs, name, outputs)
    return given[0] if isinstance(given, (tuple, list)) and given else given
