"""Student: a network of the same shape that knows nothing yet, to be distilled from scratch.

In: a module (a channel-pruned one, as a rule) and a seed. Out: a copy with fresh weights.
Guarantees: the same seed gives the same student; the module given and the global random state are left as they were; no
parameter keeps a trained value unnoticed, and no norm its statistics.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import nn

from layermerge.errors import BaselineError


def make_student(module: nn.Module, seed: int) -> nn.Module:
    """A copy whose every layer is initialised as its own `reset_parameters()` does, in the order of their names.

    >>> net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8))
    >>> bool((make_student(net, seed=0)[0].weight == make_student(net, seed=0)[0].weight).all())
    True
    """
    student = copy.deepcopy(module)
    # reset_parameters() draws on the CPU or on the device of its layer; both generators must come back as they were.
    devices = sorted({parameter.device.index for parameter in student.parameters() if parameter.device.type == "cuda"})
    with torch.random.fork_rng(devices=devices):
        torch.manual_seed(seed)
        for name, part in student.named_modules():
            _reset(name, part)
    student.zero_grad(set_to_none=True)
    return student


def _reset(name: str, part: nn.Module) -> None:
    # A norm's reset_parameters() resets its statistics, too.
    layer: Any = part
    if callable(getattr(part, "reset_parameters", None)):
        layer.reset_parameters()
    elif callable(getattr(part, "_reset_parameters", None)):  # what torch calls it in its attention
        layer._reset_parameters()
    elif own := next((key for key, _ in part.named_parameters(recurse=False)), None):
        where = f"{name}.{own}".lstrip(".")
        raise BaselineError(
            f"parameter '{where}' has no initialisation: {type(part).__name__} has no reset_parameters(); give it one"
        )
