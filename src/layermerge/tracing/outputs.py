"""Outputs of two networks beside each other: how far they differ, and which are the same where one returns more."""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree


def relative_difference(expected: Tensor, actual: Tensor) -> float:
    """max|a - b| / max|a|; infinite where the shapes differ. The measure used for exactness everywhere."""
    if expected.shape != actual.shape:
        return float("inf")
    if expected.numel() == 0:
        return 0.0
    if not (expected.is_floating_point() or expected.is_complex()):
        return 0.0 if torch.equal(expected, actual) else float("inf")
    if torch.equal(expected, actual):
        return 0.0
    difference, largest = (expected - actual).abs().max().item(), expected.abs().max().item()
    if isfinite(difference):
        return difference / largest if largest > 0 else float("inf")
    finite = expected.isfinite()
    if not torch.equal(finite, actual.isfinite()):
        return float("inf")
    return relative_difference(expected[finite], actual[finite])  # a network that overflows does so in both


_LAST_PLACES = 5e-7
"""Four units in the last place that float32 has at 1."""


def runtime_difference(expected: Tensor, actual: Tensor) -> float:
    """The same between two runtimes; 0 where it is not above the last places of 1.

    onnxruntime's sigmoid is that exact and no more, whatever its value: of a map that is nearly 0 everywhere, all may differ.
    """
    apart = relative_difference(expected, actual)
    if expected.is_floating_point() and apart * float(expected.abs().max() if expected.numel() else 0) <= _LAST_PLACES:
        return 0.0
    return apart


@dataclass(frozen=True)
class SharedOutputs:
    """The tensors that a model and its traced network both return in train mode, in pairs."""

    pairs: tuple[tuple[Tensor, Tensor], ...]
    returned: int
    """How many tensors the traced network returns."""
    differ: bool
    """Whether the two return different structures."""

    @staticmethod
    def of(expected: Any, actual: Any, *, in_order: bool, tolerance: float) -> SharedOutputs:
        """Of one structure, all are shared. Otherwise those at the same place, and of the rest those that are equal.

        With `in_order` so are those that come in the same order, as main outputs come before auxiliary ones.
        """
        if pytree.tree_structure(expected) == pytree.tree_structure(actual):
            both = (
                [leaf for leaf in pytree.tree_leaves(out) if isinstance(leaf, Tensor)] for out in (expected, actual)
            )
            pairs = tuple(zip(*both, strict=True))
            return SharedOutputs(pairs, len(pairs), differ=False)
        wanted, got = _by_place(expected), _by_place(actual)
        places = [(place, place) for place in got if place in wanted]
        places += list(zip(wanted, got, strict=False)) if in_order else []
        matched: dict[str, str] = {}
        for its, mine in places:
            if mine not in matched and its not in matched.values() and wanted[its].shape == got[mine].shape:
                matched[mine] = its
        for mine in [place for place in got if place not in matched]:
            free = (place for place in wanted if place not in matched.values())
            equal = [place for place in free if relative_difference(wanted[place], got[mine]) <= tolerance]
            if equal:
                matched[mine] = equal[0]
        return SharedOutputs(tuple((wanted[its], got[mine]) for mine, its in matched.items()), len(got), differ=True)

    def __str__(self) -> str:
        return f"{len(self.pairs)} of {self.returned} outputs come in train mode too and agree"


def _by_place(output: Any) -> dict[str, Tensor]:
    """The tensors by their place in the structure; by their number where a class of the user's own does not name its parts."""
    try:
        leaves = [(pytree.keystr(path), leaf) for path, leaf in pytree.tree_leaves_with_path(output)]
    except ValueError:
        leaves = [(str(number), leaf) for number, leaf in enumerate(pytree.tree_leaves(output))]
    return {place: leaf for place, leaf in leaves if isinstance(leaf, Tensor)}
