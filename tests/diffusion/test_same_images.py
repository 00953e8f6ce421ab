"""From the same noise the same pictures: the original, rewritten and merged without a change, in a stock pipeline."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import layermerge as lm
import real_networks
from diffusion.stock import SMALL, noisy, pictures, small, told, unet
from solutions import randomise

STEPS = 20
SAME = 1e-3


def difference(expected: Any, actual: Any) -> float:
    assert expected.shape == actual.shape
    return float(np.abs(expected - actual).max())


def loaded(run: Path, net: Any, fresh: Any) -> Any:
    lm.save(run, net)
    return lm.load(run, fresh)


@pytest.fixture(scope="module")
def expected() -> Any:
    model, _ = small()
    images = pictures(model, model, STEPS)
    inside = (images > 0.01) & (images < 0.99)
    assert images.std() > 0.05
    assert inside.mean() > 0.2, "clipped nearly everywhere, so nothing would be shown"
    return images


@pytest.mark.parametrize("form", ["rewritten", "merged"])
def test_the_same_pictures_after_twenty_steps(tmp_path: Path, expected: Any, form: str) -> None:
    """Saved, and loaded with an original of other weights: what is sampled from is what the files hold."""
    model, trace = small()
    net = lm.rewrite(trace, [])
    drop_in = loaded(tmp_path, net if form == "rewritten" else lm.merge(net), randomise(unet(SMALL), 99))
    assert difference(expected, pictures(model, drop_in, STEPS)) < SAME


def test_a_merged_block_draws_what_the_unmerged_one_draws(tmp_path: Path, expected: Any) -> None:
    """The pictures are those of the library's block without its activation, and no longer the original's.

    One block, as sampling with random weights enlarges rounding errors some two hundred times, the library's own too.
    """
    model, trace = small()
    one = [next(candidate for candidate in lm.plan(trace).candidates if len(candidate.kept) == 2)]
    unmerged = pictures(model, told(model, one), STEPS)
    drop_in = loaded(tmp_path, lm.merge(lm.rewrite(trace, one)), model)
    assert difference(unmerged, pictures(model, drop_in, STEPS)) < SAME
    assert difference(expected, unmerged) > 10 * SAME


@pytest.mark.slow
def test_the_same_pictures_from_the_network_of_the_paper(tmp_path: Path) -> None:
    model: Any = randomise(real_networks.ddpm(), 3, noisy(2, 32)).eval()
    images = pictures(model, model, STEPS, batch=1)
    assert images.std() > 0.05
    net = lm.rewrite(lm.trace(model, noisy(2, 32)), [])
    for form, changed in (("rewritten", net), ("merged", lm.merge(net))):
        drop_in = loaded(tmp_path / form, changed, real_networks.ddpm().eval())
        assert difference(images, pictures(model, drop_in, STEPS, batch=1)) < SAME, form
