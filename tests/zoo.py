"""The synthetic zoo: one tiny network for each thing a real network may do."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from zoo_blocks import (
    Basic,
    Bottleneck,
    InvertedResidual,
    PreActivation,
    SqueezeExcite,
    conv_bn_relu,
)
from zoo_registry import ZOO as ZOO
from zoo_registry import build as build
from zoo_registry import conv, image, specimen
from zoo_registry import observed as observed
from zoo_registry import traced as traced
from zoo_unusual import AuxiliaryHead as AuxiliaryHead
from zoo_unusual import DropPath as DropPath

# -- plain networks


@specimen("plain")
class Plain(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(
            *conv_bn_relu(3, 6), *conv_bn_relu(6, 6), conv(6, 6), nn.ReLU(), nn.Flatten(), nn.LazyLinear(5)
        )
        self(torch.zeros(2, 3, 16, 16))


@specimen("functional_relu")
class FunctionalRelu(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.third = conv(3, 6), conv(6, 6), conv(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.third(F.relu(self.second(F.relu(self.first(x)))))  # type: ignore[no-any-return]


@specimen("one_relu_five_times")
class OneRelu(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.convs = nn.ModuleList([conv(3 if place == 0 else 4, 4) for place in range(5)])
        self.relu = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.convs:
            x = self.relu(layer(x))
        return x


@specimen("shared_conv")
class SharedConv(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.before, self.shared, self.after = conv(3, 4), conv(4, 4), conv(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.shared(F.relu(self.before(x))))
        return self.after(F.relu(self.shared(x)))  # type: ignore[no-any-return]


class TwoNames(nn.Module):
    """One conv, called once, registered under two names."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = conv(3, 4), conv(4, 4)
        self.alias = self.second

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.alias(F.relu(self.first(x))))


@specimen("dilated")
class Dilated(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(conv(3, 4), nn.ReLU(), nn.Conv2d(4, 4, 3, padding=2, dilation=2), nn.ReLU(), conv(4, 4, 1))


@specimen("asymmetric")
class Asymmetric(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(nn.Conv2d(3, 3, (1, 7), padding=(0, 3)), nn.ReLU(), nn.Conv2d(3, 3, (7, 1), padding=(3, 0)))


@specimen("reflect_padding")
class ReflectPadding(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(conv(3, 4), nn.ReLU(), conv(4, 4, padding_mode="reflect"), nn.ReLU(), conv(4, 4))


@specimen("explicit_same_padding")
class ExplicitSamePadding(nn.Module):
    """Zero padding by hand, more of it at the end, before a strided conv without padding of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = conv(3, 4)
        self.down = nn.Conv2d(4, 4, 3, 2)
        self.same = nn.Conv2d(4, 4, (5, 3), padding="same")

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.stem(x))
        x = F.relu(self.down(F.pad(x, (0, 1, 0, 1))))
        return self.same(x)  # type: ignore[no-any-return]


@specimen("convs_on_single_pixels")
class SinglePixels(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem, self.narrow, self.wide = conv(3, 4, stride=2), conv(4, 4, 1), conv(4, 4, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = F.adaptive_avg_pool2d(F.relu(self.stem(x)), 1)
        return self.wide(F.relu(self.narrow(x))).flatten(1)  # type: ignore[no-any-return]


def _with_operator_between(operator: Callable[[Tensor], Tensor]) -> nn.Module:
    class Between(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second, self.third = conv(3, 4), conv(4, 4), conv(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            return self.third(self.second(operator(self.first(x))))  # type: ignore[no-any-return]

    return Between()


specimen("cumsum_between")(lambda: _with_operator_between(lambda x: torch.cumsum(x, -1)))
specimen("max_pool_between")(lambda: _with_operator_between(lambda x: F.max_pool2d(x, 2)))


# -- residual networks


def _blocks(*names_and_blocks: tuple[str, nn.Module]) -> nn.Module:
    model = nn.Sequential()
    for name, block in names_and_blocks:
        model.add_module(name, block)
    return model


specimen("basic")(lambda: _blocks(("stem", conv(3, 4)), ("a", Basic(4, 4)), ("b", Basic(4, 4))))
specimen("basic_strided", image(4))(lambda: Basic(4, 6, stride=2))
specimen("bottleneck", image(6))(lambda: Bottleneck(6, 4, 8))
specimen("bottleneck_strided", image(6))(lambda: Bottleneck(6, 4, 8, stride=2))
specimen("inverted", image(4))(lambda: _blocks(("a", InvertedResidual(4, 8)), ("b", InvertedResidual(4, 8))))
specimen("pre_activation", image(4))(lambda: PreActivation(4, 4))
specimen("pre_activation_conv_shortcut", image(4))(lambda: PreActivation(4, 6))
specimen("pre_activation_after_stem")(lambda: _blocks(("stem", conv(3, 4)), ("a", PreActivation(4, 4))))


@specimen("functional_residual")
class FunctionalResidual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem, self.c1, self.c2 = conv(3, 4), conv(4, 4), conv(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.stem(x))
        return F.relu(torch.add(self.c2(F.relu(self.c1(x))), x))


@specimen("in_place")
class InPlace(nn.Module):
    """The skip is taken before the in-place ReLU, so what it carries is the activated map."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.bn, self.relu = conv(3, 4), nn.BatchNorm2d(4), nn.ReLU(inplace=True)
        self.c1, self.c2, self.drop = conv(4, 4), conv(4, 4), nn.Dropout(0.3, inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        x = self.bn(self.stem(x))
        skip = x
        x = self.relu(x)
        y = F.relu_(self.c1(x))
        y = self.drop(self.c2(y))
        y += skip
        y *= 0.5
        return y.clamp_(-3, 3)  # type: ignore[no-any-return]


@specimen("rep_branches")
class RepBranches(nn.Module):
    """Three branches on one input: 3x3, 1x1 and a norm alone."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.big, self.small = conv(3, 4), conv(4, 4, bias=False), conv(4, 4, 1, bias=False)
        self.big_bn, self.small_bn, self.bn = nn.BatchNorm2d(4), nn.BatchNorm2d(4), nn.BatchNorm2d(4)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.stem(x))
        return F.relu(self.big_bn(self.big(x)) + self.small_bn(self.small(x)) + self.bn(x))


@specimen("squeeze_excite")
class SqueezeExciteNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.expand, self.gate, self.project = conv(3, 8), SqueezeExcite(8), conv(8, 3, 1)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.project(self.gate(F.silu(self.expand(x))))  # type: ignore[no-any-return]


@specimen("grouped_chain", image(6))
class GroupedChain(nn.Sequential):
    """Numbers of groups that divide each other, and some that do not."""

    def __init__(self) -> None:
        super().__init__(
            conv(6, 12, groups=3, bias=False),
            nn.BatchNorm2d(12, eps=1e-3),
            nn.ReLU(),
            conv(12, 12, groups=2),
            nn.ReLU(),
            conv(12, 12, 1, groups=6),
            nn.BatchNorm2d(12, affine=False),
            nn.ReLU(),
            conv(12, 6, groups=2),
        )


@specimen("depthwise_chain", image(4))
class DepthwiseChain(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(
            conv(4, 4, groups=4, bias=False),
            nn.BatchNorm2d(4),
            nn.ReLU6(),
            conv(4, 4, 5, groups=4),
            nn.ReLU6(),
            conv(4, 4, 1, groups=4),
            nn.Hardswish(),
        )


@specimen("even_same_residual", image(3, 15, 13))
class EvenSameResidual(nn.Module):
    """Even kernels with 'same' padding: more of it at the end, so that the skip lies beside the kernel's centre."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = conv(3, 4)
        self.c1, self.bn = nn.Conv2d(4, 4, (4, 2)), nn.BatchNorm2d(4, eps=1e-3)
        self.c2, self.last = nn.Conv2d(4, 4, 2), nn.Conv2d(4, 5, 2, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.stem(x))
        y = F.relu(self.bn(self.c1(F.pad(x, (0, 1, 1, 2)))))
        x = F.relu(x + self.c2(F.pad(y, (0, 1, 0, 1))))
        return self.last(x)  # type: ignore[no-any-return]
