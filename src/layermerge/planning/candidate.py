"""Candidate: one way to treat a range of layers as one: what is kept of it, what it merges to, what is replaced."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from layermerge.arguments import checked
from layermerge.conv import ConvSpec
from layermerge.errors import PlanError


@checked(PlanError)
@dataclass(frozen=True)
class Candidate:
    """Layers start..end-1 as one: those in `kept` merge into a conv of geometry `spec` (None: no conv remains)."""

    start: int
    end: int
    layers: tuple[str, ...]
    """The names of all of them."""
    kept: tuple[str, ...]
    """The names of those that are kept; the others are removed, with the activations in between."""
    spec: ConvSpec | None
    fixed: bool = False
    """Outside the tables: always chosen, and part of the fixed cost."""
    free: bool = False
    """Merged, its layers compute what they computed before, so that its latency alone decides."""
    replaced: Literal["activation", "gate"] | None = None
    """What is replaced: the activation after the range by a cheaper one, or the gate that its layers compute by its mean."""

    @property
    def key(self) -> str:
        """Names the candidate within its plan."""
        place = f"{self.start}-{self.end}"
        if self.spec is None:
            return f"{place}:{self.replaced or 'identity'}"
        (high, wide), groups = self.spec.kernel, self.spec.groups
        return f"{place}:{high}x{wide}g{groups}{f':{self.replaced}' if self.replaced else ''}"

    @property
    def keeps_layer(self) -> bool:
        """Whether this leaves its one layer as it is, whatever becomes of the activation after it."""
        return self.end - self.start == 1 and self.kept == self.layers

    @property
    def untouched(self) -> bool:
        """Whether this leaves its one layer as it is, and all around it."""
        return self.keeps_layer and self.replaced is None

    @property
    def changes(self) -> bool:
        """Whether the network computes something else with it."""
        return self.replaced is not None or not (self.untouched or self.free)

    @property
    def unreplaced(self) -> Candidate:
        """The same with nothing replaced."""
        return replace(self, replaced=None)

    @property
    def removed(self) -> frozenset[int]:
        """The indices of the layers that are removed."""
        return frozenset(index for index, name in enumerate(self.layers, self.start) if name not in self.kept)
