"""The example that samples with a stock pipeline draws with the merged network that it put into it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from diffusion.stock import TINY, unet
from layermerge.models import import_diffusers


def test_example_samples_from_a_directory(tmp_path: Path, example: Callable[..., str]) -> None:
    """A network without merged blocks left would draw the same: so its pictures are not the original's."""
    model = unet(TINY)
    model.save_pretrained(tmp_path / "unet")
    printed = example("sample_with_a_pipeline.py", "unet", "--out", "grid.png")
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
