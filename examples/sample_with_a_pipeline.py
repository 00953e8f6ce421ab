"""Put a compressed denoising network into a stock diffusers pipeline: `layermerge.load` returns a drop-in for `pipe.unet`.

Every residual block that can be becomes one conv. Without a directory the weights are random, and so are the pictures.
Run: python examples/sample_with_a_pipeline.py [DIRECTORY_OF_A_UNET] [--out samples.png]
"""

import argparse
from pathlib import Path
from typing import Any

import torch

import layermerge as lm
from layermerge.models import import_diffusers, load_model

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("directory", nargs="?", help="what save_pretrained() of a UNet2DModel wrote")
parser.add_argument("--out", type=Path, default=Path("samples.png"))
options = parser.parse_args()
torch.manual_seed(0)
diffusers = import_diffusers()

if options.directory:
    model: Any = load_model(f"diffusers:{options.directory}").module
else:
    types = {"down_block_types": ("DownBlock2D", "DownBlock2D"), "up_block_types": ("UpBlock2D", "UpBlock2D")}
    model = diffusers.UNet2DModel(16, layers_per_block=1, block_out_channels=(32, 64), **types)
sample = torch.randn(2, model.config.in_channels, model.config.sample_size, model.config.sample_size)
trace = lm.trace(model.eval(), (sample, torch.tensor([10, 500])))
order = [c for c in lm.plan(trace).candidates if len(c.layers) == 2 and c.kept == c.layers]
net = lm.rewrite(trace, order)  # fine-tune it here: it trains like any module
run_dir = options.out.with_suffix("")
lm.save(run_dir, lm.merge(net))

pipe = diffusers.DDIMPipeline(unet=model, scheduler=diffusers.DDIMScheduler())
pipe.unet = lm.load(run_dir, model)  # the weights come from the files, the original only says what it was
images = pipe(batch_size=4, generator=torch.Generator().manual_seed(0), num_inference_steps=20).images
diffusers.utils.make_image_grid(images, rows=2, cols=2).save(options.out)
print(f"{len(order)} blocks merged, {len(images)} pictures in {options.out}")
