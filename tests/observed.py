"""A network traced, and what it and its surroundings were like before: so that one trace serves every test of it."""

from __future__ import annotations

import copy
import hashlib
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from layermerge.tracing.trace import Trace, trace

MakeInputs = Callable[[int], Any]
"""Inputs for a network, at a batch size."""


@dataclass(frozen=True)
class Observed:
    """A trace with its original; shared by the tests of a process, so nothing may change either."""

    original: nn.Module
    inputs: MakeInputs
    trace: Trace
    weights_before: dict[str, str]
    modes_before: dict[str, bool]
    random_state: tuple[torch.Tensor, torch.Tensor]
    """Of torch's generator, before and after."""
    example: tuple[Any, Any]
    """What was traced with: a copy from before, and itself afterwards."""
    warned: tuple[str, ...]


def observe(model: nn.Module, inputs: MakeInputs) -> Observed:
    example = inputs(2)
    example_before = copy.deepcopy(example)
    weights_before, modes_before = digests(model), modes(model)
    random_before = torch.get_rng_state()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        traced = trace(model, example)
    random_after = torch.get_rng_state()
    return Observed(
        model,
        inputs,
        traced,
        weights_before,
        modes_before,
        (random_before, random_after),
        (example_before, example),
        tuple(str(warning.message) for warning in caught),
    )


def digests(model: nn.Module) -> dict[str, str]:
    """Of the bits of every parameter and buffer."""
    state = model.state_dict().items()
    return {name: hashlib.sha256(tensor.contiguous().numpy().tobytes()).hexdigest() for name, tensor in state}


def modes(model: nn.Module) -> dict[str, bool]:
    return {path: module.training for path, module in model.named_modules()}
