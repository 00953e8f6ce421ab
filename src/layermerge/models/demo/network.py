"""The demo's network: blocks that widen, filter and narrow, for 28 x 28 grey images of clothes.

A network like any user's: no code of the method refers to it. Its weights were trained by benchmarks/train_demo_network.py.
"""

from __future__ import annotations

from torch import Tensor, nn

# Expansion, channels, repetitions, stride of the first.
_STAGES = ((1, 16, 1, 1), (3, 24, 3, 1), (3, 40, 3, 2), (3, 56, 2, 1))
_LAST = 128
CLASSES = 10


class ConvNorm(nn.Sequential):
    """Convolution, batch norm and, unless told otherwise, an activation."""

    def __init__(
        self, inside: int, outside: int, kernel: int = 1, stride: int = 1, groups: int = 1, *, active: bool = True
    ) -> None:
        super().__init__(
            nn.Conv2d(inside, outside, kernel, stride, kernel // 2, groups=groups, bias=False), nn.BatchNorm2d(outside)
        )
        if active:
            self.append(nn.ReLU6())


class Block(nn.Module):
    """Expand, filter each channel, project; added to the input where shapes allow."""

    def __init__(self, inside: int, outside: int, stride: int, expansion: int) -> None:
        super().__init__()
        inner = inside * expansion
        self.adds = stride == 1 and inside == outside
        self.body = nn.Sequential(
            *([ConvNorm(inside, inner)] if expansion > 1 else []),
            ConvNorm(inner, inner, 3, stride, groups=inner),
            ConvNorm(inner, outside, active=False),
        )

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.body(x)
        return x + y if self.adds else y


class ClothesNet(nn.Module):
    """From grey images of clothes to ten classes."""

    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = [ConvNorm(1, _STAGES[0][1], 3, 2)]
        inside = _STAGES[0][1]
        for expansion, outside, repeats, stride in _STAGES:
            for place in range(repeats):
                layers.append(Block(inside, outside, stride if place == 0 else 1, expansion))
                inside = outside
        self.features = nn.Sequential(*layers, ConvNorm(inside, _LAST))
        self.head = nn.Linear(_LAST, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.features(x).mean((2, 3)))
        return logits
