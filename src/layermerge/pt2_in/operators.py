"""Operators of a `.pt2` file: names in the file, and what they may stand for.

A file names what it calls by any path below torch, which reaches far more than operators. Only those that compute are
given out: torch's own operators on tensors, and arithmetic on sizes.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable
from typing import Any

import torch

from layermerge.errors import ArtifactError

_ATEN = re.compile(r"torch\.ops\.aten\.([A-Za-z0-9_]+)\.([A-Za-z0-9_]+)")
_ON_SIZES = {"torch.ops.aten._assert_scalar.default"}
"""Operators that take no tensor."""
_OPERATOR = "add sub mul floordiv truediv mod neg pow eq ne lt le gt ge and_ or_ not_ getitem"
_ARITHMETIC: dict[str, Callable[..., Any]] = {
    **{f"_operator.{name}": getattr(operator, name) for name in _OPERATOR.split()},
    **{f"math.{name}": getattr(math, name) for name in ("ceil", "floor", "trunc")},
    **{f"torch.{name}": getattr(torch, name) for name in ("sym_int", "sym_float", "sym_max", "sym_min", "sym_not")},
}


def operator_named(target: str, place: str) -> Callable[..., Any]:
    """The operator of this name, or an error that names it."""
    if target in _ARITHMETIC:
        return _ARITHMETIC[target]
    if found := _ATEN.fullmatch(target):
        packet = getattr(torch.ops.aten, found[1], None)
        overload = getattr(packet, found[2], None) if isinstance(packet, torch._ops.OpOverloadPacket) else None
        if isinstance(overload, torch._ops.OpOverload) and (target in _ON_SIZES or _computes(overload)):
            return overload
    raise ArtifactError(
        f"{place} calls '{target[:80]}', which is not an operator of torch on tensors; "
        "load the network with its class: layermerge.load(directory, model)"
    )


def _computes(overload: Any) -> bool:
    """Whether it is about tensors and about nothing outside of the program, such as a file."""
    schema = overload._schema
    every = [*schema.arguments, *schema.returns]
    return any("Tensor" in str(each.type) for each in every) and all(each.name != "filename" for each in every)
