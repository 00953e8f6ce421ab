"""Calibrate: a rewritten network brought back toward its original by closed-form fits on a few hundred unlabelled images.

In: a rewritten network, images, the original. Out: a copy of it that trains and merges as before. What replaces a gate is set
to the gate's mean. Then regions are fitted in the order in which they run: what they read comes from the network as compressed
so far, what they are to compute from the original at the same place. Those behind a change are fitted too, and so are linear
layers: they take up scale and shift where a range was dropped. Guarantees: on held-out images its outputs are no farther from
the original's than they were.
"""

from __future__ import annotations

import copy
from dataclasses import replace
from math import prod

import torch
from torch import nn

from layermerge.arguments import Count, checked
from layermerge.calibration.behind import Function
from layermerge.calibration.fits import Moments, apply_kernel, best_correction, blocks, choose_form
from layermerge.calibration.mean_gates import take_means
from layermerge.calibration.norms import reestimate, stale_norms
from layermerge.calibration.place_fit import Pair, PlaceFit
from layermerge.calibration.places import Place, find_places, unchanged
from layermerge.calibration.sample import Sample, Sources
from layermerge.calibration.trainable import Spread, write_kernel
from layermerge.calibration.walk import Walk
from layermerge.conv import ConvSpec
from layermerge.errors import SurgeryError
from layermerge.surgery.check import require_finite
from layermerge.surgery.fitted import condense
from layermerge.surgery.kernels import Kernel
from layermerge.surgery.regions import region_kernel
from layermerge.surgery.rewrite import FitForm, FittedRange, RewrittenModule
from layermerge.tracing.fingerprint import fingerprint
from layermerge.tracing.lift import LiftedModule
from layermerge.tracing.modes import evaluating
from layermerge.tracing.trace import Trace, trace

_LARGEST_MAP_BYTES = 16 << 20
"""Of a batch, at the network's largest feature map."""
_MOST_IMAGES = 64
"""In a batch."""
_HELD_BYTES = 64 << 20
"""What each of the two networks keeps of what it has computed, over all batches that are fitted on."""


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
    whose training images are taken; the first `count` of them are used, a fifth of those held out. `teacher` is the original
    or its trace; it may be left out in the process that has rewritten the network. Costs, for each layer behind the first
    change, a few passes from one layer to the next and a linear system; from the start where maps are too large to be held.
    """
    original = _original(net, teacher)
    require_finite(original)
    require_finite(net)
    sample = Sample.of(images, net.surgery.inputs, count, _batch_size(net))
    best = copy.deepcopy(net).eval()
    with evaluating(original), torch.no_grad():
        least = _distance(best, original, sample)
        if net.surgery.gates:
            trial = copy.deepcopy(best)
            take_means(trial, original, sample.fitted)
            if (distance := _distance(trial, original, sample)) < least:
                best, least = trial, distance
        trial = copy.deepcopy(best)
        _Calibration(trial, original, sample).run()
        if (distance := _distance(trial, original, sample)) < least:
            best, least = trial, distance
        norms = stale_norms(best, unchanged(best, original))
        before = reestimate(best, norms, sample.fitted)
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


def _batch_size(net: RewrittenModule) -> int:
    shapes = [shape for layer in net.surgery.structure.layers for shape in (layer.input_shape, layer.output_shape)]
    return max(1, min(_MOST_IMAGES, _LARGEST_MAP_BYTES // (4 * max(map(prod, shapes)))))


def _distance(student: LiftedModule, original: LiftedModule, sample: Sample) -> float:
    """Of the outputs for held-out images: squared difference over the square of the original's."""
    difference = size = 0.0
    walks = [Walk(module, sample.held_out, 0) for module in (student, original)]
    for mine, theirs in zip(*(walk.outputs() for walk in walks), strict=True):
        for one, other in zip(mine, theirs, strict=True):
            difference += float((one.double() - other.double()).square().sum())
            size += float(other.double().square().sum())
    return difference / max(size, 1e-30)


class _Calibration:
    """Fits a network place by place; what lies before a place is final when it is fitted."""

    def __init__(self, student: RewrittenModule, teacher: LiftedModule, sample: Sample) -> None:
        self.student, self.teacher, self.sample = student, teacher, sample
        self.fitted, self.held_out = (
            Pair(Walk(student, batches, size), Walk(teacher, batches, size))
            for batches, size in ((sample.fitted, _HELD_BYTES), (sample.held_out, _HELD_BYTES // 4))
        )
        self.fits: list[FittedRange] = []

    def run(self) -> None:
        for place in find_places(self.student, self.teacher, self.fitted.student):
            kernel = self._kernel(place)
            form = choose_form(kernel.spec, self._count_outputs(place))
            found = PlaceFit(self.fitted, self.held_out, place, kernel, form).best(self._function(place))
            if place.norm is not None:
                self._refit_norm(place, found or kernel)
            if found is not None:
                self._write(place, found, form)
        surgery = self.student.surgery
        known = {(fit.start, fit.end): fit for fit in (*surgery.fits, *self.fits)}
        self.student.surgery = replace(surgery, fits=tuple(known[span] for span in sorted(known)))

    def _kernel(self, place: Place) -> Kernel:
        if place.region is not None:
            return region_kernel(self.student, place.region)
        linear = self._linear(place)
        spec = ConvSpec(linear.in_features, linear.out_features, (1, 1))
        return Kernel.of(linear.weight[:, :, None, None], linear.bias, spec)

    def _linear(self, place: Place) -> nn.Linear:
        linear = self.student.get_submodule(str(place.start.target))
        assert isinstance(linear, nn.Linear)
        return linear

    def _function(self, place: Place) -> Function | None:
        module = None if place.activation is None else self.student.get_submodule(place.activation)
        # Values are looked at one by one, whatever channel they are of.
        return None if module is None or any(True for _ in module.parameters()) else module

    def _count_outputs(self, place: Place) -> int:
        given = next(self.fitted.each(place))
        images = sum(inputs.batch for inputs in self.sample.fitted)
        return given.target.numel() // given.target.shape[1] * images // self.sample.fitted[0].batch

    def _write(self, place: Place, kernel: Kernel, form: FitForm) -> None:
        if place.region is None:
            linear = self._linear(place)
            linear.weight.copy_(kernel.weight[:, :, 0, 0])
            linear.bias.copy_(kernel.bias)
            return
        outputs = (apply_kernel(kernel, given.x, given.shifts) for given in self.fitted.each(place))
        spread = Spread.of(outputs)
        write_kernel(condense(self.student, place.region, kernel), kernel, spread)
        candidate = self.student.surgery.regions[place.region].candidate
        self.fits.append(FittedRange(candidate.start, candidate.end, form))
        for pair in (self.fitted, self.held_out):
            pair.student.refresh()

    def _refit_norm(self, place: Place, kernel: Kernel) -> None:
        """Weight and bias of the statistical norm behind a region, so that its output is nearest to the original's."""
        norm = self.student.get_submodule(str(place.norm))
        weight, bias = getattr(norm, "weight", None), getattr(norm, "bias", None)
        channels = kernel.spec.out_channels
        if weight is None or bias is None or weight.shape != (channels,):
            return
        sums = Moments(), Moments()
        for pair, moments in zip((self.fitted, self.held_out), sums, strict=True):
            for given in pair.each(place):
                output = norm(apply_kernel(kernel, given.x, given.shifts))
                everywhere = torch.arange(output[0, 0].numel())
                for block in blocks("affine", kernel.spec, given.x, everywhere, output, given.target - output):
                    moments.add(block)
        if (correction := best_correction(*sums)) is not None:
            slope, offset = 1 + correction[:, 0, 0], correction[:, 1, 0]
            weight.copy_(weight.double() * slope)
            bias.copy_(bias.double() * slope + offset)
