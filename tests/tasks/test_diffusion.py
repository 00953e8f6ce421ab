"""Diffusion: the loss against its formula, draws that no skipping or sharing changes, and what does not fit."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from layermerge.data.preparation import Statistics
from layermerge.errors import DataError
from layermerge.tasks import Diffusion, Draw, NoiseSchedule, Preparation


class TinyNet(nn.Module):
    """Says that all noise is `bias`, plus a little of the image and of the time."""

    def __init__(self, channels: int = 2, bias: float = 0.1) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, channels, 1)
        nn.init.eye_(self.conv.weight.data[:, :, 0, 0])
        nn.init.zeros_(self.conv.bias)  # type: ignore[arg-type]
        self.bias = nn.Parameter(torch.tensor(bias))

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        said: Tensor = 0.01 * self.conv(x) + self.bias + 0.001 * t.view(-1, 1, 1, 1) / 1000
        return said


def arrays(count: int, seed: int = 0, channels: int = 2) -> tuple[Any, Any]:
    generator = np.random.default_rng(seed)
    return generator.random((count, channels, 4, 4), dtype=np.float32), generator.integers(0, 5, count)


def task(network: nn.Module | None = None, **options: Any) -> Diffusion:
    return Diffusion(arrays(103), arrays(40, 1), network or TinyNet(), **options)


def same(first: list[tuple[Tensor, ...]], second: list[tuple[Tensor, ...]]) -> bool:
    return len(first) == len(second) and all(
        torch.equal(a, b) for one, other in zip(first, second, strict=True) for a, b in zip(one, other, strict=True)
    )


# -- draws


def test_draws_are_addressed() -> None:
    mine, twin = task(), task()
    before = torch.get_rng_state()
    whole = list(mine.train_batches(Draw(3, 16)))
    assert same(whole, list(twin.train_batches(Draw(3, 16))))
    assert same(whole[2:], list(mine.train_batches(Draw(3, 16, first=2))))
    for rank in range(3):
        share = list(mine.train_batches(Draw(3, 16, share=(rank, 3))))
        assert same(share, [tuple(tensor[rank::3] for tensor in batch) for batch in whole])
    for other in (Draw(4, 16), Draw(3, 16, epoch=1)):
        assert not same(whole, list(mine.train_batches(other)))
    assert torch.equal(torch.get_rng_state(), before)


def test_time_steps_and_noise_are_spread_as_they_should_be() -> None:
    drawn = [batch for epoch in range(40) for batch in task().train_batches(Draw(0, 16, epoch))]
    times = torch.cat([batch[1] for batch in drawn])
    noise = torch.cat([batch[2] for batch in drawn])
    assert times.dtype == torch.int64
    assert int(times.min()) >= 0
    assert int(times.max()) < 1000
    quarters = torch.bincount(times // 250, minlength=4) / len(times)
    assert torch.allclose(quarters, torch.full((4,), 0.25), atol=0.03)
    assert abs(float(noise.mean())) < 0.01
    assert abs(float(noise.std()) - 1) < 0.01


def test_a_batch_is_the_image_under_its_noise() -> None:
    schedule = NoiseSchedule.from_betas(steps=30, last=0.2)
    mine = task(schedule=schedule, held_out=3)
    pixels = torch.as_tensor(arrays(103)[0])
    for noisy, times, noise in mine.train_batches(Draw(0, 16)):
        image, _ = schedule.explain(noise, noisy, times)
        distance = (((image + 1) / 2)[:, None] - pixels[None]).abs().flatten(2).amax(2)
        assert float(distance.amin(1).max()) < 1e-4


# -- losses and scores


def test_the_score_is_the_loss_in_units_of_the_pretrained_network() -> None:
    class Constant(nn.Module):
        def __init__(self, value: float) -> None:
            super().__init__()
            self.value = nn.Parameter(torch.tensor(value))

        def forward(self, x: Tensor, t: Tensor) -> Tensor:  # noqa: ARG002
            return self.value.expand_as(x)

    mine = Diffusion(arrays(400), arrays(400, 1), Constant(0.0), held_out=200)
    assert mine.evaluate(Constant(0.0)) == -1.0
    # The mean square of c - noise is 1 + c^2 for noise of mean 0 and variance 1, up to the noise of 200 x 32 draws.
    assert mine.evaluate(Constant(1.0)) == pytest.approx(-2.0, abs=0.06)
    score = mine.test(Constant(2.0))
    assert (score.name, score.count, score.kind) == ("noise loss", 400, "loss")
    assert score.value == pytest.approx(5.0, abs=0.1)
    assert score.low is not None
    assert score.high is not None
    assert score.low < score.value < score.high
    assert mine.ceiling == 0.0


def test_the_interval_is_that_of_a_mean() -> None:
    class Silent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.seen: list[Tensor] = []

        def forward(self, x: Tensor, t: Tensor) -> Tensor:  # noqa: ARG002
            return x

    schedule = NoiseSchedule(torch.tensor([1e-12, 0.0]))  # nothing is left of the image: x is the noise itself
    network = Silent()
    mine = Diffusion(arrays(103), arrays(40, 1), network, schedule=schedule)
    assert mine.test(network).value == pytest.approx(0.0, abs=1e-10)

    class Zero(Silent):
        def forward(self, x: Tensor, t: Tensor) -> Tensor:  # noqa: ARG002
            self.seen.append(x)
            return torch.zeros_like(x)

    zero = Zero()
    score = mine.test(zero)
    losses = torch.cat(zero.seen).double().square().flatten(1).mean(1).numpy()
    half = 1.96 * np.std(losses, ddof=1) / math.sqrt(40)
    assert score.count == len(losses) == 40
    assert (score.value, score.low, score.high) == pytest.approx(
        (losses.mean(), losses.mean() - half, losses.mean() + half), rel=1e-5
    )


def test_every_network_meets_the_same_noise_whatever_the_batch_size() -> None:
    class Recorder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.seen: list[tuple[Tensor, Tensor]] = []

        def forward(self, x: Tensor, t: Tensor) -> Tensor:
            self.seen.append((x.clone(), t.clone()))
            return x

    def met(size: int) -> tuple[Tensor, Tensor]:
        recorder = Recorder()
        task(eval_batch_size=size).evaluate(recorder)
        return torch.cat([x for x, _ in recorder.seen]), torch.cat([t for _, t in recorder.seen])

    whole, parts = met(50), met(3)
    assert torch.equal(whole[0], parts[0])
    assert torch.equal(whole[1], parts[1])
    assert len(set(whole[1].tolist())) == len(whole[1])  # as far apart as so many can be


def test_training_loss_and_distance_are_mean_squares() -> None:
    mine = task()
    batch = next(iter(mine.train_batches(Draw(0, 8))))
    said = torch.randn(8, 2, 4, 4)
    expected = ((said - batch[2]) ** 2).mean()
    for outputs in (said, (said,), SimpleNamespace(sample=said)):
        assert torch.allclose(mine.loss(outputs, batch), expected)
    assert torch.allclose(mine.distance(said, SimpleNamespace(sample=batch[2]), 4.0), expected)


def test_the_unit_stays_while_the_network_is_trained() -> None:
    network = TinyNet()
    mine = task(network)
    with torch.no_grad():
        network.bias.add_(3.0)
    assert mine.evaluate(network) < -2.0
    assert mine.evaluate(TinyNet()) == -1.0


def test_modes_are_restored() -> None:
    network = TinyNet().train()
    mine = task(network)
    mine.evaluate(network)
    assert network.training
    assert all(part.training for part in network.modules())


def test_conditions_follow_the_images() -> None:
    class Conditioned(TinyNet):
        def forward(self, x: Tensor, t: Tensor, labels: Tensor) -> Tensor:  # type: ignore[override]
            assert labels.shape == t.shape
            return super().forward(x, t) + labels.view(-1, 1, 1, 1)

    mine = task(Conditioned(), conditions=lambda labels: (labels * 2,))
    assert len(mine.example_inputs()) == 3
    for batch in mine.train_batches(Draw(0, 16)):
        assert set(batch[3].tolist()) <= {0, 2, 4, 6, 8}
    assert mine.evaluate(Conditioned()) < 0


def test_latents_are_shown_as_they_are() -> None:
    pixels, labels = arrays(50)
    mine = Diffusion((pixels * 9 - 4, labels), (pixels, labels), TinyNet(), centred=False)
    noisy, times, noise = next(iter(mine.train_batches(Draw(0, 16))))
    assert float(mine.schedule.explain(noise, noisy, times)[0].max()) > 3


def test_what_scores_depend_on_is_described() -> None:
    described = [
        task().describe(),
        task(schedule=NoiseSchedule.from_betas(prediction="sample")).describe(),
        task(TinyNet(bias=0.2)).describe(),
        task(seed=1).describe(),
    ]
    assert described[0] == task().describe()
    assert all(one != other for place, one in enumerate(described) for other in described[:place])


# -- what does not fit


def refusal(call: Any) -> str:
    with pytest.raises(DataError) as caught:
        call()
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_networks_that_do_not_fit_are_refused_at_once() -> None:
    without_time = nn.Conv2d(2, 2, 1)
    assert refusal(lambda: task(without_time)) == (
        "Conv2d does not take 2 inputs, but diffusion calls it as net(images, time steps); give a network with a time input"
    )
    message = refusal(lambda: task(TinyNet(channels=3)))
    assert message.startswith("TinyNet cannot take images of 2 x 4 x 4 with their time steps: ")

    class Variances(TinyNet):
        def forward(self, x: Tensor, t: Tensor) -> Tensor:
            said = super().forward(x, t)
            return torch.cat([said, said], 1)

    assert refusal(lambda: task(Variances())) == (
        "the network gives (2, 4, 4, 4) for images of (2, 2, 4, 4); "
        "diffusion needs as many channels out as in, without learned variances"
    )

    class Text(TinyNet):
        def forward(self, x: Tensor, t: Tensor) -> Any:  # noqa: ARG002
            return "noise"

    assert "the network gives a str, not an image" in refusal(lambda: task(Text()))


def test_data_and_settings_that_do_not_fit_are_refused() -> None:
    pixels, labels = arrays(50)
    assert refusal(lambda: Diffusion((pixels * 2 - 1, labels), (pixels, labels), TinyNet())).startswith(
        "diffusion takes images in [0, 1], but these range from -"
    )
    normal = Preparation(normalise=Statistics((0.5, 0.5), (0.5, 0.5)))
    assert "leave out the normalisation" in refusal(lambda: task(preparation=normal))
    mine = task()
    batch = next(iter(mine.train_batches(Draw(0, 8))))
    assert "no labels to smooth" in refusal(lambda: mine.loss(batch[0], batch, label_smoothing=0.1))
    broken = task(TinyNet(bias=float("nan")))
    assert "cannot be a unit" in refusal(lambda: broken.evaluate(TinyNet()))
