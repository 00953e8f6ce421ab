"""Networks that take images of any size: one for each way in which a size gets into a graph."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from zoo_blocks import Basic, InvertedResidual, SqueezeExcite, conv_bn_relu
from zoo_registry import conv, random_tensor


class Averaged(nn.Module):
    """The mean of a map, divided by its size by hand."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(*conv_bn_relu(3, 6), conv(6, 6), nn.ReLU(), conv(6, 4))

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.body(x)
        return y.sum((2, 3)) / (y.shape[2] * y.shape[3])


class Resized(nn.Module):
    """A segmenter: a head at half the size, brought back to the size of the image."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.down, self.head = (
            conv(3, 4),
            conv(4, 6, stride=2),
            nn.Sequential(conv(6, 6), nn.ReLU(), conv(6, 2, 1)),
        )

    def forward(self, x: Tensor) -> Tensor:
        y = self.head(F.relu(self.down(F.relu(self.stem(x)))))
        return F.interpolate(y, size=x.shape[-2:], mode="bilinear", align_corners=False)


class Same(nn.Conv2d):
    """TensorFlow's 'same' padding: how much depends on the size, and more of it is at the end."""

    def forward(self, input: Tensor) -> Tensor:
        sides: list[int] = []
        for axis in (1, 0):
            size, kernel, stride = input.shape[2 + axis], self.kernel_size[axis], self.stride[axis]
            missing = max((math.ceil(size / stride) - 1) * stride + kernel - size, 0)
            sides += [missing // 2, missing - missing // 2]
        return F.conv2d(F.pad(input, sides), self.weight, self.bias, self.stride)


class SamePadding(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem, self.first, self.down = Same(3, 4, 3, 2), conv(4, 4), Same(4, 4, 3, 2)
        self.second, self.third = conv(4, 4), conv(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.first(F.relu(self.stem(x))))
        return self.third(F.relu(self.second(F.relu(self.down(x)))))  # type: ignore[no-any-return]


class Pyramid(nn.Module):
    """A feature pyramid: each level is brought to the size of the one below, whatever that is."""

    def __init__(self) -> None:
        super().__init__()
        self.low, self.middle, self.high = (conv(ins, 4, stride=2) for ins in (3, 4, 4))
        self.laterals = nn.ModuleList([conv(4, 4, 1) for _ in range(3)])
        self.outs = nn.ModuleList([nn.Sequential(conv(4, 4), nn.ReLU(), conv(4, 4)) for _ in range(3)])

    def forward(self, x: Tensor) -> list[Tensor]:
        low = F.relu(self.low(x))
        middle = F.relu(self.middle(low))
        maps = [low, middle, F.relu(self.high(middle))]
        maps = [lateral(one) for lateral, one in zip(self.laterals, maps, strict=True)]
        for level in (1, 0):
            maps[level] = maps[level] + F.interpolate(maps[level + 1], size=maps[level].shape[-2:])
        return [out(one) for out, one in zip(self.outs, maps, strict=True)]


class UNet(nn.Module):
    """Takes even sizes only: a skip is concatenated with what was brought to twice its size."""

    def __init__(self) -> None:
        super().__init__()
        self.enter = nn.Sequential(*conv_bn_relu(3, 4), *conv_bn_relu(4, 4))
        self.down, self.leave = (
            conv(4, 4, stride=2),
            nn.Sequential(conv(8, 4), nn.ReLU(), conv(4, 4), nn.ReLU(), conv(4, 3)),
        )

    def forward(self, x: Tensor) -> Tensor:
        x = self.enter(x)
        y = F.interpolate(F.relu(self.down(x)), scale_factor=2)
        return self.leave(torch.cat((x, y), dim=1))  # type: ignore[no-any-return]


class Gated(nn.Module):
    """A branch that is not a chain, with a gate that divides by the size of its map."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.first, self.gate, self.second = conv(3, 4), conv(4, 4), conv(4, 4, 1), conv(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.stem(x))
        y = F.relu(self.first(x))
        mean = y.sum((2, 3), keepdim=True) / (y.shape[2] * y.shape[3])
        return x + self.second(y * torch.sigmoid(self.gate(mean)))  # type: ignore[no-any-return]


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem, self.mix, self.last = conv(3, 4), conv(4, 4, 1), nn.Sequential(conv(4, 4), nn.ReLU(), conv(4, 4))

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.stem(x))
        batch, channels, high, wide = x.shape
        tokens = self.mix(x).reshape(batch, channels, high * wide).transpose(1, 2)
        weights = (tokens @ tokens.transpose(1, 2)).softmax(-1)
        return self.last((weights @ tokens).transpose(1, 2).reshape(batch, channels, high, wide))  # type: ignore[no-any-return]


def _plain() -> nn.Module:
    return nn.Sequential(*conv_bn_relu(3, 6), *conv_bn_relu(6, 6), conv(6, 6), nn.ReLU(), conv(6, 4))


def _residual() -> nn.Module:
    head = (nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, 5))
    return nn.Sequential(conv(3, 4), Basic(4, 4), Basic(4, 6, stride=2), *head)


def _depthwise() -> nn.Module:
    return nn.Sequential(
        conv(3, 4), InvertedResidual(4, 8), InvertedResidual(4, 8), SqueezeExcite(4), nn.AdaptiveAvgPool2d((2, 3))
    )


NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "plain": _plain,
    "residual": _residual,
    "depthwise": _depthwise,
    "averaged": Averaged,
    "resized": Resized,
    "same padding": SamePadding,
    "pyramid": Pyramid,
    "unet": UNet,
    "gated": Gated,
    "attention": Attention,
}
EVEN = frozenset({"unet"})
"""Networks that refuse odd sizes."""
SIZES = ((16, 16), (13, 22), (17, 9), (24, 11), (33, 31))
EVEN_SIZES = ((16, 16), (14, 22), (8, 10), (24, 12), (34, 30))


def build(name: str) -> nn.Module:
    torch.manual_seed(11)
    return NETWORKS[name]().eval()


def image(high: int = 16, wide: int = 16, batch: int = 2) -> Tensor:
    return random_tensor(batch, 3, high, wide, seed=high * wide)


def sizes(name: str) -> tuple[tuple[int, int], ...]:
    return EVEN_SIZES if name in EVEN else SIZES
