"""Replacing: candidates that put something cheaper in the place of what they keep, where the rules ask for them.

In: the candidates that remove and merge. Out: these, and behind each that an activation with a stand-in follows, the same with
the stand-in. They are candidates like any other: what becomes of them is for latency and importance to say.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import replace

from layermerge.planning.candidate import Candidate
from layermerge.planning.reading import replaces_activation
from layermerge.planning.rules import Rules
from layermerge.tracing.structure import Structure


def with_replacements(
    structure: Structure, rules: Rules, candidates: Iterable[Candidate], pinned: Collection[int]
) -> Iterator[Candidate]:
    """The candidates in order, each with its variant; layers that are pinned have none."""
    for candidate in candidates:
        yield candidate
        if (
            "activations" in rules.replace
            and candidate.start not in pinned
            and replaces_activation(structure, candidate)
        ):
            yield replace(candidate, replaced="activation")
