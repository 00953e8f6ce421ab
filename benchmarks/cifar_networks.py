"""The networks for 32x32 images that the benchmarks compress.

Recipes name them as python:benchmarks.cifar_networks:NAME, from the root of the repository.
"""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F

from layermerge.models import import_torchvision, random_input


class BasicBlock(nn.Module):
    """Two 3x3 convs and a skip (He et al.)."""

    def __init__(self, in_channels: int, channels: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(in_channels, channels, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)
        self.shortcut = nn.Sequential()
        if stride != 1 or in_channels != channels:
            shortcut = nn.Conv2d(in_channels, channels, 1, stride, bias=False)
            self.shortcut = nn.Sequential(shortcut, nn.BatchNorm2d(channels))

    def forward(self, x: Tensor) -> Tensor:
        body = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        return F.relu(body + self.shortcut(x))


class CifarResNet(nn.Module):
    """Three stages of 16, 32 and 64 channels."""

    def __init__(self, blocks: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 16, 3, 1, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(16)
        self.layer1 = self._stage(16, 16, blocks, 1)
        self.layer2 = self._stage(16, 32, blocks, 2)
        self.layer3 = self._stage(32, 64, blocks, 2)
        self.linear = nn.Linear(64, 10)

    @staticmethod
    def _stage(in_channels: int, channels: int, blocks: int, stride: int) -> nn.Sequential:
        first = BasicBlock(in_channels, channels, stride)
        return nn.Sequential(first, *(BasicBlock(channels, channels, 1) for _ in range(blocks - 1)))

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.bn1(self.conv1(x)))
        x = self.layer3(self.layer2(self.layer1(x)))
        return self.linear(x.mean((2, 3)))  # type: ignore[no-any-return]


def resnet20() -> tuple[nn.Module, Tensor]:
    return CifarResNet(3), random_input((3, 32, 32))


def resnet56() -> tuple[nn.Module, Tensor]:
    return CifarResNet(9), random_input((3, 32, 32))


def mobilenetv2() -> tuple[nn.Module, Tensor]:
    """Torchvision's MobileNetV2 at half width, with three of its five strides."""
    settings = [
        [1, 16, 1, 1],
        [6, 24, 2, 1],
        [6, 32, 3, 2],
        [6, 64, 4, 2],
        [6, 96, 3, 1],
        [6, 160, 3, 2],
        [6, 320, 1, 1],
    ]
    network = import_torchvision().models.MobileNetV2(
        num_classes=10, width_mult=0.5, dropout=0.0, inverted_residual_setting=settings
    )
    network.features[0][0].stride = (1, 1)
    return network, random_input((3, 32, 32))
