"""Image sets: keywords and shapes that do not fit are one line, before anything is read."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from layermerge.data.sets import Draw, ImageSets
from layermerge.errors import DataError
from layermerge.tasks.classification import Classification


def arrays(count: int = 20, shape: tuple[int, ...] = (4, 4, 3)) -> Any:
    return np.zeros((count, *shape), np.uint8), np.arange(count) % 2


@pytest.mark.parametrize(
    ("loading", "got"),
    [
        ({"seed": -1}, "-1, 250 and 0"),
        ({"eval_batch_size": 0}, "0, 0 and 0"),
        ({"workers": -2}, "0, 250 and -2"),
        ({"workers": 100_000}, "0, 250 and 100000"),
    ],
)
def test_keywords_out_of_range_are_refused(loading: Any, got: str) -> None:
    with pytest.raises(DataError) as raised:
        ImageSets(arrays(), arrays(), **loading)
    assert str(raised.value) == f"images need seed >= 0, eval_batch_size >= 1 and 0 to 256 workers; got {got}"


def test_unknown_keywords_are_named_beside_the_known_ones() -> None:
    misspelt: Any = {"heldout": 3}
    with pytest.raises(DataError, match="keyword argument 'heldout'; it takes train, test, preparation, held_out, "):
        Classification(arrays(), arrays(), **misspelt)


@pytest.mark.parametrize("wrong", [{"seed": -1}, {"epoch": -1}, {"first": -1}, {"batch_size": 0}])
def test_draws_out_of_range_are_refused(wrong: Any) -> None:
    with pytest.raises(DataError, match="a draw needs seed >= 0, epoch >= 0, first >= 0 and batch_size >= 1; got "):
        Draw(**{"seed": 0, "batch_size": 1, **wrong})


@pytest.mark.parametrize("shape", [(5, 4, 3), (4, 4, 1)], ids=["size", "channels"])
def test_training_test_and_held_out_images_have_one_shape(shape: tuple[int, ...]) -> None:
    height, width, channels = shape
    for name, sets in (("test", (arrays(shape=shape), 3)), ("held_out", (arrays(), arrays(shape=shape)))):
        with pytest.raises(DataError) as raised:
            ImageSets(arrays(), sets[0], held_out=sets[1])
        assert str(raised.value) == (
            f"the train arrays has images of 3 x 4 x 4, but the {name} arrays of {channels} x {height} x {width} "
            "(channels, height, width); give one shape"
        )
    floats = torch.zeros(20, 3, 4, 4), np.arange(20) % 2
    ImageSets(arrays(), floats, held_out=floats)  # prepared or not, they are of one shape
