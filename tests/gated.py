"""A network of residual branches that are no chains: each has a gate, and one holds another."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from zoo_registry import conv, random_tensor


class Gated(nn.Module):
    """An inverted bottleneck with a gate of its own on a residual branch; `inner` puts a second branch inside the first."""

    def __init__(self, inner: bool = False) -> None:
        super().__init__()
        self.expand, self.depth, self.project = conv(8, 24, 1), conv(24, 24, groups=24), conv(24, 8, 1)
        self.reduce, self.grow = conv(24, 6, 1), conv(6, 24, 1)
        self.inner = Gated() if inner else None

    def branch(self, x: Tensor) -> Tensor:
        x = self.inner(x) if self.inner else x
        x = torch.relu(self.depth(torch.relu(self.expand(x))))
        gate = torch.sigmoid(self.grow(torch.relu(self.reduce(x.mean((2, 3), keepdim=True)))))
        return self.project(x * gate)  # type: ignore[no-any-return]

    def forward(self, x: Tensor) -> Tensor:
        return x + self.branch(x)


class GatedNetwork(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem, self.head = conv(3, 8), conv(8, 4)
        self.first, self.second = Gated(), Gated(inner=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.relu(self.second(self.first(torch.relu(self.stem(x))))))  # type: ignore[no-any-return]


def gated_input(batch: int = 2) -> Tensor:
    return random_tensor(batch, 3, 12, 12)
