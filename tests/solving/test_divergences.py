"""Losses and scores of choices that were not built, against worlds in which the truth is known."""

from __future__ import annotations

import doctest
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from layermerge.solving import divergences, estimated_score
from layermerge.solving.divergences import ADDS_UP, losses_of
from layermerge.solving.estimated_score import EstimatedScore, can_estimate, falling_fit, score_curve
from layermerge.tables.estimators.base import BASELINE
from layermerge.tables.table import Row, Table

KEYS = [f"k{number}" for number in range(8)]


def world(seed: int, *, spread: float = 1e-4, pair: float = 0.0, wholes: int = 12) -> tuple[Table, list[Row]]:
    """Eight candidates in a row; whole networks of some of them lose more where the third and fourth are neighbours."""
    generator = np.random.default_rng(seed)
    alone = dict(zip(KEYS, generator.uniform(0.01, 0.3, len(KEYS)), strict=True))
    rows = [Row(key=BASELINE, value=0.9)]
    rows += [Row(key=key, value=-value, spread=spread) for key, value in alone.items()]
    found = []
    for number in range(wholes + 20):
        parts = tuple(key if generator.random() < 0.6 else f"untouched {key}" for key in KEYS)
        loss = sum(alone.get(key, 0.0) ** ADDS_UP for key in parts) + pair * (("k2", "k3") in set(pairwise(parts)))
        value = loss ** (1 / ADDS_UP)
        found.append(Row(key=f"w{number}", value=-value, spread=spread, parts=parts, score=0.9 - 0.3 * value))
    provenance = {"kind": "importance", "estimator": "calibrated", "score": "share"}
    return Table(provenance, [*rows, *found[:wholes]]), found[wholes:]


@pytest.mark.parametrize("seed", range(5))
def test_a_term_between_neighbours_is_found_and_told_of_networks_that_were_not_scored(seed: int) -> None:
    table, others = world(seed, pair=0.15, wholes=40)
    losses = losses_of(table)
    assert losses.neighbours["k2", "k3"] > 2 * max(
        abs(term) for pair, term in losses.neighbours.items() if pair != ("k2", "k3")
    )
    plain = losses_of(table.restricted(lambda row: not row.parts))

    def error(of: divergences.Losses) -> float:
        missed = [of.of_whole(row.parts) - (-(row.value or 0.0)) ** ADDS_UP for row in others]
        return float(np.sqrt(np.mean(np.square(missed))))

    assert error(losses) < 0.5 * error(plain)


@given(st.integers(0, 1000), st.floats(-0.5, 0.5))
def test_nothing_gains_whatever_whole_networks_say(seed: int, pair: float) -> None:
    """Leaving a candidate out never raises the loss: what latency ruled out rests on that."""
    table, _ = world(seed, pair=max(pair, 0.0))
    rows = [
        row.model_copy(update={"value": (row.value or 0.0) * (1 + pair)}) if row.parts else row
        for row in table.rows.values()
    ]
    losses = losses_of(Table(table.provenance, rows))
    assert all(loss >= 0 for loss in losses.alone.values())
    total = losses.of_whole(KEYS)
    for left_out in KEYS:
        # Between the two neighbours then stands an untouched layer.
        keys = [f"untouched {key}" if key == left_out else key for key in KEYS]
        assert losses.of_whole(keys) <= total + 1e-12


@pytest.mark.parametrize("seed", range(5))
def test_scores_of_unseen_networks_lie_within_the_interval(seed: int) -> None:
    table, others = world(seed, pair=0.1)
    losses = losses_of(table)
    curve = score_curve(table, losses)
    farthest = max(losses.of_whole(row.parts) for row in table.rows.values() if row.parts)
    within = []
    for row in others:
        loss = losses.of_whole(row.parts)
        found = curve(loss)
        assert found.value <= 0.9
        if loss <= farthest:
            within.append(abs(found.value - (row.score or 0.0)) <= found.error)
    assert sum(within) >= 0.9 * len(within) > 10
    assert curve(0.0) == EstimatedScore(0.9, 0.0)


def test_too_few_whole_networks_estimate_nothing() -> None:
    table, _ = world(0, wholes=3)
    assert not can_estimate(table)
    assert can_estimate(world(0, wholes=4)[0])


def test_estimates_read_as_people_write_them() -> None:
    assert str(EstimatedScore(0.851, 0.008)) == "85.1 ± 0.8 %"
    assert str(EstimatedScore(-1.0432, 0.012, "loss")) == "1.043 ± 0.012"


@given(st.lists(st.floats(-5, 5), min_size=1, max_size=12))
def test_a_falling_fit_is_the_nearest_one(values: list[float]) -> None:
    """By the condition of the textbook: means of blocks, each the largest mean of what ends there from any start."""
    expected = [
        min(max(float(np.mean(values[a : b + 1])) for b in range(at, len(values))) for a in range(at + 1))
        for at in range(len(values))
    ]
    np.testing.assert_allclose(falling_fit(values), expected, atol=1e-9)


def test_examples() -> None:
    assert doctest.testmod(estimated_score).failed == 0
