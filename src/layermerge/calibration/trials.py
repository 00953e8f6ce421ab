"""Trials: how far a network with a few ranges changed is from its original, after closed-form fits, without training.

In: the original, unlabelled images, and rewritten networks one after another. Out: the divergence of each from the original's
outputs, image by image, on images that no fit has seen. What lies before the first change is the original's own: it is
computed once and held, up to a number of bytes, and so are Gram matrices of what is read there. A trial costs its fits and
three passes of the rest: for the statistics of norms, for linear layers, and for the outputs. Trials in the order of their
ranges never compute anything of the original twice.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, fx

from layermerge.calibration.fits import Effort
from layermerge.calibration.latest import Latest
from layermerge.calibration.network_fit import NetworkFit
from layermerge.calibration.norms import Read, follow, read_by_norms, stale_norms
from layermerge.calibration.place_fit import Pair, Shared
from layermerge.calibration.places import Counterparts, Place, unchanged
from layermerge.calibration.sample import Sample
from layermerge.calibration.walk import Walk, region_order
from layermerge.surgery.rewrite import RewrittenModule
from layermerge.tracing.inputs import Inputs
from layermerge.tracing.lift import LiftedModule

_HELD_BYTES = 256 << 20
"""Of what the original has computed, for each set of images; as much again for Gram matrices."""
_PART_BYTES = 128 << 20
"""Of what one of both networks has computed within a trial, and of targets that others will ask for, too."""
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
        self._shared = {
            walk: Shared(Latest(_HELD_BYTES), Latest(_PART_BYTES)) for walk in (self._fitted, self._held_out)
        }
        with torch.no_grad():
            self._outputs = list(Walk(original, scored, 0).returned())

    @torch.no_grad()
    def divergence(self, net: RewrittenModule, *, everything: bool = False) -> Tensor:
        """Of each image that is scored; changes the network.

        Fitted are the changed ranges and what reads them, then, norms having been estimated again, linear layers; or
        everything behind the first change, in order.
        """
        net.eval()
        same = unchanged(net, self.original)
        if (first := first_change(net, same)) is None:
            return torch.cat([self.diverge(outputs, outputs) for outputs in self._outputs])
        near = near_changes(net, same)
        self._fit(net, same, first, lambda place: everything or place.region in near)
        first = first_change(net, same)  # a fit may have replaced the node
        assert first is not None, "what differed still does"
        follow(stale_norms(net, same), self._fitted.behind(net, same, first, 0), self._read)
        if not everything:
            self._fit(net, same, first, lambda place: place.region is None)
        returned = self._scored.behind(net, same, first, 0).returned()
        return torch.cat([self.diverge(mine, theirs) for mine, theirs in zip(returned, self._outputs, strict=True)])

    @cached_property
    def _read(self) -> Read:
        """What the original's norms read."""
        return read_by_norms(self.original, Walk(self.original, self._fitted.batches, 0))

    def _fit(self, net: RewrittenModule, same: Counterparts, first: fx.Node, wanted: Callable[[Place], bool]) -> None:
        pairs = (self._pair(self._fitted, net, same, first), self._pair(self._held_out, net, same, first))
        NetworkFit(net, self.original, pairs, QUICK).run(wanted)

    def _pair(self, walk: Walk, net: RewrittenModule, same: Counterparts, first: fx.Node) -> Pair:
        """The network and its original from the first change on, on one set of images."""
        student = walk.behind(net, same, first, _PART_BYTES)
        mine = {node: node for node in walk.order}
        after = max(walk.index[twin] for node, twin in same.items() if student.index[node] < student.index[first])
        teacher = walk.behind(self.original, mine, walk.order[after + 1], _PART_BYTES)
        return Pair(student, teacher, self._shared[walk], same)


def first_change(net: RewrittenModule, same: Counterparts) -> fx.Node | None:
    """The first node, in the order in which regions run, that computes something else than the original."""
    order = region_order(net.graph)
    ends = {node.meta["region"]: node for node in order if "region" in node.meta}
    for node in order:
        if ends.get(node.meta.get("region", -1), node) not in same:
            return node
    return None


def near_changes(net: RewrittenModule, same: Counterparts) -> set[int]:
    """The regions that were changed, and those that read what a change gives, with no other region between."""
    regions = net.surgery.regions
    changed = {number for number, region in enumerate(regions) if region.candidate.changes}
    order = region_order(net.graph)
    ends = {node.meta["region"]: node for node in order if "region" in node.meta}
    passed: dict[fx.Node, int] = {}
    """By node that computes something else than in the original: how many regions that were not changed lie before it."""
    near = set(changed)
    for node in order:
        number = node.meta.get("region")
        end = node if number is None else ends[number]
        if end in same:
            continue
        before = max((passed[source] for source in node.all_input_nodes if source in passed), default=0)
        if number is not None and node is end and number not in changed:
            near |= {number} if before == 0 else set()
            before += 1
        passed[node] = before
    return near
