"""The example that samples with a stock pipeline runs, with its own network and with one from a directory."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from diffusion.stock import TINY, unet
from layermerge.models import import_diffusers

SCRIPT = Path(__file__).resolve().parents[2] / "examples" / "sample_with_a_pipeline.py"


def run(*arguments: str, cwd: Path) -> str:
    one_thread = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, str(SCRIPT), *arguments], cwd=cwd, env=one_thread, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_example_samples_from_a_directory(tmp_path: Path) -> None:
    """A network without merged blocks left would draw the same: so its pictures are not the original's."""
    model = unet(TINY)
    model.save_pretrained(tmp_path / "unet")
    printed = run("unet", "--out", "grid.png", cwd=tmp_path)
    assert printed == "5 blocks merged, 4 pictures in grid.png\n"
    with Image.open(tmp_path / "grid.png") as image:
        grid = np.asarray(image)
    assert grid.shape == (16, 16, 3)
    assert grid.std() > 10
    library = import_diffusers()
    pipe = library.DDIMPipeline(unet=model, scheduler=library.DDIMScheduler())
    pipe.set_progress_bar_config(disable=True)
    images = pipe(batch_size=4, generator=torch.Generator().manual_seed(0), num_inference_steps=20).images
    assert np.abs(grid - np.asarray(library.utils.make_image_grid(images, rows=2, cols=2)).astype(int)).mean() > 1


@pytest.mark.slow
def test_example_samples_with_random_weights(tmp_path: Path) -> None:
    assert run(cwd=tmp_path) == "8 blocks merged, 4 pictures in samples.png\n"
    with Image.open(tmp_path / "samples.png") as image:
        assert image.size == (32, 32)
