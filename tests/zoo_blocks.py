"""The blocks that the zoo's networks are made of."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def conv_bn_relu(ins: int, outs: int, kernel: int = 3) -> tuple[nn.Module, ...]:
    return nn.Conv2d(ins, outs, kernel, padding=kernel // 2, bias=False), nn.BatchNorm2d(outs), nn.ReLU()


class Basic(nn.Module):
    """3x3, 3x3 and a skip; a strided 1x1 conv on the skip where the shape changes."""

    def __init__(self, ins: int, outs: int, stride: int = 1) -> None:
        super().__init__()
        self.c1, self.bn1 = nn.Conv2d(ins, outs, 3, stride, 1, bias=False), nn.BatchNorm2d(outs)
        self.c2, self.bn2 = nn.Conv2d(outs, outs, 3, padding=1, bias=False), nn.BatchNorm2d(outs)
        if stride > 1 or ins != outs:
            self.sc, self.sc_bn = nn.Conv2d(ins, outs, 1, stride, bias=False), nn.BatchNorm2d(outs)

    def forward(self, x: Tensor) -> Tensor:
        skip = self.sc_bn(self.sc(x)) if hasattr(self, "sc") else x
        return F.relu(self.bn2(self.c2(F.relu(self.bn1(self.c1(x))))) + skip)


class Bottleneck(nn.Module):
    """1x1, 3x3 (which carries the stride), 1x1, beside a 1x1 conv."""

    def __init__(self, ins: int, width: int, outs: int, stride: int = 1) -> None:
        super().__init__()
        self.c1, self.bn1 = nn.Conv2d(ins, width, 1, bias=False), nn.BatchNorm2d(width)
        self.c2, self.bn2 = nn.Conv2d(width, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width)
        self.c3, self.bn3 = nn.Conv2d(width, outs, 1, bias=False), nn.BatchNorm2d(outs)
        self.sc, self.sc_bn = nn.Conv2d(ins, outs, 1, stride, bias=False), nn.BatchNorm2d(outs)
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        y = self.relu(self.bn1(self.c1(x)))
        y = self.relu(self.bn2(self.c2(y)))
        y = self.bn3(self.c3(y))
        y += self.sc_bn(self.sc(x))
        return self.relu(y)  # type: ignore[no-any-return]


class InvertedResidual(nn.Module):
    """1x1 up, 3x3 depthwise, 1x1 down without an activation, and a skip."""

    def __init__(self, channels: int, hidden: int) -> None:
        super().__init__()
        self.pw, self.bn1 = nn.Conv2d(channels, hidden, 1, bias=False), nn.BatchNorm2d(hidden)
        self.dw = nn.Conv2d(hidden, hidden, 3, padding=1, groups=hidden, bias=False)
        self.bn2, self.bn3 = nn.BatchNorm2d(hidden), nn.BatchNorm2d(channels)
        self.pl = nn.Conv2d(hidden, channels, 1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu6(self.bn1(self.pw(x)))
        y = F.relu6(self.bn2(self.dw(y)))
        return x + self.bn3(self.pl(y))  # type: ignore[no-any-return]


class PreActivation(nn.Module):
    """Norm and ReLU before each conv; the shortcut reads the raw input."""

    def __init__(self, ins: int, outs: int) -> None:
        super().__init__()
        self.bn1, self.c1 = nn.BatchNorm2d(ins), nn.Conv2d(ins, outs, 3, padding=1, bias=False)
        self.bn2, self.c2 = nn.BatchNorm2d(outs), nn.Conv2d(outs, outs, 3, padding=1, bias=False)
        self.sc = nn.Conv2d(ins, outs, 1, bias=False) if ins != outs else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        y = self.c1(F.relu(self.bn1(x)))
        y = self.c2(F.relu(self.bn2(y)))
        return y + self.sc(x)  # type: ignore[no-any-return]


class SqueezeExcite(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.reduce, self.grow = nn.Conv2d(channels, 2, 1), nn.Conv2d(2, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        gate = self.grow(F.relu(self.reduce(x.mean((2, 3), keepdim=True))))
        return x * torch.sigmoid(gate)


class ResnetBlock(nn.Module):
    """A diffusion network's block: GroupNorm, SiLU, conv, the time added per channel, and the same again."""

    def __init__(self, ins: int, outs: int, time_width: int = 8) -> None:
        super().__init__()
        self.norm1, self.c1 = nn.GroupNorm(4, ins), nn.Conv2d(ins, outs, 3, padding=1)
        self.time = nn.Linear(time_width, outs)
        self.norm2, self.drop, self.c2 = nn.GroupNorm(4, outs), nn.Dropout(0.1), nn.Conv2d(outs, outs, 3, padding=1)
        self.sc = nn.Conv2d(ins, outs, 1) if ins != outs else None
        self.time_width = time_width

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        angles = time[:, None].to(x.dtype) * torch.linspace(0.01, 0.1, self.time_width // 2).to(x)
        embedding = self.time(F.silu(torch.cat([angles.sin(), angles.cos()], 1)))
        y = self.c1(F.silu(self.norm1(x)))
        y = y + embedding[:, :, None, None]
        y = self.c2(self.drop(F.silu(self.norm2(y))))
        skip = x if self.sc is None else self.sc(x)
        return (skip + y) / 1.5  # type: ignore[no-any-return]


class SmallAttention(nn.Module):
    """Self-attention over all pixels, added to its input."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm, self.qkv = nn.GroupNorm(4, channels), nn.Conv2d(channels, 3 * channels, 1)
        self.project = nn.Conv2d(channels, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(self.norm(x)).flatten(2).transpose(1, 2).chunk(3, -1)
        mixed = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(x.shape)
        return x + self.project(mixed)  # type: ignore[no-any-return]
