"""A network, fitted: each of its places brought nearest to what the original computes there, in the order in which they run.

In: a rewritten network and its original on the same batches, fitted and held out. Out: the network's own weights, changed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import nn

from layermerge.calibration.behind import Function
from layermerge.calibration.counting import Counting
from layermerge.calibration.fits import Effort, Moments, Seen, apply_kernel, best_correction, blocks, choose_form
from layermerge.calibration.place_fit import Pair, PlaceFit
from layermerge.calibration.places import Place, find_places
from layermerge.calibration.trainable import Spread, write_kernel
from layermerge.conv import ConvSpec
from layermerge.surgery.fitted import condense
from layermerge.surgery.kernels import Kernel
from layermerge.surgery.regions import region_kernel
from layermerge.surgery.rewrite import FitForm, FittedRange, RewrittenModule
from layermerge.tracing.lift import LiftedModule


class NetworkFit:
    """Fits a network place by place; what lies before a place is final when it is fitted."""

    def __init__(
        self,
        student: RewrittenModule,
        teacher: LiftedModule,
        pairs: tuple[Pair, Pair],
        effort: Effort,
        *,
        unusual: bool = False,
    ) -> None:
        """`unusual`: whether places count by how unusual the original's values there are."""
        self.student, self.teacher, self.pairs, self.effort, self.unusual = student, teacher, pairs, effort, unusual
        self.fitted, self.held_out = pairs
        self.fits: list[FittedRange] = []

    def run(self, wanted: Callable[[Place], bool] = lambda _: True) -> None:
        """Fits the wanted places, in the order in which they run."""
        for place in find_places(self.student, self.teacher, self.fitted.student):
            if not wanted(place):
                continue
            kernel = self._kernel(place)
            form = choose_form(kernel.spec, self._count_outputs(place), self.effort)
            counting = Counting.of(self.fitted.targets(place)) if self.unusual else None
            found = PlaceFit(self.pairs, place, kernel, form, self.effort, counting).best(self._function(place))
            if place.norm is not None:
                self._refit_norm(place, found or kernel, counting)
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
        target, batches = next(self.fitted.targets(place)), self.fitted.student.batches
        images = sum(inputs.batch for inputs in batches)
        return target.numel() // target.shape[1] * images // batches[0].batch

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
        for pair in self.pairs:
            pair.student.refresh()

    def _refit_norm(self, place: Place, kernel: Kernel, counting: Counting | None) -> None:
        """Weight and bias of the statistical norm behind a region, so that its output is nearest to the original's."""
        norm = self.student.get_submodule(str(place.norm))
        weight, bias = getattr(norm, "weight", None), getattr(norm, "bias", None)
        channels = kernel.spec.out_channels
        if weight is None or bias is None or weight.shape != (channels,):
            return
        sums = Moments(), Moments()
        for pair, moments in zip(self.pairs, sums, strict=True):
            for given in pair.each(place):
                output = norm(apply_kernel(kernel, given.x, given.shifts))
                everywhere = torch.arange(output[0, 0].numel())
                factors = None if counting is None else counting.factors(given.target).flatten(2)[..., None]
                seen = Seen(everywhere, output, given.target - output, factors)
                for block in blocks("affine", kernel.spec, given.x, seen):
                    moments.add(block)
        if (correction := best_correction(*sums)) is not None:
            slope, offset = 1 + correction[:, 0, 0], correction[:, 1, 0]
            weight.copy_(weight.double() * slope)
            bias.copy_(bias.double() * slope + offset)
