"""One place of a network, fitted: the kernel that brings it nearest to what the original computes there.

In: both networks on the same batches, fitted and held out, and the kernel that is there. Out: a better kernel, or None where
none is better on held-out images. Where an activation follows, what counts is its output.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from torch import Tensor, fx

from layermerge.calibration.behind import Function, Placing, PlacingSearch, nearest_hit
from layermerge.calibration.counting import Counting
from layermerge.calibration.fits import (
    Effort,
    Moments,
    Seen,
    apply_kernel,
    at_places,
    best_correction,
    blocks,
    corrected,
    count_places,
    spread_places,
)
from layermerge.calibration.latest import Latest
from layermerge.calibration.places import Place
from layermerge.calibration.trainable import Spread
from layermerge.calibration.walk import Walk
from layermerge.conv import ConvSpec
from layermerge.surgery.kernels import Kernel
from layermerge.surgery.rewrite import FitForm

_GOLDEN = (5**0.5 - 1) / 2


@dataclass(frozen=True)
class Given:
    """What a place reads, the shifts that join in it, what is added behind it, and what the original computes."""

    x: Tensor
    shifts: dict[str, Tensor]
    joins: Tensor | float
    target: Tensor


@dataclass(frozen=True, eq=False)
class Shared:
    """What fits of several networks share, of their original on one set of images: each part up to so many bytes."""

    grams: Latest
    """Gram matrices of what kernels read of the original's maps, by map and geometry."""
    targets: Latest
    """What the original computes, by node."""


@dataclass(frozen=True, eq=False)
class Pair:
    """Both networks on the same batches."""

    student: Walk
    teacher: Walk
    shared: Shared | None = None
    same: Mapping[fx.Node, fx.Node] = field(default_factory=dict)
    """The student's nodes that compute what the original's do."""

    def each(self, place: Place) -> Iterator[Given]:
        """Batch by batch; of a linear layer as maps of one pixel."""
        wanted = [place.source, *place.shifts.values(), *([place.joins] if place.joins else [])]
        given = self.student.each(wanted, before=place.start)
        for (x, *rest), target in zip(given, self.targets(place), strict=True):
            if place.region is None:
                yield Given(_rows(x), {}, 0.0, target)
            else:
                shifts = dict(zip(place.shifts, rest, strict=False))
                yield Given(x, shifts, rest[-1] if place.joins else 0.0, target)

    def targets(self, place: Place) -> Iterator[Tensor]:
        """What the original computes there, batch by batch."""
        known = self.shared.targets.find(place.target) if self.shared else None
        found: list[Tensor] = []
        for target in known or (value for (value,) in self.teacher.each([place.target])):
            found.append(target)
            yield _rows(target) if place.region is None else target
        if self.shared and known is None:
            self.shared.targets.keep(place.target, tuple(found))

    def shared_key(self, place: Place, form: FitForm, spec: ConvSpec) -> tuple[object, ...] | None:
        """What a Gram matrix depends on that other networks have too; None where it is the student's own."""
        if self.shared is None or form != "kernel" or place.source not in self.same:
            return None
        return self.same[place.source].name, spec.kernel, spec.stride, spec.dilation, spec.padding, spec.groups


def _rows(values: Tensor) -> Tensor:
    return values.reshape(-1, values.shape[-1], 1, 1)


@dataclass(frozen=True)
class _Looked:
    """A batch at the places that are looked at; `output` is what the kernel gives that the fit starts from."""

    given: Given
    places: Tensor
    output: Tensor
    joins: Tensor | float
    target: Tensor
    factors: Tensor | None
    """How much each place counts; None where all count alike."""

    def value(self, kernel: Kernel) -> Tensor:
        """What another kernel gives, and what is added to it."""
        return at_places(apply_kernel(kernel, self.given.x, self.given.shifts), self.places) + self.joins


Aim = Callable[[_Looked], Tensor]
"""What a place's output, with what is added to it, is to be."""


class PlaceFit:
    """A fit of one place in one form, which looks at some places of each map."""

    def __init__(
        self,
        pairs: tuple[Pair, Pair],
        place: Place,
        kernel: Kernel,
        form: FitForm,
        effort: Effort,
        counting: Counting | None = None,
    ) -> None:
        self.fitted, self.held_out = pairs
        self.place, self.kernel, self.form, self.effort, self.counting = place, kernel, form, effort, counting
        self._moments: dict[Pair, Moments] = {}

    def best(self, function: Function | None) -> Kernel | None:
        """The better kernel; `function` is the activation behind the place, where there is one."""
        if function is not None and self.place.added:
            placing = self._placing(function)
            return self._fit(lambda seen: placing(seen.target))
        first = self._fit(lambda seen: seen.target)
        return first if function is None else self._best_behind(function, first)

    def _best_behind(self, function: Function, found: Kernel | None) -> Kernel | None:
        """Aims again at what the activation maps to the right output, a few times; of all fits, the best behind it."""
        best, least = None, self._error_behind(self.kernel, function)
        for left in range(self.effort.rounds, -1, -1):
            if found is None:
                break
            if (error := self._error_behind(found, function)) < least:
                best, least = found, error
            if left:
                latest = found
                found = self._fit(lambda seen: nearest_hit(function, seen.value(latest), seen.target))  # noqa: B023
        return best

    def _look(self, pair: Pair) -> Iterator[_Looked]:
        images = sum(inputs.batch for inputs in pair.student.batches)
        each = -(-count_places(self.form, self.kernel.spec, self.effort) // images)
        for number, given in enumerate(pair.each(self.place)):
            high, wide = given.target.shape[2:]
            places = spread_places((high, wide), each, number * _GOLDEN % 1.0)
            output = apply_kernel(self.kernel, given.x, given.shifts)
            joins = at_places(given.joins, places) if isinstance(given.joins, Tensor) else given.joins
            target = at_places(given.target, places)
            factors = None if self.counting is None else self.counting.factors(target)
            yield _Looked(given, places, at_places(output, places), joins, target, factors)

    def _fit(self, aim: Aim) -> Kernel | None:
        self._moments = {pair: self._summed(pair, aim) for pair in (self.fitted, self.held_out)}
        correction = best_correction(self._moments[self.fitted], self._moments[self.held_out])
        return None if correction is None else corrected(self.kernel, self.form, correction)

    def _summed(self, pair: Pair, aim: Aim) -> Moments:
        """What the place reads is the same for every aim, so it is summed once."""
        moments = Moments(self._known_gram(pair))
        known = moments.gram is not None
        for seen in self._look(pair):
            left = Seen(seen.places, seen.output, aim(seen) - seen.joins - seen.output, seen.factors)
            for block in blocks(self.form, self.kernel.spec, seen.given.x, left):
                moments.add(block, gram=not known)
        key = pair.shared_key(self.place, self.form, self.kernel.spec)
        if pair.shared is not None and key is not None and moments.gram is not None:
            pair.shared.grams.keep(key, (moments.gram,))
        return moments

    def _known_gram(self, pair: Pair) -> Tensor | None:
        if (own := self._moments.get(pair)) is not None:
            return own.gram
        key = pair.shared_key(self.place, self.form, self.kernel.spec)
        known = pair.shared.grams.find(key) if pair.shared is not None and key is not None else None
        return None if known is None else known[0]

    def _error_behind(self, kernel: Kernel, function: Function) -> float:
        error = 0.0
        for seen in self._look(self.held_out):
            apart = (function(seen.value(kernel)) - function(seen.target)).double().square()
            error += float((apart if seen.factors is None else apart * seen.factors).sum())
        return error

    def _placing(self, function: Function) -> Placing:
        spread = Spread.of(given.target for given in self.fitted.each(self.place))
        search = PlacingSearch(function, spread.mean, spread.variance.sqrt(), scalable=self.place.scalable)
        for seen in self._look(self.fitted):
            search.add(seen.target)
        return search.best()
