"""Networks that tell noise: fitted over time steps, with the time embedding's shifts carried through as they were."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import layermerge as lm
from agreement import same_bits, worst
from layermerge.calibration.sample import Sample
from layermerge.surgery.regions import region_kernel
from layermerge.surgery.sites import find_site


class Denoiser(nn.Module):
    """Two convs with the time embedding between them, and a norm that depends on the data."""

    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.stem, self.first, self.second = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 8, 3), nn.Conv2d(8, 8, 3)
        self.embed, self.norm, self.out = nn.Linear(2, 8), norm, nn.Conv2d(8, 3, 5, padding=4)

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        angle = time.to(x.dtype)[:, None] / 200
        shift = self.embed(torch.cat([angle.sin(), angle.cos()], 1))
        y = self.first(torch.relu(self.stem(x))) + 3 * shift[:, :, None, None]
        out: Tensor = self.out(torch.nn.functional.silu(self.second(torch.nn.functional.silu(self.norm(y)))))
        return out


@pytest.mark.parametrize("norm", [nn.Identity(), nn.GroupNorm(2, 8)])
def test_shifts_are_kept_and_noise_is_told_better(norm: nn.Module, tmp_path: Path) -> None:
    model = Denoiser(norm).eval()
    pixels = np.random.default_rng(0).integers(0, 256, (80, 10, 10, 3), dtype=np.uint8)
    data = pixels, np.zeros(80, np.int64)
    task = lm.tasks.Diffusion(data, data, model, held_out=10)
    traced = lm.trace(model, task.example_inputs())
    net = lm.rewrite(traced, [lm.plan(traced)["1-3:5x5g1"]]).eval()
    out = lm.calibrate(net, task)

    batch = next(iter(task.train_batches(lm.tasks.Draw(seed=5, batch_size=60))))
    with torch.no_grad():
        wanted = model(*batch[:2])
        before, after = (float((one.eval()(*batch[:2]) - wanted).square().mean()) for one in (net, out))
    assert after < 0.9 * before

    (number,) = (n for n, region in enumerate(out.surgery.regions) if region.candidate.key == "1-3:5x5g1")
    mine, theirs = region_kernel(out, number), region_kernel(net, number)
    assert mine.shifts.keys() == theirs.shifts.keys() == find_site(out.graph, number).shifts.keys()
    for name, matrix in theirs.shifts.items():
        torch.testing.assert_close(mine.shifts[name], matrix, atol=1e-5, rtol=1e-4)
    merged = lm.merge(out)
    assert worst(out(*batch[:2]), merged(*batch[:2])) < 1e-4
    lm.save(tmp_path, out)
    assert same_bits(lm.load(tmp_path, Denoiser(norm)).state_dict(), out.state_dict())


def test_time_steps_are_spread_over_the_schedule() -> None:
    model = Denoiser(nn.Identity()).eval()
    data = np.zeros((80, 10, 10, 3), np.uint8), np.zeros(80, np.int64)
    task = lm.tasks.Diffusion(data, data, model, held_out=10)
    sample = Sample.of(task, lm.trace(model, task.example_inputs()).inputs, 64, 64)
    times = torch.cat([inputs.args[1] for inputs in sample.fitted])
    assert times.min() < 200
    assert times.max() > 800
