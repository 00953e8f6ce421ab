"""Trains the small U-Net of the diffusion benchmark on Fashion-MNIST, from scratch: attention included, 0.7M parameters.

    python benchmarks/train_small_unet.py --data fashion-mnist:DIR --out DIR

Training is the project's own loop over the untouched network, so it resumes after any interruption. Out: a diffusers
directory (config.json, diffusion_pytorch_model.safetensors, scheduler_config.json).
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import torch

import layermerge as lm
from layermerge.models import import_diffusers
from layermerge.tasks import Diffusion, load_images


def small_unet() -> Any:
    torch.manual_seed(0)
    return import_diffusers().UNet2DModel(
        sample_size=28,
        in_channels=1,
        out_channels=1,
        layers_per_block=1,
        block_out_channels=(16, 32, 64),
        down_block_types=("DownBlock2D", "DownBlock2D", "AttnDownBlock2D"),
        up_block_types=("AttnUpBlock2D", "UpBlock2D", "UpBlock2D"),
        norm_num_groups=4,
        attention_head_dim=None,
        dropout=0.0,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--epochs", type=float, default=6.0)
    options = parser.parse_args()
    torch.set_num_threads(1)
    model = small_unet()
    task = Diffusion(*load_images(options.data), model, held_out=500)
    recipe = lm.Recipe(
        epochs=options.epochs,
        batch_size=64,
        optimizer="adamw",
        lr=2e-3,
        weight_decay=0.0,
        warmup_epochs=0.2,
        clip_norm=1.0,
        ema=0.998,
        channels_last=True,
    )
    print(
        f"{sum(weights.numel() for weights in model.parameters()):,} parameters, {task.steps_per_epoch(64)} steps an epoch"
    )
    noisy, times = task.example_inputs()
    net = lm.rewrite(lm.trace(model, (noisy, times)), [])
    lm.finetune(net, task, recipe, directory=options.out / "training")
    model.load_state_dict(net.state_dict())
    model.save_pretrained(options.out)
    import_diffusers().DDPMScheduler().save_pretrained(options.out)
    print(task.test(model))


if __name__ == "__main__":
    main()
