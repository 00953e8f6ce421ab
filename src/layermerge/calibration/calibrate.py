"""Calibrate: a rewritten network brought back toward its original by closed-form fits on a few hundred unlabelled images.

In: a rewritten network, images, the original. Out: a copy of it that trains and merges as before. What replaces a gate is set
to the gate's mean. Then regions are fitted in the order in which they run: what they read comes from the network as compressed
so far, what they are to compute from the original at the same place. Those behind a change are fitted too, and so are linear
layers: they take up scale and shift where a range was dropped. Guarantees: on held-out images its outputs are no farther from
the original's than they were.
"""

from __future__ import annotations

import copy

import torch
from torch import nn

from layermerge.arguments import Count, checked
from layermerge.calibration.fits import Effort
from layermerge.calibration.mean_gates import take_means
from layermerge.calibration.network_fit import NetworkFit
from layermerge.calibration.norms import follow, read_by_norms, stale_norms
from layermerge.calibration.place_fit import Pair
from layermerge.calibration.places import unchanged
from layermerge.calibration.sample import Sample, Sources, batch_size_for
from layermerge.calibration.walk import Walk
from layermerge.errors import SurgeryError
from layermerge.surgery.check import require_finite
from layermerge.surgery.rewrite import RewrittenModule
from layermerge.tasks.base import Task
from layermerge.tracing.fingerprint import fingerprint
from layermerge.tracing.lift import LiftedModule
from layermerge.tracing.modes import evaluating
from layermerge.tracing.trace import Trace, trace

THOROUGH = Effort()
_HELD_BYTES = 512 << 20
"""What each of the two networks keeps of what it has computed, over all batches that are fitted on: enough for the usual number
of images at the sizes that detectors take. What is not kept is computed from the start again for every fit."""


@checked(SurgeryError)
def calibrate(
    net: RewrittenModule, images: Sources, *, teacher: Trace | nn.Module | None = None, count: Count = 512
) -> RewrittenModule:
    """Fits a rewritten network to its original on unlabelled images, without training; `net` itself is left as it is.

    >>> model = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 8, 3, padding=1))
    >>> traced = trace(model, torch.randn(2, 3, 16, 16))
    >>> net = calibrate(rewrite(traced, [plan(traced)["0-2:5x5g1"]]), torch.randn(100, 3, 16, 16))
    >>> net.surgery.fits
    (FittedRange(start=0, end=2, form='kernel'),)

    `images` is a tensor, batches such as a DataLoader's (labels are not looked at), images of `tasks.load_images`, or a task,
    whose training images are taken; the first `count` of them are used, a fifth of those held out. Where the task counts places
    of its outputs by how unusual they are, as imitation does, fits count places of maps so, too. `teacher` is the original
    or its trace; it may be left out in the process that has rewritten the network. Costs, for each layer behind the first
    change, a few passes from one layer to the next and a linear system; from the start where maps are too large to be held.
    """
    original = _original(net, teacher)
    require_finite(original)
    require_finite(net)
    sample = Sample.of(images, net.surgery.inputs, count, batch_size_for(net.surgery.structure))
    unusual = isinstance(images, Task) and images.counts_unusual
    best = copy.deepcopy(net).eval()
    with evaluating(original), torch.no_grad():
        least = _distance(best, original, sample)
        if net.surgery.gates:
            trial = copy.deepcopy(best)
            take_means(trial, original, sample.fitted)
            if (distance := _distance(trial, original, sample)) < least:
                best, least = trial, distance
        trial = copy.deepcopy(best)
        NetworkFit(trial, original, _pairs(trial, original, sample), THOROUGH, unusual=unusual).run()
        if (distance := _distance(trial, original, sample)) < least:
            best, least = trial, distance
        norms = stale_norms(best, unchanged(best, original))
        before = follow(norms, Walk(best, sample.fitted, 0), read_by_norms(original, Walk(original, sample.fitted, 0)))
        if not _distance(best, original, sample) < least:
            for buffer, value in before.items():
                buffer.copy_(value)
    modes = {name: part.training for name, part in net.named_modules()}
    for name, part in best.named_modules():
        part.training = modes.get(name, net.training)
    return best


def _original(net: RewrittenModule, teacher: Trace | nn.Module | None) -> LiftedModule:
    if teacher is None:
        if net.surgery.origin.module is None:
            raise SurgeryError(
                "this network was not rewritten in this process, so its original is not known; give it: teacher=model"
            )
        return net.surgery.origin.module
    inputs = net.surgery.inputs
    traced = teacher if isinstance(teacher, Trace) else trace(teacher, inputs.kwargs or inputs.args)
    if fingerprint(traced.structure) != fingerprint(net.surgery.structure):
        raise SurgeryError("the teacher is of another structure than the network that was rewritten; give the original")
    return traced.module


def _distance(student: LiftedModule, original: LiftedModule, sample: Sample) -> float:
    """Of the outputs for held-out images: squared difference over the square of the original's."""
    difference = size = 0.0
    walks = [Walk(module, sample.held_out, 0) for module in (student, original)]
    for mine, theirs in zip(*(walk.outputs() for walk in walks), strict=True):
        for one, other in zip(mine, theirs, strict=True):
            difference += float((one.double() - other.double()).square().sum())
            size += float(other.double().square().sum())
    return difference / max(size, 1e-30)


def _pairs(student: LiftedModule, original: LiftedModule, sample: Sample) -> tuple[Pair, Pair]:
    """Both networks on the images that are fitted on, and on those that are held out."""
    fitted, held_out = (
        Pair(Walk(student, batches, size), Walk(original, batches, size))
        for batches, size in ((sample.fitted, _HELD_BYTES), (sample.held_out, _HELD_BYTES // 4))
    )
    return fitted, held_out
