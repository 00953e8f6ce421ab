"""Candidate words: what a candidate does to its layers, in a few words."""

from __future__ import annotations

from layermerge.conv import ConvSpec
from layermerge.planning.candidate import Candidate


def candidate_words(candidate: Candidate) -> str:
    """Names no layer where there is one only.

    >>> candidate_words(Candidate(3, 5, ("a", "b"), ("a", "b"), ConvSpec(8, 8, (5, 5))))
    'a and b become one 5×5'
    >>> candidate_words(Candidate(3, 4, ("a",), (), None))
    'removed'
    """
    cheaper = ", with a cheaper activation" if candidate.replaced == "activation" else ""
    names = named(candidate.layers)
    if candidate.replaced == "gate":
        return f"the gate of {names} is replaced by its mean"
    if candidate.keeps_layer:
        return f"kept{cheaper}" if cheaper else "kept as it is"
    if candidate.spec is None:
        return "removed" if len(candidate.layers) == 1 else f"{names} removed"
    gone = [name for name in candidate.layers if name not in candidate.kept]
    into = (
        f"become one {_kernel(candidate.spec)}" if len(candidate.layers) > 1 else f"becomes a {_kernel(candidate.spec)}"
    )
    without = f", {gone[0] if len(gone) == 1 else f'{len(gone)} of them'} removed" if gone else ""
    exact = ", nothing lost" if candidate.free else ""
    return f"{names} {into}{without}{cheaper}{exact}"


def _kernel(spec: ConvSpec) -> str:
    return f"{spec.kernel[0]}×{spec.kernel[1]}"


def named(names: tuple[str, ...]) -> str:
    """All of them where they are few, else the first and the last."""
    if len(names) == 1:
        return names[0]
    return f"{names[0]} {'and' if len(names) == 2 else 'to'} {names[-1]}"
