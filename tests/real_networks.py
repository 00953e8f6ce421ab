"""The published networks that tracing and planning are held to, by name, and inputs for them."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import nn

from layermerge.models import import_torchvision, load_model, random_input
from layermerge.tracing.trace import Trace
from observed import MakeInputs, Observed, observe
from solutions import randomise

FAST = (
    "torchvision:resnet34",
    "torchvision:mobilenet_v2",
    "timm:mobilenetv2_100",
    "timm:test_convnext",  # published for tests such as these: the blocks of large networks, few of them
    "timm:test_byobnet",
    "timm:test_resnet",
)
SLOW = (
    "diffusers:conditional",
    "torchvision:convnext_tiny",
    "timm:tf_efficientnet_lite0",
    "timm:repvgg_a0",
    "timm:resnetv2_50",
    "torchvision:resnet50",
    "torchvision:vgg16_bn",
    "torchvision:densenet121",
    "torchvision:googlenet",
    "torchvision:inception_v3",
    "torchvision:shufflenet_v2_x1_0",
    "torchvision:squeezenet1_1",
    "torchvision:regnet_y_400mf",
    "torchvision:efficientnet_b0",
    "torchvision:mobilenet_v3_large",
    "timm:resnet34",
    "timm:mobilenetv2_140",
    "timm:efficientnet_lite0",
    "timm:resnext50_32x4d",
    "timm:ghostnet_100",
    "timm:hrnet_w18_small",
    "timm:cspdarknet53",
    "timm:dla34",
    "diffusers:ddpm",
)
AUXILIARY = frozenset({"torchvision:googlenet", "torchvision:inception_v3"})
"""Networks with heads that only train mode uses."""

_LARGER = {"torchvision:inception_v3": 96}
DDPM_PARAMETERS = 35_746_307


def build(name: str, size: int | tuple[int, int] = 64) -> tuple[nn.Module, MakeInputs]:
    """The network with seeded random weights, and how to make inputs for it at a batch size.

    `size` is the height and width of images where the network takes any, one number or two.
    """
    torch.manual_seed(5)
    if name in ("diffusers:ddpm", "diffusers:narrow_ddpm"):
        return randomise(ddpm(32 if "narrow" in name else 128).eval(), 3, _noisy(3, 32)(2)), _noisy(3, 32)
    if name == "diffusers:conditional":
        return conditional_unet(), _noisy(4, 16, text=(5, 32))
    if isinstance(size, int):
        size = (_LARGER.get(name, size), _LARGER.get(name, size))
    shape = (3, *size)
    model = load_model(name, input_shape=shape).module

    def make(batch: int) -> torch.Tensor:
        brightness = torch.linspace(1, 2, batch).view(-1, 1, 1, 1)
        return random_input(shape).repeat(batch, 1, 1, 1)[:batch] * brightness

    return model, make


@cache
def observed(name: str) -> Observed:
    """The network with its trace; shared, so nothing may change it."""
    return observe(*build(name))


def traced(name: str) -> Trace:
    """The trace of the network; shared, so nothing may change it."""
    return observed(name).trace


def _noisy(channels: int, size: int, text: tuple[int, int] | None = None) -> MakeInputs:
    def make(batch: int) -> tuple[torch.Tensor, ...]:
        generator = torch.Generator().manual_seed(9)
        inputs = [torch.randn(batch, channels, size, size, generator=generator), torch.tensor([10, 500, 900])[:batch]]
        if text is not None:
            inputs.append(torch.randn(batch, *text, generator=generator))
        return tuple(inputs)

    return make


def import_diffusers() -> Any:
    import_torchvision()
    import diffusers

    return diffusers


def ddpm(width: int = 128) -> nn.Module:
    """The CIFAR-10 configuration of the denoising network that the paper compresses; `width` is 128 there."""
    model: nn.Module = import_diffusers().UNet2DModel(
        sample_size=32,
        in_channels=3,
        out_channels=3,
        layers_per_block=2,
        block_out_channels=(width, 2 * width, 2 * width, 2 * width),
        down_block_types=("DownBlock2D", "AttnDownBlock2D", "DownBlock2D", "DownBlock2D"),
        up_block_types=("UpBlock2D", "UpBlock2D", "AttnUpBlock2D", "UpBlock2D"),
        downsample_padding=0,
        flip_sin_to_cos=False,
        freq_shift=1,
        norm_eps=1e-6,
        center_input_sample=False,
    )
    return model


CONDITIONAL_CONFIG: dict[str, Any] = {
    "sample_size": 16,
    "block_out_channels": (32, 64),
    "layers_per_block": 1,
    "cross_attention_dim": 32,
    "norm_num_groups": 8,
    "down_block_types": ("CrossAttnDownBlock2D", "DownBlock2D"),
    "up_block_types": ("UpBlock2D", "CrossAttnUpBlock2D"),
    "attention_head_dim": 8,
}


def conditional_unet() -> nn.Module:
    model: nn.Module = import_diffusers().UNet2DConditionModel(**CONDITIONAL_CONFIG)
    return model


def small_unet() -> nn.Module:
    """Residual blocks with time embedding, attention, one step down and up again."""
    torch.manual_seed(7)
    model: nn.Module = import_diffusers().UNet2DModel(
        sample_size=16,
        in_channels=3,
        out_channels=3,
        layers_per_block=1,
        block_out_channels=(16, 32),
        norm_num_groups=8,
        down_block_types=("DownBlock2D", "AttnDownBlock2D"),
        up_block_types=("AttnUpBlock2D", "UpBlock2D"),
    )
    return model
