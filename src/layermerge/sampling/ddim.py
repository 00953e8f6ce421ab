"""DDIM: images from a network that tells the noise in them, in few steps (Song et al., 2021).

In: a network called as net(images, time steps, ...), its noise schedule, a seed. Out: images in [0, 1] on the CPU.
Guarantees: an image depends on the seed and its index alone, but for rounding not on the batch it is made in; modes and
global random state stay.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Literal, get_args

import numpy as np
import torch
from torch import Tensor, nn

from layermerge.errors import DataError, LayerMergeError, first_line
from layermerge.progress import Progress
from layermerge.tasks.base import Network, answer_of, device_of, evaluating
from layermerge.tasks.noise import NoiseSchedule

Spacing = Literal["uniform", "quadratic"]
Conditions = Callable[[int, int], tuple[Tensor, ...]]
"""From the indices of images, first to last (left out), to what else the network takes for them."""


def time_steps(schedule_steps: int, count: int, spacing: Spacing = "uniform") -> tuple[int, ...]:
    """The time steps that are visited, rising; sampling goes through them from the last to the first.

    As the authors of DDIM choose them. Uniform ones are a whole number apart, so there are more of them than asked for
    where the count does not divide it.

    >>> time_steps(1000, 4)
    (0, 250, 500, 750)
    >>> time_steps(1000, 4, "quadratic")
    (0, 88, 355, 800)
    """
    if spacing not in get_args(Spacing):
        raise DataError(f"there is no spacing '{spacing}' of time steps; choose {' or '.join(get_args(Spacing))}")
    if not 1 <= count <= schedule_steps:
        raise DataError(f"cannot take {count} steps of a schedule of {schedule_steps}; give 1 to {schedule_steps}")
    if spacing == "uniform":
        return tuple(range(0, schedule_steps, schedule_steps // count))
    squares = np.linspace(0, math.sqrt(0.8 * schedule_steps), count) ** 2
    # The first ones are less than 1 apart. Squares are convex, so no more than this is needed for them to rise strictly.
    return tuple(max(place, int(square)) for place, square in enumerate(squares))


def sample(
    network: Network,
    schedule: NoiseSchedule,
    shape: tuple[int, int, int],
    *,
    count: int,
    steps: int = 50,
    eta: float = 0.0,
    spacing: Spacing = "uniform",
    seed: int = 0,
    batch_size: int = 64,
    conditions: Conditions | None = None,
    clip: bool = True,
    show_progress: bool = False,
) -> Tensor:
    """Makes `count` images of this shape (channels, height, width): `count * steps / batch_size` calls of the network.

    `eta` 0 adds no noise on the way, 1 as much as DDPM. `clip` keeps the image that is predicted at each step in [-1, 1].

    >>> sample(network, NoiseSchedule.from_betas(), (3, 32, 32), count=64)  # doctest: +SKIP
    """
    _require(count >= 1, f"count is {count}; sample one image or more")
    _require(batch_size >= 1, f"batch_size is {batch_size}; give 1 or more")
    _require(0 <= eta <= 1, f"eta is {eta:g}; give a number from 0 (no noise on the way) to 1 (most)")
    _require(seed >= 0, f"seed is {seed}; give 0 or more")
    _require(len(shape) == 3 and min(shape) >= 1, f"shape is {tuple(shape)}; give channels, height and width")
    visited = time_steps(schedule.steps, steps, spacing)
    images = torch.empty(count, *shape)
    starts = range(0, count, batch_size)
    progress = Progress("sampling", total=len(starts) * len(visited), wanted=show_progress)
    with progress, evaluating(network), torch.inference_mode():
        for first in starts:
            last = min(first + batch_size, count)
            batch = _Batch(network, schedule, conditions(first, last) if conditions else (), eta=eta, clip=clip)
            # Pairs of a time step and the one that follows it on the way down; none follows the first of the schedule.
            noise = _Noise(seed, range(first, last), shape)
            state = noise.draw()
            for now, following in zip(reversed(visited), (*reversed(visited[:-1]), None), strict=True):
                state = batch.step(state, now, following, noise)
                progress.advance()
            images[first:last] = (state / 2 + 0.5).clamp(0, 1)
    return images


class _Noise:
    """A source of noise for each image, so that what one gets does not depend on the others."""

    def __init__(self, seed: int, indices: Sequence[int], shape: tuple[int, int, int]) -> None:
        states = (np.random.SeedSequence((seed, index)).generate_state(1, np.uint64) for index in indices)
        self._generators = [torch.Generator().manual_seed(int(state[0])) for state in states]
        self._shape = shape

    def draw(self) -> Tensor:
        return torch.stack([torch.randn(self._shape, generator=generator) for generator in self._generators])


class _Batch:
    """The steps of one batch of images; they are kept in float32 on the CPU, whatever the network computes in."""

    def __init__(
        self, network: Network, schedule: NoiseSchedule, extras: tuple[Tensor, ...], *, eta: float, clip: bool
    ) -> None:
        self._network, self._schedule, self._eta, self._clip = network, schedule, eta, clip
        self._device, self._dtype = device_of(network), _dtype_of(network)
        self._extras = tuple(extra.to(self._device) for extra in extras)

    def step(self, state: Tensor, now: int, following: int | None, noise: _Noise) -> Tensor:
        """From time step `now` to `following`, by equation 12 of the paper; with None, to the image itself."""
        times = torch.full((len(state),), now, dtype=torch.int64)
        image, told = self._schedule.explain(self._predict(state, times), state, times)
        if not bool(image.isfinite().all()):
            raise DataError(
                f"the image predicted at time step {now} is not finite; is the network trained, for this noise schedule?"
            )
        if self._clip:
            image = image.clamp(-1, 1)
        if following is None:
            return image  # all of the image is kept there (alpha-bar is 1), so neither kind of noise counts
        kept, kept_next = float(self._schedule.kept[now]), float(self._schedule.kept[following])
        deviation = 0.0
        if self._eta and kept < kept_next:  # where both are 0 or 1, the formula would divide by zero
            deviation = self._eta * math.sqrt((1 - kept_next) / (1 - kept) * (1 - kept / kept_next))
        direction = math.sqrt(max(1 - kept_next - deviation**2, 0.0))
        result = math.sqrt(kept_next) * image + direction * told
        return result + deviation * noise.draw() if self._eta else result

    def _predict(self, state: Tensor, times: Tensor) -> Tensor:
        where = f"at time step {int(times[0])}, for images of {'x'.join(map(str, state.shape[1:]))}"
        try:
            given = self._network(state.to(self._device, self._dtype), times.to(self._device), *self._extras)
        except LayerMergeError:
            raise
        except Exception as error:  # whatever the user's network raises
            raise DataError(
                f"the network failed {where}: {first_line(error)}; it must take images, time steps"
                f"{' and conditions' if self._extras else ''}: check its inputs and the images' shape"
            ) from error
        predicted = answer_of(given, "sample")
        if not isinstance(predicted, Tensor):
            raise DataError(
                f"the network returned {type(given).__name__} {where}; return a tensor, or an object with .sample"
            )
        if predicted.shape != state.shape:
            raise DataError(
                f"the network returned shape {'x'.join(map(str, predicted.shape[1:]))} {where}; "
                "it must predict the shape it is given: check its channels and whether it also predicts variances"
            )
        return predicted.float().cpu()


def _dtype_of(network: Network) -> torch.dtype:
    parameters = network.parameters() if isinstance(network, nn.Module) else iter(())
    return next((parameter.dtype for parameter in parameters if parameter.is_floating_point()), torch.float32)


def _require(fine: bool, problem: str) -> None:
    if not fine:
        raise DataError(problem)
