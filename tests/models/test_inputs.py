"""Input shapes: what a user may write, and what would take more memory than there is."""

from __future__ import annotations

import pytest
import torch

from layermerge.errors import ModelError
from layermerge.models import parse_shape, random_input


@pytest.mark.parametrize(
    ("text", "shape"),
    [("3x224x224", (3, 224, 224)), ("1X28X28", (1, 28, 28)), ("16", (16,)), ("2x3x4x5", (2, 3, 4, 5))],
)
def test_a_shape_is_read(text: str, shape: tuple[int, ...]) -> None:
    assert parse_shape(text) == shape


@pytest.mark.parametrize(
    "text",
    ["", "3xx8", "3x0x8", "03x8x8", "-3x8x8", "3x8x8x", "3,8,8", "3x 8x8", "3x8x8\n", "³x32x32", "٣x32x32"]
    + ["1x1x1x1x1", "9999999999x1x1", "9" * 5000, "3x" * 5000],
)
def test_what_is_not_a_shape_is_one_short_line(text: str) -> None:
    with pytest.raises(ModelError, match="is not of the form 3x224x224") as caught:
        parse_shape(text)
    assert len(str(caught.value)) < 160


@pytest.mark.parametrize("text", ["999999999x999999999x999999999", "3x100000x100000", "100000001"])
def test_an_absurd_size_is_refused_before_any_memory_is_taken(text: str) -> None:
    with pytest.raises(ModelError, match=r"100,000,000 are the most"):
        parse_shape(text)
    with pytest.raises(ModelError, match="the most"):
        random_input(tuple(map(int, text.split("x"))))


def test_inputs_are_the_same_at_every_call() -> None:
    assert torch.equal(random_input((3, 4, 5)), random_input((3, 4, 5)))
    assert random_input((3, 4, 5)).shape == (2, 3, 4, 5)
