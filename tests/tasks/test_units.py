"""Units of errors: against numpy, kind by kind; what is constant, what is rare, what trains."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from numpy.random import default_rng
from torch import Tensor

from layermerge.errors import DataError
from layermerge.tasks.units import errors, kinds_dimension, weights_of

ANCHORS = 50


def detections(images: int, seed: int = 0) -> Any:
    """Images x anchors x (place, place, size, score): sizes vary by hundreds everywhere, scores at few anchors."""
    draws = default_rng(seed)
    said = draws.normal(0, 1, (images, ANCHORS, 4)) * [1, 2, 300, 0]
    said[..., 3] = (draws.random((images, ANCHORS)) < 0.05) * 0.9 + 0.05
    return said.astype(np.float32)


def rows(said: Any) -> tuple[Tensor]:
    return (torch.from_numpy(said).flatten(1),)


def test_every_kind_counts_in_units_of_its_own_variance() -> None:
    original, other = detections(40), detections(40)
    other[..., 2] += 30
    other[..., 3] *= 0.5
    weights = weights_of([rows(original[:25]), rows(original[25:])], [(ANCHORS, 4)])
    units = original.astype(np.float64).var(0, ddof=1).mean(0)
    expected = ((other.astype(np.float64) - original) ** 2).mean(1) / units
    found = errors(rows(other), rows(original), weights)
    assert found.shape == (40, 1)
    assert found.dtype == torch.float64
    assert found[:, 0].numpy() == pytest.approx(expected.mean(1), rel=1e-6)
    assert expected.mean(0)[3] > expected.mean(0)[2], "what the scores lost weighs more than what the sizes did"


def test_one_that_says_the_mean_is_1_apart() -> None:
    original = detections(4000)
    weights = weights_of([rows(original)], [(ANCHORS, 4)])
    mean = np.broadcast_to(original.mean(0), original.shape).copy()
    assert float(errors(rows(mean), rows(original), weights).mean()) == pytest.approx(1.0, abs=1e-3)


def test_a_tensor_of_one_kind_has_one_unit() -> None:
    said = default_rng(1).normal(0, [[1.0], [9.0]], (30, 1, 2, 5)).astype(np.float32)
    (weight,) = weights_of([rows(said)], [(1, 2, 5)])
    assert weight.tolist() == pytest.approx([1 / said.astype(np.float64).var(0, ddof=1).mean()])


def test_scores_of_what_no_image_shows_hardly_count_and_do_not_dilute_the_others() -> None:
    draws = default_rng(2)
    shown = (draws.random((60, ANCHORS, 1)) < 0.1) * 0.9
    never = draws.random((60, ANCHORS, 79)) * 1e-4
    said = np.concatenate([shown, never], 2).astype(np.float32)
    weights = weights_of([rows(said)], [(ANCHORS, 80)])
    noisy, blind = said.copy(), said.copy()
    noisy[..., 1:] += 2e-4
    blind[..., 0] = shown.mean(0)[..., 0]
    assert float(errors(rows(noisy), rows(said), weights).mean()) < 0.01
    assert float(errors(rows(blind), rows(said), weights).mean()) == pytest.approx(1.0, abs=0.05)


def test_scores_that_do_occur_count_alike_however_often() -> None:
    """One in a hundred answers against one in two: variances differ by a factor of 25, and each is its own unit."""
    draws = default_rng(4)
    said = (draws.random((400, ANCHORS, 2)) < [0.5, 0.01]).astype(np.float32)
    (weights,) = weights_of([rows(said)], [(ANCHORS, 2)])
    units = said.astype(np.float64).var(0, ddof=1).mean(0)
    assert units[0] / units[1] > 20
    assert weights.view(ANCHORS, 2)[0].tolist() == pytest.approx((1 / units).tolist(), rel=1e-5)


def test_a_kind_that_never_changes_is_counted_in_its_size() -> None:
    said = default_rng(3).normal(0, 1, (30, 20, 3)).astype(np.float32)
    said[..., 1], said[..., 2] = 5.0, 0.0
    weights = weights_of([rows(said)], [(20, 3)])
    other = said.copy()
    other[..., 1] = 10.0
    # One kind varies, so that errors are in its units: those of the constant come to it, relative to its own square.
    assert float(errors(rows(other), rows(said), weights).mean()) == pytest.approx(1.0, rel=1e-5)
    assert bool(weights[0].isfinite().all())


def test_gradients_flow_and_agree_with_what_is_reported() -> None:
    original, other = detections(6), detections(6, 9)
    weights = weights_of([rows(original)], [(ANCHORS, 4)])
    (mine,) = rows(other)
    mine.requires_grad_()
    found = errors((mine,), rows(original), weights)
    torch.autograd.backward(found.sum())
    assert mine.grad is not None
    assert bool(mine.grad.abs().sum() > 0)
    assert found.detach().double().numpy() == pytest.approx(
        errors(rows(other), rows(original), weights).numpy(), rel=1e-5
    )


def test_outputs_that_are_not_finite_are_refused() -> None:
    said = detections(5)
    said[0, 0, 0] = np.inf
    with pytest.raises(DataError, match="not finite"):
        weights_of([rows(said)], [(ANCHORS, 4)])


@pytest.mark.parametrize(
    ("layout", "dimension"), [((7,), None), ((8400, 85), 1), ((85, 8400), 0), ((3, 8, 8), 0), ((2, 3, 4, 5), 3)]
)
def test_where_kinds_are_looked_for(layout: tuple[int, ...], dimension: int | None) -> None:
    assert kinds_dimension(layout) == dimension
