"""Explaining: layer by layer, what can be done with it, what that saves and loses, what cannot be done, and what to change.

In: a plan, and the tables that there are of it. Out: an `Explanation`, plain data that JSON can hold. The facts are those of
the plan, of `Prices` and of `reasons`; nothing is decided here.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from layermerge.arguments import checked
from layermerge.errors import PlanError
from layermerge.planning.barriers import barrier_ahead, barrier_behind, reach
from layermerge.planning.plan import Plan, Rejection
from layermerge.reporting.fact_records import CandidateFacts, LayerFacts
from layermerge.reporting.prices import Prices
from layermerge.reporting.reasons import plain_words, what_to_change
from layermerge.solving.estimated_score import EstimatedScore, scores_alone
from layermerge.tables.estimators.base import BASELINE
from layermerge.tables.latency import LatencyTable
from layermerge.tables.table import Table

_UNKNOWN = "they do not follow each other: another branch, or a residual block, begins or ends between them"


@dataclass(frozen=True)
class Loss:
    """By how much the task's score would fall before any fine-tuning; off by less than `error` in 95 % of cases."""

    fall: float
    error: float
    kind: str


@dataclass(frozen=True)
class Offer:
    """Something that can be done with a layer; `off` says why it is not on the menu all the same."""

    facts: CandidateFacts
    loss: Loss | None = None
    off: str | None = None


@dataclass(frozen=True)
class Obstacle:
    """Something that cannot be done: the rule, the same in plain words, and what to change, empty where that is not known."""

    what: str
    reason: str
    plain: str
    change: str
    at_most_ms: float | None = None
    """What its layers take, all of which it could not save; None where they were not timed."""


@dataclass(frozen=True)
class LayerExplanation:
    """Offers come in the order of what they save. `share` is the layer's part of the network's time; of its multiplications,
    where nothing was timed."""

    place: int
    facts: LayerFacts
    share: float
    offers: tuple[Offer, ...]
    obstacles: tuple[Obstacle, ...]

    @property
    def best(self) -> Offer | None:
        """What saves most for what it loses, of what is on the menu; where nothing was measured, there is none."""
        return max(self.worthwhile, key=_worth, default=None)

    @property
    def worthwhile(self) -> tuple[Offer, ...]:
        """What is on the menu and saves time, without what saves less than another and changes the answers no less."""
        left: list[Offer] = []
        for offer in self.offers:
            saves = offer.off is None and (offer.facts.saved_ms or 0.0) > 0 and offer.facts.change is not None
            if saves and (not left or _change(offer) < _change(left[-1])):
                left.append(offer)
        return tuple(left)


@dataclass(frozen=True)
class Explanation:
    """All layers of a network, in order."""

    layers: tuple[LayerExplanation, ...]
    original_ms: float | None = None
    fixed_ms: float | None = None

    @property
    def timed(self) -> bool:
        return any(layer.facts.latency_ms is not None for layer in self.layers)

    @property
    def heaviest(self) -> tuple[LayerExplanation, ...]:
        return tuple(sorted(self.layers, key=lambda layer: -layer.share))

    @checked(PlanError)
    def layer(self, name: str) -> LayerExplanation:
        """By its name, its number, or a part of its name that no other layer has."""
        names = [each.facts.layer.name for each in self.layers]
        numbered = [names[int(name)]] if name.isdecimal() and int(name) < len(names) else []
        hits = [own for own in names if own == name] or numbered or [own for own in names if name in own]
        if len(hits) == 1:
            return self.layers[names.index(hits[0])]
        if hits:
            more = f" and {len(hits) - 4} more" if len(hits) > 4 else ""
            raise PlanError(f"'{name}' fits {len(hits)} layers: {', '.join(hits[:4])}{more}; give more of the name")
        close = difflib.get_close_matches(name, names, n=3, cutoff=0.3)
        raise PlanError(f"no layer is called '{name}'; did you mean {' or '.join(map(repr, close or names[:3]))}?")


@checked(PlanError)
def explain(plan: Plan, latency: LatencyTable | None = None, importance: Table | None = None) -> Explanation:
    """Why each layer of a plan is where it is: what can be done with it, what that saves and loses, and what stands in the way.

    Without tables nothing is said of milliseconds and scores.

    >>> net = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 8, 3, padding=1))
    >>> first = explain(plan(trace(net, torch.randn(2, 3, 16, 16)))).layer("0")
    >>> [offer.facts.words for offer in first.offers], [each.what for each in first.obstacles]
    (['0 and 2 become one 3×3, 2 removed', '0 and 2 become one 5×5'], ['remove it'])
    """
    prices = Prices(plan, latency, importance)
    estimate = scores_alone(importance) if importance is not None else None
    made = _Explaining(prices, _losses(importance, estimate))
    layers = [prices.layer(place) for place in range(len(plan.layers))]
    heavy = _shares(layers, prices.whole_ms)
    explained = tuple(
        LayerExplanation(place, layer, heavy[place], made.offers(place), tuple(made.obstacles(place)))
        for place, layer in enumerate(layers)
    )
    return Explanation(explained, prices.whole_ms, prices.fixed_ms)


class _Explaining:
    def __init__(self, prices: Prices, loss: Callable[[str], Loss | None]) -> None:
        self.plan, self.prices, self._loss = prices.plan, prices, loss
        self.stopped: Mapping[tuple[int, int], Rejection] = {
            (each.start, each.end): each for each in self.plan.rejections
        }

    def offers(self, place: int) -> tuple[Offer, ...]:
        around = [each for each in self.plan.candidates if each.start <= place < each.end and not each.untouched]
        found = [Offer(self.prices.candidate(each), self._loss(each.key), self._off(each.key)) for each in around]
        return tuple(sorted(found, key=_rank))

    def _off(self, key: str) -> str | None:
        row = self.prices.importance.rows.get(key) if self.prices.importance else None
        if row is not None and row.status != "ok":
            return row.reason or row.status
        latency = self.prices.latency
        return latency.why_off(self.plan[key]) if latency is not None and self.prices.all_timed else None

    def obstacles(self, place: int) -> list[Obstacle]:
        alone = self._taken(place, place + 1)
        found = [] if self.plan.single(place, kept=False) else [replace(self._not_removed(place), at_most_ms=alone)]
        start, end = reach(self.plan, place)
        names = [layer.name for layer in self.plan.layers]
        if end < len(names):
            stop = self._stop(barrier_behind(self.plan, place), place, end + 1)
            what = f"merge it with {names[stop.end - 1]} behind it"
            found.append(_obstacle(what, stop.reason, self._taken(place, stop.end)))
        if start > 0:
            stop = self._stop(barrier_ahead(self.plan, place), start - 1, place + 1)
            what = f"merge it with {names[stop.start]} ahead of it"
            found.append(_obstacle(what, stop.reason, self._taken(stop.start, place + 1)))
        return found

    def _stop(self, known: Rejection | None, start: int, end: int) -> Rejection:
        """What is known to stop ranges here; a method that offers less stops them at once, and no rule says so."""
        if self.plan.method != "layermerge" and (start, end) not in self.stopped:
            return Rejection(start, end, f"the method {self.plan.method} offers no such range")
        return known or Rejection(start, end, _UNKNOWN)

    def _taken(self, start: int, end: int) -> float | None:
        taken = [self.prices.layer(place).latency_ms for place in range(start, end)]
        known = [each for each in taken if each is not None]
        return sum(known) if len(known) == len(taken) else None

    def _not_removed(self, place: int) -> Obstacle:
        layer, rules = self.plan.layers[place], self.plan.rules
        kept = self.plan.single(place, kept=True)
        if kept and kept.fixed:
            return _obstacle("remove it", f"'{layer.name}' is outside the table")
        if layer.irreducible:
            before, after = ("x".join(map(str, shape)) for shape in (layer.input_shape, layer.output_shape))
            return Obstacle(
                "remove it",
                f"its input is {before}, its output {after}",
                "Without it, what follows would get another number of channels or another size.",
                "In the network, give it as many channels out as in, and no stride. It can still merge with its neighbours.",
            )
        if rules.identities != "all":
            return Obstacle(
                "remove it", "the rules empty only convs right after a resize", "", "Say rules.identities: all."
            )
        if self.plan.method == "depth":
            return Obstacle(
                "remove it", "the method depth keeps every conv", "", "Take the method layermerge or layeronly."
            )
        rejected = self.stopped.get((place, place + 1))
        return _obstacle("remove it", rejected.reason if rejected else f"'{layer.name}' is pinned")


def _obstacle(what: str, reason: str, at_most_ms: float | None = None) -> Obstacle:
    return Obstacle(what, reason, plain_words(reason), what_to_change(reason), at_most_ms)


def _shares(layers: list[LayerFacts], whole_ms: float | None) -> list[float]:
    if any(layer.latency_ms is not None for layer in layers):
        taken = [layer.latency_ms or 0.0 for layer in layers]
        return [each / (whole_ms or sum(taken) or 1.0) for each in taken]
    work = [_multiplications(layer) for layer in layers]
    return [each / sum(work) for each in work]


def _multiplications(facts: LayerFacts) -> int:
    layer, spec = facts.layer, facts.layer.spec
    channels, height, width = layer.output_shape
    return channels * height * width * spec.kernel[0] * spec.kernel[1] * spec.in_channels // spec.groups


def _losses(importance: Table | None, estimate: Callable[[str], EstimatedScore] | None) -> Callable[[str], Loss | None]:
    if importance is None or estimate is None:
        return lambda _: None
    untouched = importance[BASELINE].value or 0.0

    def loss(key: str) -> Loss | None:
        if key not in importance or importance[key].status != "ok":
            return None
        score = estimate(key)
        return Loss(untouched - score.value, score.error, score.kind)

    return loss


def _rank(offer: Offer) -> tuple[bool, float, int]:
    """What is on the menu first, then what saves most, then what is nearest."""
    return offer.off is not None, -(offer.facts.saved_ms or 0.0), len(offer.facts.candidate.layers)


def _change(offer: Offer) -> float:
    return -(offer.facts.change or 0.0)


def _worth(offer: Offer) -> float:
    """Milliseconds for what is lost; a loss is never so small that it does not count."""
    lost = offer.loss.fall if offer.loss is not None else _change(offer)
    return (offer.facts.saved_ms or 0.0) / max(lost, 1e-3)
