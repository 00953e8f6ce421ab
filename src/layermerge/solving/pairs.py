"""Pairs: terms between options that stand next to each other in a chain, told to a solver that knows only options.

In: options over layers, and what a pair of neighbours scores beyond the sum of the two. Out: options over places, each of which
is a boundary between layers together with the option that led there, where some pair begins with that option. Any chain of
these is a chain of the options given, with its terms in the sum, so the solver stays exact and labels dominate each other only
where the same may follow.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from layermerge.solving.labels import Option, check_option

Pairs = Mapping[tuple[str, str], float]
"""By the keys of two options, the second of which begins where the first ends: what they score beyond their sum."""

_Place = tuple[int, str | None]
"""A boundary between layers, and the option that led there if a pair begins with it."""


@dataclass(frozen=True)
class PairedMenu:
    """Options over the layers of a network, and terms between neighbours."""

    options: Sequence[Option]
    layers: int
    pairs: Pairs

    @property
    def last_place(self) -> int:
        """What takes the part of the number of layers."""
        return len(self._places) - 1

    @cached_property
    def expanded(self) -> list[Option]:
        """Every option from every place where it may begin, each with a key of its own."""
        found = []
        for option in self.options:
            check_option(option, self.layers)
            for before in self._at[option.start]:
                term = 0.0 if before is None else self.pairs.get((before, option.key), 0.0)
                start, end = self._places[option.start, before], self._places[option.end, self._led_by(option)]
                key = _key(option.key, before)
                found.append(Option(start, end, option.latency_ms, option.score + term, key))
        return found

    @cached_property
    def own_keys(self) -> dict[str, str]:
        """The option's own key, by that of it from a place."""
        return {_key(one.key, before): one.key for one in self.options for before in self._at[one.start]}

    def chain(self, keys: Sequence[str]) -> list[str]:
        """The keys, over places, of a chain that is given by its own keys."""
        known, found = {option.key: option for option in self.options}, []
        before: str | None = None
        for key in keys:
            found.append(_key(key, before))
            before = self._led_by(known[key])
        return found

    @cached_property
    def _begins_pair(self) -> frozenset[str]:
        return frozenset(first for first, _ in self.pairs)

    def _led_by(self, option: Option) -> str | None:
        return option.key if option.key in self._begins_pair and option.end < self.layers else None

    @cached_property
    def _at(self) -> dict[int, list[str | None]]:
        """What may have led to each boundary that matters to what follows."""
        found: dict[int, list[str | None]] = {boundary: [None] for boundary in range(self.layers + 1)}
        for option in self.options:
            if self._led_by(option) is not None:
                found[option.end].append(option.key)
        return found

    @cached_property
    def _places(self) -> dict[_Place, int]:
        """Numbers that ascend along every chain."""
        places = [(boundary, before) for boundary, led in self._at.items() for before in led]
        return {place: number for number, place in enumerate(places)}


def _key(key: str, before: str | None) -> str:
    return key if before is None else f"{key} after {before}"
