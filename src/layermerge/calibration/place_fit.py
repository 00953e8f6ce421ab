"""One place of a network, fitted: the kernel that brings it nearest to what the original computes there.

In: both networks on the same batches, fitted and held out, and the kernel that is there. Out: a better kernel, or None where
none is better on held-out images. Where an activation follows, what counts is its output.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from torch import Tensor

from layermerge.calibration.behind import Function, Placing, PlacingSearch, nearest_hit
from layermerge.calibration.fits import Moments, apply_kernel, best_correction, blocks, corrected
from layermerge.calibration.places import Place
from layermerge.calibration.trainable import Statistics
from layermerge.calibration.walk import Walk
from layermerge.surgery.kernels import Kernel
from layermerge.surgery.rewrite import FitForm

ROUNDS = 2
"""How often the values before an activation are aimed at anew, from where the last fit has brought them."""


@dataclass(frozen=True)
class Reading:
    """What a place reads, the shifts that join in it, what is added behind it, and what the original computes."""

    x: Tensor
    shifts: dict[str, Tensor]
    joins: Tensor | float
    target: Tensor


@dataclass(frozen=True, eq=False)
class Pair:
    """Both networks on the same batches."""

    student: Walk
    teacher: Walk

    def each(self, place: Place) -> Iterator[Reading]:
        """Batch by batch; of a linear layer as maps of one pixel."""
        wanted = [place.source, *place.shifts.values(), *([place.joins] if place.joins else [])]
        given = self.student.each(wanted, before=place.start)
        for (x, *rest), (target,) in zip(given, self.teacher.each([place.target]), strict=True):
            if place.region is None:
                yield Reading(_rows(x), {}, 0.0, _rows(target))
            else:
                shifts = dict(zip(place.shifts, rest, strict=False))
                yield Reading(x, shifts, rest[-1] if place.joins else 0.0, target)


def _rows(values: Tensor) -> Tensor:
    return values.reshape(-1, values.shape[-1], 1, 1)


Aim = Callable[[Reading], Tensor]
"""What the place itself is to give, what is added behind it taken off."""


class PlaceFit:
    """A fit of one place, in one form; `function` is the activation behind it, None where there is none."""

    def __init__(self, fitted: Pair, held_out: Pair, place: Place, kernel: Kernel, form: FitForm) -> None:
        self.fitted, self.held_out = fitted, held_out
        self.place, self.kernel, self.form = place, kernel, form
        self._moments: dict[Pair, Moments] = {}

    def best(self, function: Function | None) -> Kernel | None:
        if function is not None and self.place.added:
            placing = self._placing(function)
            return self._fit(lambda given: placing(given.target) - given.joins)
        return self._best_behind(function, self._fit(lambda given: given.target - given.joins))

    def _best_behind(self, function: Function | None, first: Kernel | None) -> Kernel | None:
        """Aims anew at what the activation maps to the right output, a few times; of all fits, the best behind it."""
        if function is None:
            return first
        best, least = None, self._error_behind(self.kernel, function)
        found = first
        for left in range(ROUNDS, -1, -1):
            if found is None:
                break
            if (error := self._error_behind(found, function)) < least:
                best, least = found, error
            latest = found
            if left:

                def aim(given: Reading, latest: Kernel = latest) -> Tensor:
                    value = apply_kernel(latest, given.x, given.shifts) + given.joins
                    return nearest_hit(function, value, given.target) - given.joins

                found = self._fit(aim)
        return best

    def _fit(self, aim: Aim) -> Kernel | None:
        self._moments = {pair: self._summed(pair, aim) for pair in (self.fitted, self.held_out)}
        correction = best_correction(self._moments[self.fitted], self._moments[self.held_out])
        return None if correction is None else corrected(self.kernel, self.form, correction)

    def _summed(self, pair: Pair, aim: Aim) -> Moments:
        """What the place reads is the same for every aim, so it is summed once."""
        known = self._moments.get(pair)
        moments = known.retargeted() if known else Moments()
        for given in pair.each(self.place):
            output = apply_kernel(self.kernel, given.x, given.shifts)
            for block in blocks(self.form, self.kernel.spec, given.x, output, aim(given) - output):
                moments.add(block, gram=known is None)
        return moments

    def _error_behind(self, kernel: Kernel, function: Function) -> float:
        error = 0.0
        for given in self.held_out.each(self.place):
            value = function(apply_kernel(kernel, given.x, given.shifts) + given.joins)
            error += float((value - function(given.target)).double().square().sum())
        return error

    def _placing(self, function: Function) -> Placing:
        spread = Statistics.of(given.target for given in self.fitted.each(self.place))
        search = PlacingSearch(function, spread.mean, spread.variance.sqrt(), scalable=self.place.scalable)
        for given in self.fitted.each(self.place):
            search.add(given.target)
        return search.best()
