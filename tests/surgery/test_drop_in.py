"""A compressed denoising network in the place of the original, inside pipelines that know nothing of us."""

from __future__ import annotations

import random
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import layermerge as lm
import real_networks
from agreement import worst
from layermerge.errors import SurgeryError
from solutions import random_solution, randomise, untouched_solution


def small_unet() -> Any:
    return randomise(real_networks.small_unet(), 5).eval()


def noise(batch: int = 2, size: int = 16, channels: int = 3) -> Tensor:
    return torch.randn(batch, channels, size, size, generator=torch.Generator().manual_seed(batch))


@cache
def traced() -> lm.Trace:
    return lm.trace(small_unet(), (noise(), torch.tensor([10, 500])))


def saved_and_loaded(run: Path, solution: tuple[lm.Candidate, ...]) -> Any:
    lm.save(run, lm.merge(lm.rewrite(traced(), solution)))
    return lm.load(run, small_unet())


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A merged random solution, saved and loaded."""
    solution = random_solution(lm.plan(traced()), random.Random(4))
    assert not all(candidate.untouched for candidate in solution)
    return saved_and_loaded(tmp_path_factory.mktemp("random"), solution)


@pytest.fixture(scope="module")
def same(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Every layer kept alone, merged, saved and loaded: computes what the original computes."""
    return saved_and_loaded(tmp_path_factory.mktemp("same"), untouched_solution(lm.plan(traced())))


def pictures(name: str, unet: Any) -> Any:
    library = real_networks.import_diffusers()
    scheduler = {"DDIMPipeline": library.DDIMScheduler, "DDPMPipeline": library.DDPMScheduler}[name]
    pipe = getattr(library, name)(unet=small_unet(), scheduler=scheduler(num_train_timesteps=1000))
    pipe.set_progress_bar_config(disable=True)
    pipe.unet = unet
    generator = torch.Generator().manual_seed(3)
    return pipe(batch_size=3, generator=generator, num_inference_steps=4, output_type="np").images


@pytest.mark.parametrize("name", ["DDIMPipeline", "DDPMPipeline"])
def test_the_identity_solution_makes_the_same_pictures(same: Any, name: str) -> None:
    expected, actual = pictures(name, small_unet()), pictures(name, same)
    assert expected.std() > 0.05
    assert np.abs(expected - actual).max() < 1e-3


@pytest.mark.parametrize("name", ["DDIMPipeline", "DDPMPipeline"])
def test_a_compressed_network_makes_pictures(loaded: Any, name: str) -> None:
    made = pictures(name, loaded)
    assert made.shape == (3, 16, 16, 3)
    assert np.isfinite(made).all()
    assert made.std() > 0.01


@pytest.mark.parametrize("batch", [1, 2, 3])
@pytest.mark.parametrize("step", [250, torch.tensor(250), torch.tensor([250])], ids=["int", "0-dim", "1-dim"])
def test_one_time_step_for_all_samples(same: Any, batch: int, step: Any) -> None:
    if isinstance(step, Tensor) and step.dim() == 1 and batch > 1:
        step = step.expand(batch)
    with torch.no_grad():
        expected = small_unet()(noise(batch), step).sample
        assert worst(expected, same(noise(batch), step).sample) <= 1e-5
        assert worst(expected, same(sample=noise(batch), timestep=step).sample) <= 1e-5


def test_the_output_is_of_the_originals_kind(same: Any) -> None:
    with torch.no_grad():
        expected = small_unet()(noise(), 7)
        assert type(same(noise(), 7)) is type(expected)
        (sample,) = same(noise(), 7, return_dict=False)
        assert isinstance(same(noise(), 7, return_dict=False), tuple)
    assert worst(expected.sample, sample) <= 1e-5


def test_return_dict_is_asked_for_call_by_call(same: Any) -> None:
    with torch.no_grad():
        assert isinstance(same(noise(), 7, return_dict=False), tuple)
        assert not type(same(noise(), 7)) is tuple  # noqa: E714
        assert type(same(noise(), 7, None, True)) is type(small_unet()(noise(), 7))


def test_optional_arguments_may_be_none(same: Any) -> None:
    with torch.no_grad():
        assert worst(same(noise(), 7).sample, same(noise(), 7, class_labels=None).sample) <= 1e-5


def test_an_argument_that_was_not_traced_is_refused(same: Any) -> None:
    with pytest.raises(SurgeryError, match=r"^argument 'class_labels' was not among the example inputs that .* with$"):
        same(noise(), 7, class_labels=torch.tensor([1, 2]))


def test_the_configuration_comes_along(same: Any) -> None:
    assert same.config.in_channels == 3
    assert same.config.sample_size == 16
    assert same.dtype == torch.float32
    assert same.device == torch.device("cpu")


@pytest.mark.slow
def test_conditional_network(tmp_path: Path) -> None:
    """As Stable Diffusion's pipeline calls it: keywords at None, one step for the batch, a tuple back."""
    torch.manual_seed(7)
    model = randomise(real_networks.conditional_unet(), 5).eval()
    text = torch.randn(2, 5, 32, generator=torch.Generator().manual_seed(1))
    example = (noise(channels=4), torch.tensor([10, 500]), text)
    trace = lm.trace(model, example)
    menu = lm.plan(trace)
    for solution in (untouched_solution(menu), random_solution(menu, random.Random(2))):
        net = lm.rewrite(trace, solution).eval()
        lm.save(tmp_path, lm.merge(net))
        loaded = lm.load(tmp_path, real_networks.conditional_unet().eval())
        with torch.no_grad():
            expected = net(noise(channels=4), torch.tensor([33, 33]), text).sample
            (actual,) = loaded(
                noise(channels=4),
                torch.tensor(33),
                encoder_hidden_states=text,
                timestep_cond=None,
                cross_attention_kwargs=None,
                added_cond_kwargs=None,
                return_dict=False,
            )
        assert worst(expected, actual) <= 1e-5
