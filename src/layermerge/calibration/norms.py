"""Norms: running statistics taken again, from what a changed network really computes.

Images that a network is calibrated on need not be of the kind that it was trained on: taken from them alone, statistics would
change a network that nothing else has changed. So a norm follows its original: what it gives on these images gets the mean and
the variance that the original's gives on the same.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, fx

from layermerge.calibration.sample import Sample, Sources, batch_size_for
from layermerge.calibration.walk import Walk, region_order
from layermerge.surgery.fitted import Norm
from layermerge.surgery.rewrite import RewrittenModule
from layermerge.tracing.lift import LiftedModule
from layermerge.tracing.modes import evaluating


@dataclass(frozen=True)
class ChannelMoments:
    """Mean and variance of each channel of what a norm reads in one batch."""

    mean: Tensor
    variance: Tensor

    @staticmethod
    def of(x: Tensor) -> ChannelMoments:
        values = x.double().transpose(0, 1).flatten(1)
        return ChannelMoments(values.mean(1), values.var(1, correction=0))


Read = Mapping[str, Sequence[ChannelMoments]]
"""What norms have read, by name: batch by batch."""


def stale_norms(module: RewrittenModule, unchanged: Collection[fx.Node]) -> dict[str, Norm]:
    """By name, the norms with running statistics that read something else than in the original, and that no fit has set."""
    fits = {(fit.start, fit.end) for fit in module.surgery.fits}
    regions = [(region.candidate.start, region.candidate.end) for region in module.surgery.regions]
    # Of a region that computes what it always did only the end is known as such: its norms read what they always read.
    ends = {node.meta["region"]: node for node in region_order(module.graph) if "region" in node.meta}
    found: dict[str, Norm] = {}
    for node in module.graph.nodes:
        number = node.meta.get("region")
        fitted = number is not None and regions[number] in fits
        known = (node if number is None else ends[number]) in unchanged
        norm = module.get_submodule(str(node.target)) if node.op == "call_module" else None
        if isinstance(norm, Norm) and norm.track_running_stats and not known and not fitted:
            found[str(node.target)] = norm
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


def read_by_norms(module: LiftedModule, walk: Walk) -> Read:
    """What all norms of a network read on the walk's batches."""
    norms = {name: part for name, part in module.named_modules() if isinstance(part, Norm)}
    found: dict[str, list[ChannelMoments]] = {name: [] for name in norms}

    def look(name: str, x: Tensor) -> None:
        found[name].append(ChannelMoments.of(x))

    with _watched(norms, look):
        _run(walk)
    return found


def follow(norms: Mapping[str, Norm], walk: Walk, original: Read) -> dict[Tensor, Tensor]:
    """Sets the norms' statistics so that what they give has the moments that the original's gives on the same batches.

    One pass; each norm passes on what it will give once it is set. Returns what the buffers were.
    """
    before = {buffer: buffer.clone() for norm in norms.values() for buffer in norm.buffers()}
    found: dict[str, list[ChannelMoments]] = {name: [] for name in norms}

    def look(name: str, x: Tensor) -> Tensor:
        theirs, mine = original[name][len(found[name])], ChannelMoments.of(x)
        found[name].append(mine)
        slope = ((theirs.variance + norms[name].eps) / (mine.variance + norms[name].eps)).sqrt()
        slope, shift = slope.to(x), (theirs.mean - mine.mean * slope).to(x)
        across = (1, -1, *[1] * (x.ndim - 2))
        return x * slope.view(across) + shift.view(across)

    if norms:
        with _watched(norms, look):
            _run(walk)
    for name, norm in norms.items():
        _set(norm, found[name], original[name])
    return before


def _set(norm: Norm, mine: Sequence[ChannelMoments], theirs: Sequence[ChannelMoments]) -> None:
    means, variances = (
        [torch.stack([getattr(one, what) for one in seen]).mean(0) for seen in (mine, theirs)]
        for what in ("mean", "variance")
    )
    assert norm.running_mean is not None, "statistics are tracked"
    assert norm.running_var is not None, "statistics are tracked"
    widened = (variances[0] + norm.eps) / (variances[1] + norm.eps)
    norm.running_mean.copy_(means[0] - (means[1] - norm.running_mean.double()) * widened.sqrt())
    norm.running_var.copy_(((norm.running_var.double() + norm.eps) * widened - norm.eps).clamp_min(0))


def _run(walk: Walk) -> None:
    with torch.no_grad():
        for _ in walk.outputs():
            pass


@contextmanager
def _watched(norms: Mapping[str, Norm], look: Callable[[str, Tensor], Tensor | None]) -> Iterator[None]:
    """Shows what norms read, as they read it; what is returned, they read instead."""
    hooks = [
        norm.register_forward_pre_hook(lambda _, given, name=name: look(name, given[0])) for name, norm in norms.items()
    ]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
