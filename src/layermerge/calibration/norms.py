"""Norms: running statistics taken again, from what a changed network really computes."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import torch
from torch import Tensor, fx

from layermerge.calibration.sample import Sample, Sources, batch_size_for
from layermerge.calibration.walk import Walk, region_order
from layermerge.surgery.fitted import Norm
from layermerge.surgery.rewrite import RewrittenModule
from layermerge.tracing.modes import evaluating


def stale_norms(module: RewrittenModule, unchanged: Collection[fx.Node]) -> list[Norm]:
    """The norms with running statistics that read something else than in the original, and that no fit has set."""
    fits = {(fit.start, fit.end) for fit in module.surgery.fits}
    regions = [(region.candidate.start, region.candidate.end) for region in module.surgery.regions]
    # Of a region that computes what it always did only the end is known as such: its norms read what they always read.
    ends = {node.meta["region"]: node for node in region_order(module.graph) if "region" in node.meta}
    found: list[Norm] = []
    for node in module.graph.nodes:
        number = node.meta.get("region")
        fitted = number is not None and regions[number] in fits
        known = (node if number is None else ends[number]) in unchanged
        norm = module.get_submodule(str(node.target)) if node.op == "call_module" else None
        if isinstance(norm, Norm) and norm.track_running_stats and not known and not fitted:
            found.append(norm)
    return found


def settle_norms(net: RewrittenModule, images: Sources, count: int) -> None:
    """Takes all running statistics again from `count` images; of a network that has lost channels, say."""
    sample = Sample.of(images, net.surgery.inputs, count, batch_size_for(net.surgery.structure))
    norms = [module for module in net.modules() if isinstance(module, Norm) and module.track_running_stats]
    with evaluating(net):
        reestimate(norms, Walk(net, sample.fitted, 0))


def reestimate(norms: Sequence[Norm], walk: Walk) -> dict[Tensor, Tensor]:
    """Takes the norms' statistics from one pass over the walk's batches, and returns what they were, by buffer."""
    buffers = [buffer for norm in norms for buffer in norm.buffers()]
    before = {buffer: buffer.clone() for buffer in buffers}
    momenta = [norm.momentum for norm in norms]
    for norm in norms:
        norm.reset_running_stats()
        norm.momentum = None  # the mean over all batches
        norm.train()
    if norms:
        with torch.no_grad():
            for _ in walk.outputs():
                pass
    for norm, momentum in zip(norms, momenta, strict=True):
        norm.momentum = momentum
        norm.eval()
        if norm.num_batches_tracked is not None:
            norm.num_batches_tracked.copy_(before[norm.num_batches_tracked])
    return before
