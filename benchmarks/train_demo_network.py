"""Trains the network of `layermerge demo` on the embedded images, from scratch.

    python benchmarks/train_demo_network.py

Out: src/layermerge/demo/weights.safetensors. It resumes from runs/demo-training after an interruption.
"""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import save_file

import layermerge as lm
from layermerge.data.preparation import STATISTICS
from layermerge.models.demo.network import ClothesNet
from layermerge.tasks import Classification, Preparation, load_images

ROOT = Path(__file__).resolve().parents[1]
RECIPE = lm.Recipe(
    epochs=20,
    batch_size=64,
    lr=0.1,
    weight_decay=5e-4,
    warmup_epochs=1,
    label_smoothing=0.05,
    ema=0.995,
    channels_last=True,
)


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = ClothesNet()
    preparation = Preparation(normalise=STATISTICS["fashion-mnist"], augment="crop_flip", pad=2)
    task = Classification(*load_images("embedded"), preparation=preparation, held_out=1000, eval_batch_size=100)
    print(f"{sum(weights.numel() for weights in model.parameters()):,} parameters")
    net = lm.rewrite(lm.trace(model, task.example_inputs()), [])
    lm.finetune(net, task, RECIPE, directory=ROOT / "runs" / "demo-training")
    model.load_state_dict(net.state_dict())
    save_file(model.state_dict(), ROOT / "src" / "layermerge" / "demo" / "weights.safetensors")
    print(task.test(model.eval()))


if __name__ == "__main__":
    main()
