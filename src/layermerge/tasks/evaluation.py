"""Evaluation: a network in eval mode for as long as it is looked at; shared by all tasks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

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
