"""Split: stratification counted by hand, both sides disjoint and complete, and what cannot be split."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from layermerge.data import split
from layermerge.data.images import Labels
from layermerge.errors import DataError


def generator(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def labels_of(*sizes: int) -> Labels:
    """Classes of these sizes, mixed."""
    return generator(7).permutation(np.repeat(np.arange(len(sizes)), sizes))


def test_shares_by_hand() -> None:
    # 10 of 10 + 20 + 70: exactly a tenth each; 7 of 50 + 30 + 20: 3.5, 2.1, 1.4, so the first is rounded up.
    assert split.proportional(np.array([10, 20, 70]), 10).tolist() == [1, 2, 7]
    assert split.proportional(np.array([50, 30, 20]), 7).tolist() == [4, 2, 1]
    assert split.proportional(np.array([3, 0, 3]), 6).tolist() == [3, 0, 3]


@given(st.lists(st.integers(0, 40), min_size=1, max_size=8).filter(any), st.data())
def test_every_class_gets_its_share_rounded(sizes: list[int], data: st.DataObject) -> None:
    count = data.draw(st.integers(0, sum(sizes)))
    labels = labels_of(*sizes)
    chosen = split.subset(labels, count, generator())
    assert len(set(chosen.tolist())) == count
    taken = np.bincount(labels[chosen], minlength=len(sizes))
    for size, part in zip(sizes, taken.tolist(), strict=True):
        assert abs(part - size * count / sum(sizes)) < 1


@given(st.lists(st.integers(1, 30), min_size=2, max_size=8).filter(lambda sizes: sum(sizes) > 2), st.data())
def test_no_class_is_missing_on_either_side(sizes: list[int], data: st.DataObject) -> None:
    labels = labels_of(*sizes)
    train, held = split.split(labels, data.draw(st.integers(1, len(labels) - 1)), None, generator())
    assert sorted([*train.tolist(), *held.tolist()]) == list(range(len(labels)))
    for label, size in enumerate(sizes):
        assert label in labels[train]
        assert (label in labels[held]) == (size >= 2)


def test_a_tenth_of_each_class_is_held_out() -> None:
    labels = labels_of(100, 50, 20)
    _, held = split.split(labels, 0.1, None, generator())
    assert np.bincount(labels[held]).tolist() == [10, 5, 2]
    assert held.tolist() == sorted(held.tolist())


def test_the_seed_decides() -> None:
    labels = labels_of(100, 50)
    first, again, other = (split.split(labels, 30, None, generator(seed))[1].tolist() for seed in (1, 1, 2))
    assert first == again != other


def test_the_tail_is_held_out_whole_or_in_part() -> None:
    labels = np.array([0, 1] * 50)
    train, held = split.split(labels, 0.1, 80, generator())
    assert train.tolist() == list(range(80))
    assert held.tolist() == list(range(80, 100))
    train, held = split.split(labels, 6, 80, generator())
    assert train.tolist() == list(range(80))
    assert min(held) >= 80
    assert np.bincount(labels[held]).tolist() == [3, 3]
    assert split.split(labels, 20, 80, generator())[1].tolist() == list(range(80, 100))


@pytest.mark.parametrize(
    ("count", "tail_from", "message"),
    [
        (1.5, None, r"held_out=1.5 is not a fraction between 0 and 1; a number of images is a whole number"),
        (0, None, r"held_out=0 of 10 images leaves nothing to hold out, or nothing to train on"),
        (10, None, r"held_out=10 of 10 images leaves nothing"),
        (5, 6, r"held_out=5 of 4 images leaves nothing"),
        (0.1, 10, r"held_out_from=10 leaves nothing on one side of the 10 training images"),
        (0.1, 0, r"held_out_from=0 leaves nothing on one side"),
    ],
)
def test_what_cannot_be_split(count: float, tail_from: int | None, message: str) -> None:
    with pytest.raises(DataError, match=message):
        split.split(labels_of(5, 5), count, tail_from, generator())
