"""Images to calibrate with: every form, every fifth held out, what does not fit refused in one line."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import layermerge as lm
from layermerge.calibration.sample import Sample
from layermerge.errors import DataError
from layermerge.tracing.inputs import Inputs

EXAMPLE = Inputs.of(torch.zeros(2, 3, 4, 4))
IMAGES = torch.arange(50.0)[:, None, None, None].expand(50, 3, 4, 4)
"""Each of one colour, its number."""


def numbers(batches: tuple[Inputs, ...]) -> list[float]:
    return [float(image[0, 0, 0]) for inputs in batches for image in inputs.args[0]]


@pytest.mark.parametrize("size", [1, 7, 64])
def test_every_fifth_image_is_held_out_whatever_the_batches(size: int) -> None:
    for given in (IMAGES, list(torch.split(IMAGES, 3)), [(batch, 0) for batch in torch.split(IMAGES, 11)]):
        sample = Sample.of(given, EXAMPLE, 40, size)
        assert sample.count == 40
        assert numbers(sample.held_out) == list(range(4, 40, 5))
        assert numbers(sample.fitted) == [number for number in range(40) if number % 5 != 4]
        assert max(inputs.batch for inputs in (*sample.fitted, *sample.held_out)) <= size


def test_no_more_batches_are_read_than_needed() -> None:
    def endless() -> Any:
        while True:
            yield IMAGES[:8]

    assert Sample.of(endless(), EXAMPLE, 30, 64).count == 30


def test_a_task_gives_what_it_calls_networks_with_and_images_are_taken_as_they_are() -> None:
    pixels, labels = np.zeros((60, 4, 4, 3), np.uint8), np.arange(60) % 3
    task = lm.tasks.Classification((pixels, labels), (pixels, labels), held_out=6)
    assert Sample.of(task, EXAMPLE, 40, 64).count == 40
    train, _ = lm.tasks.load_images("embedded")
    sample = Sample.of(train, Inputs.of(torch.zeros(2, 1, 28, 28)), 100, 64)
    assert sample.count == 100
    assert 0 <= float(sample.fitted[0].args[0].min()) < float(sample.fitted[0].args[0].max()) <= 1


def test_inputs_by_name_and_several_inputs() -> None:
    both = Inputs((), {"x": EXAMPLE.args[0], "t": torch.zeros(2)})
    given = [{"x": IMAGES, "t": torch.arange(50), "label": 3}]
    sample = Sample.of(given, both, 50, 64)
    assert sample.held_out[0].kwargs["t"].tolist() == list(range(4, 50, 5))
    with pytest.raises(DataError, match="takes its inputs by name; give batches that are dicts with x, t"):
        Sample.of([IMAGES], both, 50, 64)
    with pytest.raises(DataError, match="the network takes 2 inputs, but a batch holds 1; give tuples"):
        Sample.of([IMAGES], Inputs.of((EXAMPLE.args[0], torch.zeros(2))), 50, 64)


@pytest.mark.parametrize(
    ("images", "words"),
    [
        (IMAGES[:19], "19 images are too few to calibrate with; give at least 20"),
        ([], "0 images are too few"),
        (torch.tensor(3.0), "images are a single number"),
        (torch.zeros(50, 3, 4, 5), r"a batch of images has shape \(50, 3, 4, 5\), but the network was traced with"),
        (torch.zeros(50, 1, 4, 4), "give images of that size"),
        ("folder", "images are a str; give a tensor, batches of images such as a DataLoader, or a task"),
        (3, "images are a int; give a tensor"),
        (["a", "b"], "holds something that is not a tensor"),
    ],
)
def test_what_does_not_fit_is_refused(images: Any, words: str) -> None:
    with pytest.raises(DataError, match=words):
        Sample.of(images, EXAMPLE, 50, 64)
