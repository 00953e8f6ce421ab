"""Stock diffusers networks, and by hand what a solution makes of them: nothing of ours computes here.

A solution is told to the library's own module: a removed conv becomes `nn.Identity`, a merged residual block gets the
forward pass that the paper gives it. What rewrite and merge return has to compute the same.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable
from functools import cache, partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import layermerge as lm
from layermerge.models import import_diffusers
from solutions import randomise

ROUNDED = 1e-5
SMALL: dict[str, Any] = {
    "sample_size": 16,
    "in_channels": 3,
    "out_channels": 3,
    "layers_per_block": 1,
    "block_out_channels": (16, 32),
    "norm_num_groups": 8,
    "down_block_types": ("DownBlock2D", "AttnDownBlock2D"),
    "up_block_types": ("AttnUpBlock2D", "UpBlock2D"),
    "downsample_padding": 0,
    "mid_block_scale_factor": math.sqrt(2),
    "norm_eps": 1e-3,
    "dropout": 0.1,
}
"""Blocks with and without a shortcut conv, attention, a step down and up, padding on two sides only, a scaled residual."""
TINY: dict[str, Any] = SMALL | {
    "block_out_channels": (16,),
    "down_block_types": ("DownBlock2D",),
    "up_block_types": ("UpBlock2D",),
    "sample_size": 8,
}
"""Blocks and concatenations around one attention, at one resolution: quick to trace."""


def unet(config: dict[str, Any]) -> Any:
    torch.manual_seed(7)
    return randomise(import_diffusers().UNet2DModel(**config), 5).eval()


def noisy(batch: int, size: int = 16, channels: int = 3) -> tuple[Tensor, Tensor]:
    sample = torch.randn(batch, channels, size, size, generator=torch.Generator().manual_seed(batch))
    return sample, torch.tensor([13, 987, 500, 250])[:batch]


@cache
def small() -> tuple[Any, lm.Trace]:
    """The small network and its trace; tests leave both as they are."""
    model = unet(SMALL)
    return model, lm.trace(model, noisy(2))


def blocks(model: nn.Module) -> dict[str, Any]:
    """The library's residual blocks, by name, in the order of their execution."""
    order = {"down_blocks": 0, "mid_block": 1, "up_blocks": 2}
    found = {name: part for name, part in model.named_modules() if type(part).__name__ == "ResnetBlock2D"}
    return dict(sorted(found.items(), key=lambda entry: order[entry[0].split(".")[0]]))


def attentions(model: nn.Module) -> list[str]:
    """The library's attention with a conv before and behind it, by name."""
    return [name for name, part in model.named_modules() if type(part).__name__ == "Transformer2DModel"]


def told(model: nn.Module, solution: Iterable[lm.Candidate]) -> Any:
    """A copy of the stock network that does what the solution says, by hand."""
    net = copy.deepcopy(model)
    chosen = list(solution)
    gone = {name for candidate in chosen for name in candidate.layers if name not in candidate.kept}
    unread = _read_by_no_conv(net, gone)
    for candidate in chosen:
        owner, _, own_name = candidate.layers[0].rpartition(".")
        part: Any = net.get_submodule(owner)
        if len(candidate.layers) == 2 and owner in blocks(net):
            kept = [name.rpartition(".")[2] for name in candidate.kept]
            part.forward = partial(_merged_block, part, kept, owner != unread)
        elif len(candidate.layers) == 1 and not candidate.kept:
            setattr(part, own_name, nn.Identity())
    for name, block in blocks(net).items():
        if {f"{name}.conv1", f"{name}.conv2"} <= gone:
            block.forward = partial(_emptied_block, block)
    for name in attentions(net):
        if {f"{name}.proj_in", f"{name}.proj_out"} <= gone:  # by one candidate or by two
            net.get_submodule(name).forward = _dropped_attention
    return net


def _read_by_no_conv(net: Any, gone: set[str]) -> str | None:
    """The last block, unless a conv of attention is left behind it; every other one reaches a conv before an activation."""
    path = f"up_blocks.{len(net.up_blocks) - 1}.attentions.{len(net.up_blocks[-1].resnets) - 1}."
    convs = {name for name, part in net.named_modules() if name.startswith(path) and isinstance(part, nn.Conv2d)}
    return None if convs - gone else list(blocks(net))[-1]


def _merged_block(block: Any, kept: list[str], activated: bool, x: Tensor, temb: Tensor) -> Tensor:
    """All padding first, then convs and time embedding with nothing between, the norm behind them, before the add."""
    hidden = F.pad(block.nonlinearity(block.norm1(x)), (len(kept),) * 4)
    if "conv1" in kept:
        hidden = F.conv2d(hidden, block.conv1.weight, block.conv1.bias)
    hidden = hidden + block.time_emb_proj(block.nonlinearity(temb))[:, :, None, None]
    if "conv2" in kept:
        hidden = F.conv2d(hidden, block.conv2.weight, block.conv2.bias)
    added = _shortcut(block, x) + block.norm2(hidden)
    return (block.nonlinearity(added) if activated else added) / block.output_scale_factor  # type: ignore[no-any-return]


def _dropped_attention(x: Tensor, **_conditions: Any) -> tuple[Tensor]:
    """What its block adds to its input goes with it."""
    return (x,)


def _emptied_block(block: Any, x: Tensor, _temb: Tensor) -> Tensor:
    return _shortcut(block, x) / block.output_scale_factor  # type: ignore[no-any-return]


def _shortcut(block: Any, x: Tensor) -> Tensor:
    return x if block.conv_shortcut is None else block.conv_shortcut(x)


def pictures(model: Any, unet_in_its_place: Any, steps: int = 20, batch: int = 2, output: str = "np") -> Any:
    """Samples of the library's own pipeline, built around the original, with another network put in its place."""
    library = import_diffusers()
    pipe = library.DDIMPipeline(unet=model, scheduler=library.DDIMScheduler(num_train_timesteps=1000))
    pipe.set_progress_bar_config(disable=True)
    pipe.unet = unet_in_its_place
    generator = torch.Generator().manual_seed(3)
    return pipe(batch_size=batch, generator=generator, num_inference_steps=steps, output_type=output).images
