"""DDIM against diffusers' scheduler, against a network that knows the answer, and on its own promises."""

from __future__ import annotations

import doctest
import math
import random
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import real_networks
from layermerge.errors import DataError
from layermerge.sampling import ddim
from layermerge.sampling.ddim import Spacing, sample, time_steps
from layermerge.tasks.noise import NoiseSchedule

SHAPE = (3, 8, 8)
SCHEDULE = NoiseSchedule.from_betas()


class Denoiser(nn.Module):
    """Tiny, smooth and dependent on time."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 8, 3, padding=1)
        self.drop = nn.Dropout(0.5)
        self.last = nn.Conv2d(8, 3, 3, padding=1)

    def forward(self, images: Tensor, times: Tensor) -> Tensor:
        assert times.dtype == torch.int64
        assert times.shape == (len(images),)
        return torch.tanh(self.last(self.drop(torch.tanh(self.first(images) + times.view(-1, 1, 1, 1) / 500))))


def denoiser() -> Denoiser:
    torch.manual_seed(3)
    return Denoiser()


def near(one: Tensor, other: Tensor) -> bool:
    """The same images of this denoiser, whatever kernels computed them: it hardly enlarges rounding errors."""
    return bool((one - other).abs().max() < 1e-5)


def ddim_scheduler(prediction: str = "epsilon", clip: bool = True) -> Any:
    return real_networks.import_diffusers().DDIMScheduler(
        num_train_timesteps=1000,
        beta_start=1e-4,
        beta_end=0.02,
        set_alpha_to_one=True,
        steps_offset=0,
        clip_sample=clip,
        prediction_type=prediction,
        timestep_spacing="leading",
    )


Calls = list[tuple[Tensor, Tensor]]


def calls_of(network: nn.Module) -> Calls:
    """What the network is given and answers from now on."""
    calls: Calls = []

    def note(_: nn.Module, given: Any, answer: Any) -> None:
        calls.append((given[0].clone(), (answer if isinstance(answer, Tensor) else answer.sample).clone()))

    network.register_forward_hook(note)
    return calls


def require_steps_of(scheduler: Any, calls: Calls, made: Tensor, **options: Any) -> None:
    """Each step is the one that diffusers' own scheduler takes from the same state and the same prediction.

    Step by step, because a network enlarges the last bit of a state at every call: with random weights a thousand times in
    ten steps, so two samplers that agree in every step may end far apart, as far as the processor's kernels decide.
    """
    noise: Callable[[], Tensor] | None = options.pop("noise", None)
    scheduler.set_timesteps(len(calls))
    following = [state for state, _ in calls[1:]]
    for time, (state, predicted), ours in zip(scheduler.timesteps, calls, [*following, None], strict=True):
        added = noise() if noise is not None else None
        theirs = scheduler.step(predicted, int(time), state, variance_noise=added, **options).prev_sample
        if ours is None:
            theirs, ours = (theirs / 2 + 0.5).clamp(0, 1), made
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)


# -- time steps


def test_uniform_time_steps_are_those_of_the_authors() -> None:
    assert time_steps(1000, 50) == tuple(range(0, 1000, 20))
    assert time_steps(1000, 1000) == tuple(range(1000))
    assert time_steps(1000, 300) == tuple(range(0, 1000, 3))  # a whole number apart, so more than asked for


@pytest.mark.parametrize("steps", [1000, 100])
@pytest.mark.parametrize("count", [1, 2, 10, 50, 100])
def test_quadratic_time_steps_are_those_of_the_authors_where_these_rise(steps: int, count: int) -> None:
    theirs = [int(square) for square in np.linspace(0, np.sqrt(steps * 0.8), count) ** 2]
    ours = time_steps(steps, count, "quadratic")
    assert len(ours) == count
    assert ours[-1] < steps
    brute = [0]
    for step in theirs[1:]:
        brute.append(max(step, brute[-1] + 1))
    assert list(ours) == brute


@pytest.mark.parametrize("count", [0, -1, 1001])
def test_impossible_counts_of_steps(count: int) -> None:
    with pytest.raises(DataError, match=f"cannot take {count} steps of a schedule of 1000; give 1 to 1000"):
        time_steps(1000, count)


def test_unknown_spacing() -> None:
    with pytest.raises(DataError, match="no spacing 'cubic' of time steps; choose uniform or quadratic"):
        time_steps(1000, 10, "cubic")  # type: ignore[arg-type]


def test_examples_run() -> None:
    failed, attempted = doctest.testmod(ddim)
    assert (failed, attempted > 1) == (0, True)


# -- oracles


@pytest.mark.parametrize("prediction", ["epsilon", "v_prediction", "sample"])
@pytest.mark.parametrize("clip", [True, False])
def test_same_steps_as_diffusers(prediction: Any, clip: bool) -> None:
    network = denoiser()
    calls = calls_of(network)
    schedule = NoiseSchedule.from_betas(prediction=prediction)
    made = sample(network, schedule, SHAPE, count=4, steps=20, clip=clip, seed=2)
    assert made.std() > 0.02
    assert len(calls) == 20
    require_steps_of(ddim_scheduler(prediction, clip), calls, made)


def test_same_steps_as_diffusers_with_its_own_network_and_schedule() -> None:
    network = real_networks.small_unet()
    calls = calls_of(network)
    made = sample(network, NoiseSchedule.of(ddim_scheduler()), (3, 16, 16), count=2, steps=10)
    assert made.std() > 0.05
    require_steps_of(ddim_scheduler(), calls, made)


@pytest.mark.parametrize("eta", [0.3, 1.0])
def test_same_steps_as_diffusers_with_noise_on_the_way(eta: float) -> None:
    def generator(index: int) -> torch.Generator:
        state = np.random.SeedSequence((7, index)).generate_state(1, np.uint64)
        return torch.Generator().manual_seed(int(state[0]))

    generators = [generator(index) for index in range(3)]

    def noise() -> Tensor:
        return torch.stack([torch.randn(SHAPE, generator=generator) for generator in generators])

    network = denoiser()
    calls = calls_of(network)
    made = sample(network, SCHEDULE, SHAPE, count=3, steps=10, eta=eta, seed=7)
    assert torch.equal(noise(), calls[0][0])
    require_steps_of(ddim_scheduler(), calls, made, eta=eta, noise=noise)
    assert (made - sample(network, SCHEDULE, SHAPE, count=3, steps=10, seed=7)).abs().max() > 0.01


@pytest.mark.parametrize("spacing", ["uniform", "quadratic"])
@pytest.mark.parametrize("eta", [0.0, 1.0])
@pytest.mark.parametrize("clip", [True, False])
def test_a_network_that_knows_the_image_gives_it_back(spacing: Spacing, eta: float, clip: bool) -> None:
    answer = torch.rand(SHAPE, generator=torch.Generator().manual_seed(1))

    def perfect(noisy: Tensor, times: Tensor) -> Tensor:
        kept = SCHEDULE.kept[times].view(-1, 1, 1, 1)
        return ((noisy - kept.sqrt() * (answer * 2 - 1)) / (1 - kept).sqrt()).float()

    made = sample(perfect, SCHEDULE, SHAPE, count=2, steps=7, eta=eta, spacing=spacing, clip=clip)
    assert (made - answer).abs().max() < 1e-4


def test_the_last_step_goes_to_the_image_itself() -> None:
    """Where the schedule keeps everything at time step 0, nothing divides by zero."""
    schedule = NoiseSchedule(torch.tensor([1.0, 1.0, 0.5, 0.1]), "sample")
    made = sample(lambda noisy, _: torch.full_like(noisy, 0.5), schedule, SHAPE, count=1, steps=4, eta=1.0)
    assert torch.equal(made, torch.full((1, *SHAPE), 0.75))


# -- what it promises


def test_images_are_plain_floats_between_0_and_1() -> None:
    made = sample(denoiser(), SCHEDULE, SHAPE, count=3, steps=5, clip=False)
    assert made.dtype == torch.float32
    assert made.shape == (3, *SHAPE)
    assert 0 <= made.min() < made.max() <= 1
    assert not made.is_inference()
    assert not made.requires_grad


@pytest.mark.parametrize("eta", [0.0, 0.5])
@pytest.mark.parametrize("batch_size", [1, 2, 4, 64])
def test_batches_do_not_matter(eta: float, batch_size: int) -> None:
    network = denoiser()
    whole = sample(network, SCHEDULE, SHAPE, count=5, steps=6, eta=eta, batch_size=5)
    assert near(sample(network, SCHEDULE, SHAPE, count=5, steps=6, eta=eta, batch_size=batch_size), whole)
    assert near(sample(network, SCHEDULE, SHAPE, count=3, steps=6, eta=eta, batch_size=batch_size), whole[:3])


def test_the_seed_decides() -> None:
    network = denoiser()
    first, again, other = (sample(network, SCHEDULE, SHAPE, count=2, steps=4, eta=1, seed=seed) for seed in (1, 1, 2))
    assert near(first, again)
    assert (first - other).abs().max() > 0.01
    assert (first[0] - first[1]).abs().max() > 0.01


def test_global_random_state_stays() -> None:
    before = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].copy()  # type: ignore[index]
    sample(denoiser(), SCHEDULE, SHAPE, count=2, steps=4, eta=1)
    torch.manual_seed(3)
    network = denoiser()
    middle = torch.get_rng_state()
    sample(network, SCHEDULE, SHAPE, count=2, steps=4, eta=1)
    assert torch.equal(torch.get_rng_state(), middle)
    assert random.getstate() == before[1]
    assert np.array_equal(np.random.get_state()[1], before[2])  # type: ignore[index]


def test_modes_are_those_of_evaluation_and_then_as_before() -> None:
    network = denoiser().train()
    network.first.eval()
    made = sample(network, SCHEDULE, SHAPE, count=2, steps=4)
    assert (network.training, network.first.training, network.last.training) == (True, False, True)
    assert near(made, sample(network.eval(), SCHEDULE, SHAPE, count=2, steps=4))
    network.train()
    with pytest.raises(DataError):
        sample(network, SCHEDULE, (5, 8, 8), count=1)
    assert network.training


def test_conditions_follow_the_indices_of_the_images() -> None:
    asked: list[tuple[int, int]] = []

    def conditions(first: int, last: int) -> tuple[Tensor, ...]:
        asked.append((first, last))
        return torch.arange(first, last), torch.ones(last - first)

    def network(noisy: Tensor, _: Tensor, labels: Tensor, ones: Tensor) -> Tensor:
        assert ones.sum() == len(noisy)
        return (labels / 10).view(-1, 1, 1, 1).expand_as(noisy)

    schedule = NoiseSchedule.from_betas(prediction="sample")
    made = sample(network, schedule, SHAPE, count=5, steps=2, batch_size=2, conditions=conditions)
    assert asked == [(0, 2), (2, 4), (4, 5)]
    assert made.mean((1, 2, 3)).tolist() == pytest.approx([0.5 + index / 20 for index in range(5)])


@pytest.mark.parametrize(
    "wrap",
    [
        lambda given: (given, None),
        lambda given: [given],
        lambda given: SimpleNamespace(sample=given),
        lambda given: {"sample": given},
    ],
    ids=["tuple", "list", "object", "dict"],
)
def test_answers_may_be_wrapped(wrap: Callable[[Tensor], Any]) -> None:
    network = denoiser().eval()
    made = sample(lambda *given: wrap(network(*given)), SCHEDULE, SHAPE, count=2, steps=3)
    assert near(made, sample(network, SCHEDULE, SHAPE, count=2, steps=3))


def test_a_network_of_another_dtype() -> None:
    network = denoiser()
    made = sample(network, SCHEDULE, SHAPE, count=2, steps=3)
    calls = calls_of(network.double())
    exact = sample(network, SCHEDULE, SHAPE, count=2, steps=3)
    assert calls[0][0].dtype == torch.float64
    assert exact.dtype == torch.float32
    assert (made - exact).abs().max() < 1e-4


def test_nothing_is_printed_where_there_is_no_terminal(capfd: pytest.CaptureFixture[str]) -> None:
    sample(denoiser(), SCHEDULE, SHAPE, count=2, steps=3, show_progress=True)
    assert capfd.readouterr() == ("", "")


# -- bad input


def refused(
    network: Any, *, shape: Any = SHAPE, schedule: NoiseSchedule = SCHEDULE, count: int = 1, **options: Any
) -> str:
    with pytest.raises(DataError) as raised:
        sample(network, schedule, shape, count=count, **options)
    assert "\n" not in str(raised.value)
    return str(raised.value)


def test_a_network_without_time_input() -> None:
    message = refused(nn.Conv2d(3, 3, 1), steps=50)
    assert message.startswith("the network failed at time step 980, for images of 3x8x8: ")
    assert "it must take images, time steps: check" in message


def test_a_network_that_takes_other_channels() -> None:
    assert "for images of 1x8x8" in refused(denoiser(), shape=(1, 8, 8))


def test_a_network_that_returns_another_shape() -> None:
    message = refused(lambda noisy, _: torch.cat([noisy, noisy], 1))
    assert message.startswith("the network returned shape 6x8x8 at time step 980, for images of 3x8x8; it must predict")


@pytest.mark.parametrize("given", [3, None, (), {}])
def test_a_network_that_returns_no_tensor(given: Any) -> None:
    assert f"the network returned {type(given).__name__} at time step" in refused(lambda *_: given)


def test_our_own_errors_stay_as_they_are() -> None:
    def network(*_: Tensor) -> Tensor:
        raise DataError("as it is")

    assert refused(network) == "as it is"


def test_predictions_that_are_not_finite() -> None:
    assert "predicted at time step 980 is not finite" in refused(lambda noisy, _: noisy * math.nan)
    nothing_kept = NoiseSchedule(torch.linspace(1, 0, 11)[1:])
    assert "at time step 9 is not finite" in refused(lambda noisy, _: noisy / 2, schedule=nothing_kept, steps=10)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"count": 0}, "count is 0; sample one image or more"),
        ({"batch_size": 0}, "batch_size is 0"),
        ({"eta": 1.5}, "eta is 1.5"),
        ({"eta": math.nan}, "eta is nan"),
        ({"seed": -1}, "seed is -1"),
        ({"steps": 1001}, "cannot take 1001 steps"),
        ({"shape": (3, 8)}, "shape is \\(3, 8\\)"),
        ({"shape": (3, 0, 8)}, "shape is \\(3, 0, 8\\)"),
    ],
)
def test_bad_options(options: dict[str, Any], message: str) -> None:
    given = {"shape": SHAPE, "count": 1, **options}
    with pytest.raises(DataError, match=message):
        sample(denoiser(), SCHEDULE, given.pop("shape"), **given)
