"""Leaving out: as few layers as it takes, those that hurt most first; never all of them."""

from __future__ import annotations

from collections.abc import Collection
from itertools import combinations
from types import SimpleNamespace
from typing import Any

import pytest

from layermerge.errors import ArtifactError
from layermerge.quantization.leaving_out import leave_out

NOISE = {"a": 0.004, "b": 0.02, "c": 0.001, "d": 0.03, "e": 0.008, "f": 0.0005}


def network(names: Collection[str] = NOISE) -> Any:
    nodes = [SimpleNamespace(name=name, op_type="Conv") for name in names]
    return SimpleNamespace(graph=SimpleNamespace(node=[*nodes, SimpleNamespace(name="r", op_type="Relu")]))


def loss_without(nodes: Collection[str]) -> float:
    return sum(noise for name, noise in NOISE.items() if name not in nodes)


@pytest.mark.parametrize("most", [0.05, 0.035, 0.02, 0.012, 0.004, 0.0015, 0.0007])
def test_the_fewest_are_found_where_noise_adds_up(most: float) -> None:
    found = leave_out(network(), loss_without, loss_without(()), most)
    enough = [some for size in range(6) for some in combinations(NOISE, size) if loss_without(some) <= most]
    assert loss_without(found) <= most
    assert len(found) == len(enough[0])


def test_nothing_is_left_out_or_tried_where_the_loss_is_small_enough() -> None:
    def never(nodes: Collection[str]) -> float:
        raise AssertionError(nodes)

    assert leave_out(network(), never, 0.01, 0.01) == ()


def test_a_bound_that_only_float32_keeps_is_refused() -> None:
    with pytest.raises(ArtifactError, match=r"every layer would have to stay in float32; allow a larger loss"):
        leave_out(network(), loss_without, loss_without(()), 1e-6)
