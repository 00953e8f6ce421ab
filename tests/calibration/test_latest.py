"""What is kept from one fit to the next: the values asked for last, never more bytes than allowed."""

from __future__ import annotations

import random

import torch
from torch import Tensor

from layermerge.calibration.latest import Latest


def value(numbers: int, of: float = 0.0) -> tuple[Tensor, ...]:
    return (torch.full((numbers,), of, dtype=torch.float32),)


def test_what_was_not_asked_for_longest_is_forgotten_first() -> None:
    store = Latest(8 * 4)
    store.keep("a", value(4))
    store.keep("b", value(4))
    assert store.find("a") is not None
    store.keep("c", value(4))
    assert store.find("b") is None
    assert store.find("a") is not None
    assert store.find("c") is not None


def test_what_is_too_large_alone_drives_nothing_out() -> None:
    store = Latest(8 * 4)
    store.keep("a", value(8))
    store.keep("b", value(9))
    assert store.find("a") is not None
    assert store.find("b") is None


def test_no_more_bytes_than_allowed_and_always_the_right_value() -> None:
    draw, store = random.Random(0), Latest(100 * 4)
    sizes = {key: draw.randint(1, 60) for key in range(12)}
    for _ in range(500):
        key = draw.randrange(12)
        found = store.find(key)
        if found is None:
            store.keep(key, value(sizes[key], key))
            found = store.find(key)
        assert found is not None
        assert found[0].tolist() == [float(key)] * sizes[key]
        assert sum(tensor.nbytes for kept in store._kept.values() for tensor in kept) <= 100 * 4
