"""Units of errors: against numpy, kind by kind; what is constant, what is rare, what trains."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from numpy.random import default_rng
from torch import Tensor

from layermerge.errors import DataError
from layermerge.tasks.units import Unit, errors, kinds_dimension, units_of

ANCHORS = 50


def detections(images: int, seed: int = 0) -> Any:
    """Images x anchors x (place, place, size, score): sizes vary by hundreds everywhere, scores at few anchors."""
    draws = default_rng(seed)
    said = draws.normal(0, 1, (images, ANCHORS, 4)) * [1, 2, 300, 0]
    said[..., 3] = (draws.random((images, ANCHORS)) < 0.05) * 0.9 + 0.05
    return said.astype(np.float32)


def rows(said: Any) -> tuple[Tensor]:
    return (torch.from_numpy(said).flatten(1),)


def units(layout: tuple[int, ...], *batches: Any) -> tuple[Unit, ...]:
    return units_of(lambda: [rows(batch) for batch in batches], [layout])


def by_hand(mine: Any, theirs: Any, known: Any, *, either: bool = False) -> Any:
    """The error of each image (images x anchors x kinds), in numpy: units and usual answers are those of `known`."""
    mine, theirs, known = (said.astype(np.float64) for said in (mine, theirs, known))
    variance = known.var(0, ddof=1).mean(0)

    def unusual(said: Any) -> Any:
        return ((said - known.mean(0)) ** 2 / variance).mean(2)

    scale = (unusual(known) * (1 + unusual(known)) / 2).mean() / unusual(known).mean()
    apart = ((mine - theirs) ** 2 / variance).mean(2)
    found = np.maximum(unusual(theirs), unusual(mine)) if either else unusual(theirs)
    return (apart * (1 + found) / 2).mean(1) / scale


def test_every_kind_counts_in_units_of_its_own_variance_and_unusual_places_count_more() -> None:
    original, other = detections(40), detections(40)
    other[..., 2] += 30
    other[..., 3] *= 0.5
    found = errors(rows(other), rows(original), units((ANCHORS, 4), original[:25], original[25:]))
    assert found.shape == (40, 1)
    assert found.dtype == torch.float64
    assert found[:, 0].numpy() == pytest.approx(by_hand(other, original, original), rel=1e-5)
    found = errors(rows(other), rows(original), units((ANCHORS, 4), original[:25], original[25:]), either=True)
    assert found[:, 0].numpy() == pytest.approx(by_hand(other, original, original, either=True), rel=1e-5)


def test_training_does_not_make_a_network_in_doubt_see_things_everywhere() -> None:
    """One that cannot tell where the six of 100 bright places are should say little; told by the original alone, half."""
    original = (default_rng(0).random((200, 100, 1)) < 0.06).astype(np.float32)
    unit = units((100, 1), original)
    said = np.linspace(0, 1, 101, dtype=np.float32)
    lost = {
        either: [
            float(errors(rows(np.full_like(original, one)), rows(original), unit, either=either).mean()) for one in said
        ]
        for either in (True, False)
    }
    assert said[np.argmin(lost[False])] == pytest.approx(0.5, abs=0.05)
    assert said[np.argmin(lost[True])] < 0.3


def test_a_box_that_is_read_counts_more_than_one_that_nobody_reads() -> None:
    """The same error of all sizes of boxes, where something is found and where nothing is."""
    original = detections(400)
    held = original[..., 3] > 0.5
    unit = units((ANCHORS, 4), original)
    lost = []
    for places in (held, ~held):
        other = original.copy()
        other[..., 2] += np.where(places, 30, 0)
        lost.append(float(errors(rows(other), rows(original), unit).mean()) / places.mean())
    # Where something is held, by a share p of the places, the score is (1 - p) / p variances from the usual, elsewhere
    # p / (1 - p): about 19 and 0.05. The other three kinds are 1 from the usual at either; the mean of all four counts.
    odds = (1 - held.mean()) / held.mean()
    assert lost[0] / lost[1] == pytest.approx((1 + (3 + odds) / 4) / (1 + (3 + 1 / odds) / 4), rel=0.02)


def test_an_original_that_says_the_same_of_every_image_is_measured_too() -> None:
    said = np.broadcast_to(default_rng(5).normal(0, 1, (1, 20, 3)), (30, 20, 3)).astype(np.float32)
    found = errors(rows(said * 2), rows(said), units((20, 3), said))
    # Each kind in its own mean square, as all three are constant; no place is unusual.
    assert found[:, 0].tolist() == pytest.approx([1.0] * 30, rel=1e-4)


def test_one_that_says_the_mean_is_1_apart() -> None:
    original = detections(4000)
    unit = units((ANCHORS, 4), original)
    mean = np.broadcast_to(original.mean(0), original.shape).copy()
    assert float(errors(rows(mean), rows(original), unit).mean()) == pytest.approx(1.0, abs=1e-3)


def test_a_tensor_of_one_kind_has_one_unit() -> None:
    said = default_rng(1).normal(0, [[1.0], [9.0]], (30, 1, 2, 5)).astype(np.float32)
    (unit,) = units((1, 2, 5), said)
    assert unit.weights.tolist() == pytest.approx([1 / said.astype(np.float64).var(0, ddof=1).mean()] * 10)


def test_scores_of_what_no_image_shows_hardly_count_and_do_not_dilute_the_others() -> None:
    draws = default_rng(2)
    shown = (draws.random((60, ANCHORS, 1)) < 0.1) * 0.9
    never = draws.random((60, ANCHORS, 79)) * 1e-4
    said = np.concatenate([shown, never], 2).astype(np.float32)
    unit = units((ANCHORS, 80), said)
    noisy, blind = said.copy(), said.copy()
    noisy[..., 1:] += 2e-4
    blind[..., 0] = shown.mean(0)[..., 0]
    assert float(errors(rows(noisy), rows(said), unit).mean()) < 0.01
    assert float(errors(rows(blind), rows(said), unit).mean()) == pytest.approx(1.0, abs=0.05)


def test_scores_that_do_occur_count_alike_however_often() -> None:
    """One in a hundred answers against one in two: variances differ by a factor of 25, and each is its own unit."""
    draws = default_rng(4)
    said = (draws.random((400, ANCHORS, 2)) < [0.5, 0.01]).astype(np.float32)
    (unit,) = units((ANCHORS, 2), said)
    variance = said.astype(np.float64).var(0, ddof=1).mean(0)
    assert variance[0] / variance[1] > 20
    assert unit.weights.view(ANCHORS, 2)[0].tolist() == pytest.approx((1 / variance).tolist(), rel=1e-5)


def test_a_kind_that_never_changes_is_counted_in_its_size() -> None:
    said = default_rng(3).normal(0, 1, (30, 20, 3)).astype(np.float32)
    said[..., 1], said[..., 2] = 5.0, 0.0
    (unit,) = units((20, 3), said)
    other = said.copy()
    other[..., 1] = 10.0
    # One kind varies, so that errors are in its units: those of the constant come to it, relative to its own square. They are
    # the same at every place, and places count by how unusual the one kind is.
    varying = said[..., 0].astype(np.float64)
    unusual = (varying - varying.mean(0)) ** 2 / varying.var(0, ddof=1).mean()
    expected = ((1 + unusual) / 2).mean() * unusual.mean() / ((1 + unusual) / 2 * unusual).mean()
    assert float(errors(rows(other), rows(said), (unit,)).mean()) == pytest.approx(expected, rel=1e-5)
    assert bool(unit.weights.isfinite().all())


@pytest.mark.parametrize("either", [False, True])
def test_gradients_flow_and_agree_with_what_is_reported(*, either: bool) -> None:
    original, other = detections(6), detections(6, 9)
    unit = units((ANCHORS, 4), original)
    (mine,) = rows(other)
    mine.requires_grad_()
    found = errors((mine,), rows(original), unit, either=either)
    torch.autograd.backward(found.sum())
    assert mine.grad is not None
    assert bool(mine.grad.abs().sum() > 0)
    assert found.detach().double().numpy() == pytest.approx(
        errors(rows(other), rows(original), unit, either=either).numpy(), rel=1e-5
    )


def test_outputs_that_are_not_finite_are_refused() -> None:
    said = detections(5)
    said[0, 0, 0] = np.inf
    with pytest.raises(DataError, match="not finite"):
        units((ANCHORS, 4), said)


@pytest.mark.parametrize(
    ("layout", "dimension"), [((7,), None), ((8400, 85), 1), ((85, 8400), 0), ((3, 8, 8), 0), ((2, 3, 4, 5), 3)]
)
def test_where_kinds_are_looked_for(layout: tuple[int, ...], dimension: int | None) -> None:
    assert kinds_dimension(layout) == dimension
