"""NoiseSchedule: how much noise a diffusion model meets at each time step, and what it predicts.

In: plain values, a diffusers scheduler or the directory of its configuration. Out: noisy images and training targets, and
back from a prediction to image and noise. The one place that knows the three kinds of prediction.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
from torch import Tensor

from layermerge.arguments import READ_INSIDE, Count, FilePath, Must, checked
from layermerge.errors import DataError, first_line
from layermerge.files import digest
from layermerge.models import import_diffusers

Prediction = Literal["epsilon", "v_prediction", "sample"]
Betas = Literal["linear", "scaled_linear"]
Beta = Annotated[float, Must(lambda value: 0 < value < 1, "a number above 0 and below 1")]
"""How much of the variance that is left turns into noise in one time step."""


@checked(DataError)
@dataclass(frozen=True, eq=False)
class NoiseSchedule:
    """`kept[t]` is how much of an image's variance is left at time step t (alpha-bar in the papers), in float64."""

    kept: Annotated[Tensor, READ_INSIDE]
    prediction: Prediction = "epsilon"

    def __post_init__(self) -> None:
        try:
            kept = torch.as_tensor(self.kept, dtype=torch.float64).cpu()
        except (TypeError, ValueError, RuntimeError) as error:
            raise DataError(f"a noise schedule is a tensor of numbers, not a {type(self.kept).__name__}") from error
        if (
            kept.ndim != 1
            or len(kept) < 2
            or not bool((kept[1:] <= kept[:-1]).all())
            or not 0 <= kept[-1] < kept[0] <= 1
        ):
            raise DataError("a noise schedule needs two time steps or more, with ever less kept of the image")
        object.__setattr__(self, "kept", kept)

    @staticmethod
    @checked(DataError)
    def from_betas(
        steps: Count = 1000,
        first: Beta = 1e-4,
        last: Beta = 0.02,
        betas: Betas = "linear",
        prediction: Prediction = "epsilon",
    ) -> NoiseSchedule:
        """The schedule of DDPM, or that of latent diffusion, whose betas grow as squares."""
        power = {"linear": 1, "scaled_linear": 2}[betas]
        rising = torch.linspace(first ** (1 / power), last ** (1 / power), steps, dtype=torch.float64) ** power
        return NoiseSchedule(torch.cumprod(1 - rising, 0), prediction)

    @staticmethod
    def of(scheduler: Any) -> NoiseSchedule:
        """That of a diffusers scheduler, whichever class it is of."""
        kept, config = getattr(scheduler, "alphas_cumprod", None), getattr(scheduler, "config", {})
        if kept is None:
            raise DataError(
                f"{type(scheduler).__name__} has no alphas_cumprod, so it does not fit a network that predicts noise; "
                "give one that has, such as the one it was trained with"
            )
        return NoiseSchedule(kept, config.get("prediction_type", "epsilon"))

    @staticmethod
    @checked(DataError)
    def read(place: FilePath) -> NoiseSchedule:
        """From the scheduler_config.json of a diffusers directory, or from the file itself."""
        file = Path(place) / "scheduler_config.json" if Path(place).is_dir() else Path(place)
        try:
            config = json.loads(file.read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError) as error:
            reason = getattr(error, "strerror", None) or "it is not valid JSON"
            raise DataError(f"scheduler '{file}' cannot be read: {reason}") from error
        return _built(file, config)

    @property
    def steps(self) -> int:
        return len(self.kept)

    def add_noise(self, images: Tensor, noise: Tensor, times: Tensor) -> Tensor:
        signal, noisy = self._weights(times, images)
        return signal * images + noisy * noise

    def target(self, images: Tensor, noise: Tensor, times: Tensor) -> Tensor:
        """What a perfect network would say."""
        if self.prediction == "epsilon":
            return noise
        if self.prediction == "sample":
            return images
        signal, noisy = self._weights(times, images)
        return signal * noise - noisy * images

    def explain(self, predicted: Tensor, noisy_images: Tensor, times: Tensor) -> tuple[Tensor, Tensor]:
        """The image and the noise that a prediction stands for."""
        signal, noisy = self._weights(times, noisy_images)
        if self.prediction == "epsilon":
            return (noisy_images - noisy * predicted) / signal, predicted
        if self.prediction == "sample":
            return predicted, (noisy_images - signal * predicted) / noisy
        return signal * noisy_images - noisy * predicted, noisy * noisy_images + signal * predicted

    def fingerprint(self) -> str:
        return f"{self.prediction} {digest(self.kept.numpy().tobytes())}"

    def _weights(self, times: Tensor, like: Tensor) -> tuple[Tensor, Tensor]:
        """Of image and noise, computed in float64."""
        kept = self.kept[times.cpu()].view(-1, *[1] * (like.ndim - 1))
        return kept.sqrt().to(like), (1 - kept).sqrt().to(like)


def _built(file: Path, config: Any) -> NoiseSchedule:
    diffusers = import_diffusers()
    kind = getattr(diffusers, str(config.get("_class_name")), None) if isinstance(config, dict) else None
    if kind is None or not hasattr(kind, "from_config") or not hasattr(kind, "step"):
        raise DataError(f"'{file}' does not name a diffusers scheduler under '_class_name'")
    try:
        scheduler = kind.from_config(config)
    except Exception as error:
        raise DataError(f"diffusers cannot build the scheduler of '{file}': {first_line(error)}") from error
    return NoiseSchedule.of(scheduler)
