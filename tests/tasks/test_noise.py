"""Noise schedules: against diffusers' own schedulers, and back from every kind of prediction."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from layermerge.errors import DataError
from layermerge.models import import_diffusers
from layermerge.tasks import NoiseSchedule

KINDS = ("epsilon", "v_prediction", "sample")


def images() -> tuple[Tensor, Tensor, Tensor]:
    torch.manual_seed(1)
    return torch.rand(6, 3, 5, 4) * 2 - 1, torch.randn(6, 3, 5, 4), torch.tensor([0, 1, 10, 500, 998, 999])


def scheduler(kind: str = "DDPMScheduler", **options: Any) -> Any:
    return getattr(import_diffusers(), kind)(**options)


@pytest.mark.parametrize("betas", ["linear", "scaled_linear"])
def test_noise_is_added_as_diffusers_does(betas: Any) -> None:
    clean, noise, times = images()
    theirs = scheduler(beta_schedule=betas, beta_start=2e-4, beta_end=0.03)
    ours = NoiseSchedule.of(theirs)
    assert ours.steps == 1000
    assert torch.allclose(ours.add_noise(clean, noise, times), theirs.add_noise(clean, noise, times), atol=1e-6)


@pytest.mark.parametrize(("betas", "power"), [("linear", 1), ("scaled_linear", 2)])
def test_schedules_are_made_from_betas_in_double_precision(betas: Any, power: int) -> None:
    ours = NoiseSchedule.from_betas(1000, 2e-4, 0.03, betas)
    rising = np.linspace(2e-4 ** (1 / power), 0.03 ** (1 / power), 1000) ** power
    assert np.allclose(ours.kept.numpy(), np.cumprod(1 - rising), rtol=1e-10)
    # diffusers multiplies a thousand factors in single precision: each may be half a unit of 2^-23 off.
    theirs = scheduler(beta_schedule=betas, beta_start=2e-4, beta_end=0.03)
    assert torch.allclose(ours.kept, theirs.alphas_cumprod.double(), rtol=1000 * 2**-23, atol=0)


def test_targets_are_those_of_diffusers() -> None:
    clean, noise, times = images()
    schedule = NoiseSchedule.of(scheduler(prediction_type="v_prediction"))
    assert torch.allclose(
        schedule.target(clean, noise, times), scheduler().get_velocity(clean, noise, times), atol=2e-6
    )
    assert NoiseSchedule.from_betas(prediction="epsilon").target(clean, noise, times) is noise
    assert NoiseSchedule.from_betas(prediction="sample").target(clean, noise, times) is clean


@pytest.mark.parametrize("kind", KINDS)
def test_a_perfect_prediction_is_explained_by_image_and_noise(kind: Any) -> None:
    clean, noise, times = (tensor.double() if tensor.is_floating_point() else tensor for tensor in images())
    schedule = NoiseSchedule.from_betas(prediction=kind)
    found = schedule.explain(schedule.target(clean, noise, times), schedule.add_noise(clean, noise, times), times)
    for ours, true in zip(found, (clean, noise), strict=True):
        assert torch.allclose(ours, true, atol=1e-9)


@pytest.mark.parametrize("kind", ["DDPMScheduler", "DDIMScheduler", "PNDMScheduler"])
def test_a_scheduler_is_read_from_its_directory(kind: str, tmp_path: Path) -> None:
    theirs = scheduler(kind, beta_end=0.013, num_train_timesteps=50)
    theirs.save_pretrained(tmp_path)
    for place in (tmp_path, tmp_path / "scheduler_config.json"):
        assert NoiseSchedule.read(place).fingerprint() == NoiseSchedule.of(theirs).fingerprint()


def test_fingerprints_tell_schedules_apart() -> None:
    schedules = [
        NoiseSchedule.from_betas(),
        NoiseSchedule.from_betas(last=0.021),
        NoiseSchedule.from_betas(steps=999),
        NoiseSchedule.from_betas(prediction="sample"),
    ]
    assert len({schedule.fingerprint() for schedule in schedules}) == len(schedules)


def refusal(call: Any) -> str:
    with pytest.raises(DataError) as caught:
        call()
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_schedulers_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    flow = scheduler("FlowMatchEulerDiscreteScheduler")
    assert refusal(lambda: NoiseSchedule.of(flow)) == (
        "FlowMatchEulerDiscreteScheduler has no alphas_cumprod, so it does not fit a network that predicts noise; "
        "give one that has, such as the one it was trained with"
    )
    strange = scheduler("DPMSolverMultistepScheduler", prediction_type="flow_prediction", use_flow_sigmas=True)
    assert "prediction is 'flow_prediction'; give 'epsilon' or" in refusal(lambda: NoiseSchedule.of(strange))
    assert "ever less kept" in refusal(lambda: NoiseSchedule(torch.tensor([0.5, 0.9])))
    missing = tmp_path / "nothing"
    assert (
        refusal(lambda: NoiseSchedule.read(missing))
        == f"scheduler '{missing}' cannot be read: No such file or directory"
    )
    file = tmp_path / "scheduler_config.json"
    file.write_text("{", encoding="utf-8")
    assert refusal(lambda: NoiseSchedule.read(tmp_path)) == f"scheduler '{file}' cannot be read: it is not valid JSON"
    documents: list[Any] = [{"_class_name": "UNet2DModel"}, {"_class_name": "Nothing"}, {}, []]
    for document in documents:
        file.write_text(json.dumps(document), encoding="utf-8")
        assert "does not name a diffusers scheduler under '_class_name'" in refusal(
            lambda: NoiseSchedule.read(tmp_path)
        )
