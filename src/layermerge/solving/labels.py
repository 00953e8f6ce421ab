"""Labels: the exact dynamic programme behind the frontier, over real-valued latencies. Needs numpy only.

In: options, each of which treats layers start..end-1 as one at a latency and a score, and the number of layers.
Out: a `ParetoSet`: every (latency, score) that no chain of options beats, each with its chain.
Guarantees: nothing is rounded unless a tick is asked for; latency and score of a point are the sums over its chain from left to
right, to the last bit; the order in which options are given changes nothing.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from layermerge.errors import OptionError

Floats = NDArray[np.float64]
Indices = NDArray[np.int32]

LARGEST = 1e100
"""Values beyond this are refused, so that no sum can overflow."""

SMALL = 8192
"""Below this many labels, sorting all of them is faster than looking for whole stretches to skip."""

STRETCH = 32
"""Labels of the longest run between two edges at which runs are compared."""


@dataclass(frozen=True, slots=True)
class Option:
    """Layers start..end-1 as one."""

    start: int
    end: int
    latency_ms: float
    score: float
    key: str


@dataclass(frozen=True)
class _Menu:
    """Options in the order (start, end, key), which decides ties; only those that lie on a chain from 0 to `layers`."""

    options: tuple[Option, ...]
    layers: int
    ending: tuple[tuple[int, ...], ...]
    last_use: tuple[int, ...]
    """The largest end of an option that starts at each place; after it, the labels there are of no more use."""


@dataclass(frozen=True)
class _Links:
    """Where the labels of one place came from: the option that ends there, and a label at that option's start."""

    option: Indices
    label: Indices


@dataclass(frozen=True)
class ParetoSet:
    """Points by ascending latency and strictly ascending score. Chains are put together only when asked for."""

    latency_ms: Floats
    score: Floats
    labels: int
    """How many labels the search kept over all layers: its memory is 8 bytes each."""
    tick_ms: float | None
    ticks: NDArray[np.int64] | None
    """With a tick: each point's latency as the search saw it, rounded up option by option."""
    _menu: _Menu
    _links: tuple[_Links, ...]
    _rows: NDArray[np.int64]
    _extra: tuple[tuple[int, ...], ...]

    def __len__(self) -> int:
        return len(self.latency_ms)

    def chain(self, index: int) -> tuple[str, ...]:
        """The keys of a point's options, first layer first."""
        row = int(self._rows[range(len(self))[index]])
        found = self._extra[-1 - row] if row < 0 else self._walk(row)
        return tuple(self._menu.options[option].key for option in found)

    def _walk(self, label: int) -> list[int]:
        found = []
        place = self._menu.layers
        while place > 0:
            links = self._links[place]
            option, label = int(links.option[label]), int(links.label[label])
            found.append(option)
            place = self._menu.options[option].start
        return found[::-1]


def pareto(
    options: Sequence[Option], layers: int, *, tick_ms: float | None = None, also: Sequence[Sequence[str]] = ()
) -> ParetoSet:
    """Finds every chain of options over all layers that no other chain beats in latency and score.

    >>> found = pareto([Option(0, 1, 2.0, 1.0, "a"), Option(1, 2, 3.0, 1.0, "b"), Option(0, 2, 4.0, 1.0, "ab")], 2)
    >>> [(float(ms), float(score), found.chain(i)) for i, (ms, score) in enumerate(zip(found.latency_ms, found.score))]
    [(4.0, 1.0, ('ab',)), (5.0, 2.0, ('a', 'b'))]

    Cost: O(options x labels per layer). Equal latency and score: the chain whose last option comes first in the order (start,
    end, key) stays, so longer ranges are preferred; then the one that reached that option sooner.

    `tick_ms` rounds each option's latency up to whole ticks inside the search, which bounds the labels per layer by the number
    of ticks. Latencies that come out are true sums all the same, and each score is at least the best possible at a latency
    smaller by (options in a chain) x tick. The fastest chain of all is among the points even then, and so is each chain of
    `also` (given by its keys) unless it is beaten.
    """
    menu = _menu(options, layers)
    if tick_ms is None:
        cost, score, _, links = _sweep(menu, [option.latency_ms for option in menu.options], carry=False)
        rows = np.arange(len(cost))
        return ParetoSet(cost, score, _count(links), None, None, menu, links, rows, ())
    rounded = _round_up(menu.options, tick_ms)
    cost, score, true, links = _sweep(menu, [float(ticks) for ticks in rounded], carry=True)
    numbers = {option.key: number for number, option in enumerate(menu.options)}
    extra = (_fastest(menu), *(tuple(numbers[key] for key in chain) for chain in also))
    for chain in extra:
        true = np.append(true, _total(menu.options[number].latency_ms for number in chain))
        score = np.append(score, _total(menu.options[number].score for number in chain))
        cost = np.append(cost, float(sum(rounded[number] for number in chain)))
    rows = np.concatenate([np.arange(len(cost) - len(extra)), -1 - np.arange(len(extra))])
    kept = undominated(true, score)
    ticks = cost[kept].astype(np.int64)
    return ParetoSet(true[kept], score[kept], _count(links), tick_ms, ticks, menu, links, rows[kept], extra)


def undominated(cost: Floats, score: Floats) -> NDArray[np.int64]:
    """Which points no other beats, by ascending cost; of equal points the first.

    Comparing is exact, and sound for prefixes because adding the same number to two floats never reverses their order.
    """
    order = np.argsort(cost, kind="stable")
    ranked = score[order]
    better = np.ones(len(order), dtype=np.bool_)
    better[1:] = ranked[1:] > np.maximum.accumulate(ranked)[:-1]
    order = order[better]
    # Scores now ascend, so of several at one cost the last is the best.
    ranked = cost[order]
    best = np.ones(len(order), dtype=np.bool_)
    best[:-1] = ranked[:-1] < ranked[1:]
    return order[best]


def _sweep(menu: _Menu, costs: Sequence[float], *, carry: bool) -> tuple[Floats, Floats, Floats, tuple[_Links, ...]]:
    """Fills the table: labels[l] = the Pareto set of (cost, score) over all chains that cover the first l layers.

    A label is (cost, score, last option, label that the option continues). `carry` also sums true latencies along each label's
    chain, for costs that are not latencies.
    """
    alive: dict[int, tuple[Floats, Floats, Floats]] = {0: (np.zeros(1), np.zeros(1), np.zeros(1))}
    links = [_Links(np.zeros(0, np.int32), np.zeros(0, np.int32))]
    for place in range(1, menu.layers + 1):
        ending = menu.ending[place]
        if ending:
            origins = [alive[menu.options[number].start] for number in ending]
            runs = [
                (cost + costs[number], score + menu.options[number].score)
                for number, (cost, score, _) in zip(ending, origins, strict=True)
            ]
            cost, score, run, label = _merge(runs)
            true = cost
            if carry:
                true = np.empty(len(cost))
                for index, number in enumerate(ending):
                    mine = run == index
                    true[mine] = origins[index][2][label[mine]] + menu.options[number].latency_ms
            alive[place] = cost, score, true
            links.append(_Links(np.asarray(ending, np.int32)[run], label))
        else:
            links.append(links[0])
        for done in [begin for begin in alive if menu.last_use[begin] <= place < menu.layers]:
            del alive[done]
    return (*alive[menu.layers], tuple(links))


def _merge(runs: Sequence[tuple[Floats, Floats]]) -> tuple[Floats, Floats, Indices, Indices]:
    """The Pareto set of a union of Pareto sets: costs, scores, and for each label its run and its index therein."""
    if sum(len(cost) for cost, _ in runs) <= SMALL:
        chosen = [np.arange(len(cost), dtype=np.int32) for cost, _ in runs]
    else:
        chosen = _promising(runs)
    cost = np.concatenate([run[0][index] for run, index in zip(runs, chosen, strict=True)])
    score = np.concatenate([run[1][index] for run, index in zip(runs, chosen, strict=True)])
    kept = undominated(cost, score)
    run = np.repeat(np.arange(len(runs), dtype=np.int32), [len(index) for index in chosen])[kept]
    return cost[kept], score[kept], run, np.concatenate(chosen)[kept]


def _promising(runs: Sequence[tuple[Floats, Floats]]) -> list[Indices]:
    """For each run the labels that some label left of the last edge before them does not already dominate.

    Both columns of a run ascend, so a whole stretch between two edges falls when its last score does: most labels are never
    looked at, and few remain to be sorted.
    """
    edges = max((cost for cost, _ in runs), key=len)[::STRETCH]
    cuts = [np.searchsorted(cost, edges) for cost, _ in runs]
    floor = np.full(len(edges) + 1, -np.inf)
    for (_, score), cut in zip(runs, cuts, strict=True):
        reached = cut > 0
        floor[1:][reached] = np.maximum(floor[1:][reached], score[cut[reached] - 1])
    chosen = []
    for (cost, score), cut in zip(runs, cuts, strict=True):
        begins, ends = np.concatenate([[0], cut]), np.concatenate([cut, [len(cost)]])
        survives = (ends > begins) & (score[ends - 1] > floor)
        lengths = (ends - begins)[survives]
        shift = np.repeat(begins[survives] - (np.cumsum(lengths) - lengths), lengths)
        index = np.arange(len(shift)) + shift
        chosen.append(index[score[index] > np.repeat(floor[survives], lengths)].astype(np.int32))
    return chosen


def _menu(options: Sequence[Option], layers: int) -> _Menu:
    """Checks the options, drops those on no whole chain, and puts the rest in order."""
    if layers < 1:
        raise OptionError(f"a network of {layers} layers leaves nothing to choose; give at least one layer")
    for key, times in Counter(option.key for option in options).items():
        if times > 1:
            raise OptionError(f"option '{key}' is given {times} times; give each key once")
    for option in options:
        check_option(option, layers)
    ordered = sorted(options, key=lambda option: (option.start, option.end, option.key))
    forward, backward = {0}, {layers}
    for option in ordered:
        if option.start in forward:
            forward.add(option.end)
    for option in reversed(ordered):
        if option.end in backward:
            backward.add(option.start)
    if layers not in forward:
        stuck = max(forward)
        raise OptionError(
            f"no chain of options covers all {layers} layers: none that can be reached goes past layer {stuck}; "
            f"give layer {stuck} an option"
        )
    useful = tuple(option for option in ordered if option.start in forward and option.end in backward)
    ending: list[list[int]] = [[] for _ in range(layers + 1)]
    last_use = [0] * (layers + 1)
    for number, option in enumerate(useful):
        ending[option.end].append(number)
        last_use[option.start] = max(last_use[option.start], option.end)
    return _Menu(useful, layers, tuple(map(tuple, ending)), tuple(last_use))


def check_option(option: Option, layers: int) -> None:
    """Refuses what is not a range of layers with a latency and a score."""
    if not 0 <= option.start < option.end <= layers:
        raise OptionError(
            f"option '{option.key}' covers layers {option.start}..{option.end}, which is not a range within 0..{layers}"
        )
    if not 0 <= option.latency_ms <= LARGEST:
        raise OptionError(
            f"option '{option.key}' has latency {option.latency_ms} ms; it must be a number from 0 to {LARGEST:g}"
        )
    if not abs(option.score) <= LARGEST:
        raise OptionError(
            f"option '{option.key}' has score {option.score}; it must be a number from -{LARGEST:g} to {LARGEST:g}"
        )


def _round_up(options: Sequence[Option], tick_ms: float) -> list[int]:
    """Latencies in whole ticks, never fewer than the true latency; fractions, because a float quotient may round down."""
    if not 0 < tick_ms < math.inf:
        raise OptionError(f"a tick of {tick_ms} ms cannot count latencies; give a positive number")
    tick = Fraction(tick_ms)
    ticks = [math.ceil(Fraction(option.latency_ms) / tick) for option in options]
    if sum(ticks) >= 2**53:
        raise OptionError(f"a tick of {tick_ms} ms is too fine to count these latencies exactly; give a larger one")
    return ticks


def _fastest(menu: _Menu) -> tuple[int, ...]:
    """The chain of least latency, which rounding may hide; of equals the one of higher score."""
    best: dict[int, tuple[float, float]] = {0: (0.0, -0.0)}
    came_by: dict[int, int] = {}
    for number, option in enumerate(menu.options):
        latency, negated = best[option.start]
        reached = latency + option.latency_ms, negated - option.score
        if option.end not in best or reached < best[option.end]:
            best[option.end], came_by[option.end] = reached, number
    found: list[int] = []
    place = menu.layers
    while place > 0:
        found.append(came_by[place])
        place = menu.options[came_by[place]].start
    return tuple(found[::-1])


def _total(values: Iterable[float]) -> float:
    total = 0.0
    for value in values:
        total += value  # not sum(), which newer Pythons compensate: a point is the plain sum from left to right
    return total


def _count(links: Sequence[_Links]) -> int:
    return sum(len(link.option) for link in links)
