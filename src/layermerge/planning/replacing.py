"""Replacing: candidates that put something cheaper in the place of what they keep, where the rules ask for them.

In: the candidates that remove and merge. Out: these, and behind each that an activation with a stand-in follows, the same with
the stand-in; and for each gate, its layers replaced by its mean. They are candidates like any other: what becomes of them is
for latency and importance to say.
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
) -> list[Candidate]:
    """All of them in the order of their ranges; layers that are pinned have none."""
    found = list(_with_activations(structure, candidates, pinned) if "activations" in rules.replace else candidates)
    if "gates" in rules.replace:
        found += _gates(structure, pinned)
    return sorted(found, key=lambda candidate: (candidate.start, candidate.end))


def _with_activations(
    structure: Structure, candidates: Iterable[Candidate], pinned: Collection[int]
) -> Iterator[Candidate]:
    for candidate in candidates:
        yield candidate
        if candidate.start not in pinned and replaces_activation(structure, candidate):
            yield replace(candidate, replaced="activation")


def _gates(structure: Structure, pinned: Collection[int]) -> Iterator[Candidate]:
    for gate in structure.gates:
        if not any(index in pinned for index in range(gate.start, gate.end)):
            names = tuple(layer.name for layer in structure.layers[gate.start : gate.end])
            yield Candidate(gate.start, gate.end, names, (), None, replaced="gate")
