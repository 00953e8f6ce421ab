"""Trials: how far a network with a few ranges changed is from its original, after closed-form fits, without training.

In: the original, unlabelled images, and rewritten networks one after another. Out: the divergence of each from the original's
outputs, image by image, on images that no fit has seen. What lies before the first change is the original's own: it is
computed once and held, up to a number of bytes, and so are Gram matrices of what is read there. A trial costs its fits and two
passes of the rest, one for the statistics of norms and one for the outputs. Trials in the order of their ranges never compute
anything of the original twice.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, fx

from layermerge.calibration.fits import Effort
from layermerge.calibration.network_fit import NetworkFit
from layermerge.calibration.norms import reestimate, stale_norms
from layermerge.calibration.place_fit import Grams, Pair
from layermerge.calibration.places import Counterparts, unchanged
from layermerge.calibration.sample import Sample
from layermerge.calibration.walk import Walk
from layermerge.surgery.rewrite import RewrittenModule
from layermerge.tracing.inputs import Inputs
from layermerge.tracing.lift import LiftedModule

_HELD_BYTES = 192 << 20
"""Of what the original has computed, for each set of images; as much again for the targets of a fit."""
_GRAM_BYTES = 192 << 20
QUICK = Effort(most_unknowns=1536, places_per_unknown=8, fewest_places=1 << 12, rounds=0)

Diverge = Callable[[Any, Any], Tensor]
"""How far outputs are from the original's, image by image."""


class Trials:
    """Tries networks that were rewritten from one original, each by itself."""

    def __init__(self, original: LiftedModule, sample: Sample, scored: Sequence[Inputs], diverge: Diverge) -> None:
        self.original, self.diverge = original, diverge
        self._fitted, self._held_out, self._scored = (
            Walk(original, batches, _HELD_BYTES) for batches in (sample.fitted, sample.held_out, scored)
        )
        self._grams = {walk: Grams(_GRAM_BYTES) for walk in (self._fitted, self._held_out)}
        with torch.no_grad():
            self._outputs = list(Walk(original, scored, 0).returned())

    @torch.no_grad()
    def divergence(self, net: RewrittenModule) -> Tensor:
        """Of each image that is scored; changes the network."""
        net.eval()
        same = unchanged(net, self.original)
        if (first := first_change(net, same)) is None:
            return torch.cat([self.diverge(outputs, outputs) for outputs in self._outputs])
        pairs = (self._pair(self._fitted, net, same, first), self._pair(self._held_out, net, same, first))
        changed = {number for number, region in enumerate(net.surgery.regions) if region.candidate.changes}
        NetworkFit(net, self.original, pairs, QUICK).run(lambda place: place.region in changed)
        reestimate(stale_norms(net, same), pairs[0].student)
        returned = self._scored.behind(net, *self._from(net, same), 0).returned()
        return torch.cat([self.diverge(mine, theirs) for mine, theirs in zip(returned, self._outputs, strict=True)])

    def _pair(self, walk: Walk, net: RewrittenModule, same: Counterparts, first: fx.Node) -> Pair:
        """The network and its original from the first change on, on one set of images."""
        student = walk.behind(net, same, first, 0)
        mine = {node: node for node in walk.order}
        after = max(walk.index[twin] for node, twin in same.items() if student.index[node] < student.index[first])
        teacher = walk.behind(self.original, mine, walk.order[after + 1], _HELD_BYTES)
        return Pair(student, teacher, self._grams[walk], same)

    def _from(self, net: RewrittenModule, same: Counterparts) -> tuple[Counterparts, fx.Node]:
        """Where the network differs by now: a fit may have replaced the nodes that did at first."""
        first = first_change(net, same)
        assert first is not None
        return same, first


def first_change(net: RewrittenModule, same: Counterparts) -> fx.Node | None:
    """The first node, in the order in which regions run, that computes something else than the original."""
    order = Walk(net, (), 0).order
    ends = {node.meta["region"]: node for node in order if "region" in node.meta}
    for node in order:
        if ends.get(node.meta.get("region", -1), node) not in same:
            return node
    return None
