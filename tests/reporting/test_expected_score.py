"""What the page says of budgets that were not tried."""

from __future__ import annotations

import doctest

import pytest

from layermerge.reporting import expected_score as file
from layermerge.reporting.expected_score import expected_score
from layermerge.solving.estimated_score import EstimatedScore
from layermerge.tasks.base import Score


def test_a_share_falls_by_as_many_points_and_stays_a_share() -> None:
    found = expected_score(EstimatedScore(0.91, 0.02), 0.93, Score("accuracy", 0.995, 100))
    assert (found.value, found.low, found.high) == pytest.approx((0.975, 0.955, 0.995))
    found = expected_score(EstimatedScore(0.92, 0.02), 0.93, Score("accuracy", 0.995, 100))
    assert found.high == 1.0


def test_a_loss_grows_by_the_same_factor() -> None:
    found = expected_score(EstimatedScore(-1.1, 0.05, "loss"), -1.0, Score("noise loss", 0.04, 100, kind="loss"))
    assert (found.value, found.low, found.high) == pytest.approx((0.044, 0.042, 0.046))


def test_a_distance_to_the_original_is_what_it_is() -> None:
    """The original's own is 0."""
    found = expected_score(EstimatedScore(-0.2, 0.05, "loss"), 0.0, Score("distance", 0.0, 100, kind="loss"))
    assert (found.value, found.low, found.high) == pytest.approx((0.2, 0.15, 0.25))


def test_examples() -> None:
    assert doctest.testmod(file).failed == 0
