"""Modes: train and eval flags of a network, put back as they were; some modules may have been in another mode than the whole."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn


@contextmanager
def modes_restored(*modules: nn.Module) -> Iterator[None]:
    """Afterwards every submodule is in the mode it was in."""
    before = [(part, part.training) for module in modules for part in module.modules()]
    try:
        yield
    finally:
        for part, training in before:
            part.training = training


@contextmanager
def evaluating(module: nn.Module) -> Iterator[None]:
    """Evaluation mode inside."""
    with modes_restored(module):
        module.eval()
        yield
