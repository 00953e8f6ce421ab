"""Divergences: what single candidates lose, in the unit in which losses add up, and corrected by whole networks.

A divergence is quadratic in a small change. Of changes that have nothing in common the divergences add up; of changes that
pull the same way, their roots do. Those of one network lie between: with the power 0.75 sums agree best with whole
networks (benchmarks/additivity.py), so a *loss* is a divergence to this power. Where whole networks were scored, the losses of
their candidates, and terms between neighbours, are fitted to what these lost, as far as each was unsure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from layermerge.solving.labels import Floats
from layermerge.solving.pairs import Pairs
from layermerge.tables.estimates import fit_to_sums
from layermerge.tables.table import Row, Table

ADDS_UP = 0.75

_OWN, _IN_COMMON, _NEIGHBOURS = 0.15, 0.25, 0.2
"""How far losses within a whole network are off, relative: each by itself, all alike, and two neighbours by each other.

What makes the whole networks of benchmarks/additivity.py most likely.
"""
_LEAST = 1e-9
"""No measurement is certain, and two that contradict each other have no solution."""


@dataclass(frozen=True)
class Losses:
    """What candidates lose, and what neighbours lose beyond that; none of them, and no pair with its parts, gains anything."""

    alone: Mapping[str, float]
    neighbours: Pairs

    def of_whole(self, keys: Sequence[str]) -> float:
        """Of a whole choice, given by the keys of its candidates in order; what is not in the table loses nothing."""
        alone = sum(self.alone.get(key, 0.0) for key in keys)
        return alone + sum(self.neighbours.get(pair, 0.0) for pair in pairwise(keys))


def whole_rows(table: Table, *, but: str | None = None) -> list[Row]:
    """The whole networks that were scored, `but` one of them."""
    return [row for row in table.rows.values() if row.parts and row.status == "ok" and row.key != but]


def losses_of(table: Table, *, but: str | None = None) -> Losses:
    """The losses in a table of divergences, fitted to the whole networks in it, `but` one of them."""
    rows = [row for row in table.rows.values() if row.status == "ok" and (row.value or 0.0) < 0 and not row.parts]
    places = {row.key: place for place, row in enumerate(rows)}
    alone = np.array([_loss(row) for row in rows])
    wholes = whole_rows(table, but=but)
    if not wholes or not rows:
        return Losses(dict(zip(places, alone.tolist(), strict=True)), {})
    pairs = list(dict.fromkeys(pair for row in wholes for pair in pairwise(row.parts) if places.keys() >= set(pair)))
    counts = np.zeros((len(wholes), len(rows) + len(pairs)))
    numbers = {pair: len(rows) + number for number, pair in enumerate(pairs)}
    for number, row in enumerate(wholes):
        counts[number, [places[key] for key in row.parts if key in places]] = 1.0
        counts[number, [numbers[pair] for pair in pairwise(row.parts) if pair in numbers]] = 1.0
    missing = np.array([_loss(row) for row in wholes]) - counts[:, : len(rows)] @ alone
    noise = np.array([max(_spread(row), _LEAST) for row in wholes])
    both = np.array([[places[one], places[two]] for one, two in pairs], dtype=int).reshape(-1, 2)
    change, _ = fit_to_sums(_covariance(rows, alone, both), counts, missing, noise)
    fitted = np.maximum(alone + change[: len(rows)], 0.0)
    # What leaves a network with less to lose than without it would be worth more than the untouched layers.
    terms = np.maximum(change[len(rows) :], -fitted[both].min(1) / 2)
    return Losses(dict(zip(places, fitted.tolist(), strict=True)), dict(zip(pairs, terms.tolist(), strict=True)))


def _covariance(rows: Sequence[Row], alone: Floats, pairs: Floats) -> Floats:
    count = len(rows)
    found = np.zeros((count + len(pairs),) * 2)
    spreads = np.array([_spread(row) for row in rows])
    found[:count, :count] = np.diag(spreads**2 + (_OWN * alone) ** 2) + _IN_COMMON**2 * np.outer(alone, alone)
    np.fill_diagonal(found[count:, count:], _NEIGHBOURS**2 * alone[pairs].prod(1))
    return found


def _loss(row: Row) -> float:
    return float(max(-(row.value or 0.0), 0.0) ** ADDS_UP)


def _spread(row: Row) -> float:
    """Of the loss: by how much it changes with the divergence."""
    divergence = max(-(row.value or 0.0), row.spread)
    return ADDS_UP * divergence ** (ADDS_UP - 1) * row.spread if divergence > 0 else 0.0
