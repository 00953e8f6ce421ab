"""Modes: modules run in another mode for a while, and are left as they were."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn


@contextmanager
def modes_restored(*modules: nn.Module) -> Iterator[None]:
    """Afterwards every submodule trains or evaluates as it did before; a mode may differ from its parent's."""
    modes = [(part, part.training) for module in modules for part in module.modules()]
    try:
        yield
    finally:
        for part, training in modes:
            part.training = training


@contextmanager
def evaluating(module: nn.Module) -> Iterator[None]:
    """Eval mode inside, the modes of before afterwards."""
    with modes_restored(module):
        module.eval()
        yield
