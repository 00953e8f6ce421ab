"""The synthetic zoo: one tiny network for each thing a real network may do."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from layermerge.tracing.trace import Trace, trace
from zoo_blocks import (
    Basic,
    Bottleneck,
    InvertedResidual,
    PreActivation,
    ResnetBlock,
    SmallAttention,
    SqueezeExcite,
    conv_bn_relu,
)

MakeInputs = Callable[[int], Any]


@dataclass(frozen=True)
class Specimen:
    """A network of the zoo, and how to make inputs for it at a batch size."""

    build: Callable[[], nn.Module]
    inputs: MakeInputs


ZOO: dict[str, Specimen] = {}
Build = Callable[[], nn.Module]


def _random(*shape: int, seed: int = 3) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def image(channels: int = 3, height: int = 16, width: int = 16) -> MakeInputs:
    return lambda batch: _random(batch, channels, height, width)


def specimen(name: str, inputs: MakeInputs | None = None) -> Callable[[Build], Build]:
    def register(build: Build) -> Build:
        ZOO[name] = Specimen(build, inputs or image())
        return build

    return register


def build(name: str) -> nn.Module:
    """The network with seeded weights, and norms that are not the identity."""
    torch.manual_seed(11)
    model = ZOO[name].build()
    for module in model.modules():
        if isinstance(module, (nn.BatchNorm1d, nn.BatchNorm2d, nn.GroupNorm, nn.LayerNorm)):
            nn.init.uniform_(module.weight, 0.5, 1.5)
            nn.init.normal_(module.bias, std=0.2)
        if isinstance(module, (nn.BatchNorm1d, nn.BatchNorm2d)) and module.running_mean is not None:
            assert module.running_var is not None
            nn.init.normal_(module.running_mean, std=0.2)
            nn.init.uniform_(module.running_var, 0.5, 1.5)
    return model


@cache
def traced(name: str) -> Trace:
    """The trace of a zoo network; shared, so nothing may change it."""
    return trace(build(name), ZOO[name].inputs(2))


# -- plain networks


def conv(ins: int, outs: int, kernel: int = 3, stride: int = 1, **more: Any) -> nn.Conv2d:
    return nn.Conv2d(ins, outs, kernel, stride, kernel // 2, **more)


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


# -- what train mode alone does


class DropPath(nn.Module):
    """Stochastic depth of the user's own making: nothing at all in eval mode."""

    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            return x
        return x * (torch.rand(x.shape[0], 1, 1, 1) < 0.7).to(x.dtype) / 0.7


@specimen("stochastic_depth")
class StochasticDepth(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem, self.c1, self.c2, self.drop_path = conv(3, 4), conv(4, 4), conv(4, 4), DropPath()

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        return F.relu(x + self.drop_path(self.c2(F.relu(self.c1(x)))))


@specimen("functional_dropout")
class FunctionalDropout(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.head = conv(3, 4), conv(4, 4), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = F.dropout2d(F.relu(self.first(x)), 0.4, self.training)
        x = F.relu(self.second(x)).mean((2, 3))
        return self.head(F.dropout(x, 0.5, training=self.training))  # type: ignore[no-any-return]


@specimen("norms_of_every_kind")
class Norms(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c, self.d = conv(3, 4), conv(4, 4), conv(4, 4), conv(4, 4)
        self.slow = nn.BatchNorm2d(4, eps=1e-3, momentum=None)
        self.instance = nn.InstanceNorm2d(4, affine=True)
        self.group = nn.GroupNorm(2, 4)
        self.batch_statistics = nn.BatchNorm2d(4, track_running_stats=False)
        self.slope = nn.PReLU(4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.slope(self.slow(self.a(x)))
        x = F.gelu(self.instance(self.b(x)))
        x = F.leaky_relu(self.group(self.c(x)), 0.2)
        return F.hardswish(self.batch_statistics(self.d(x)))


# -- inputs and outputs of every shape


class Pair(NamedTuple):
    logits: Tensor
    features: Tensor


@dataclass
class Detection:
    boxes: Tensor
    scores: Tensor


torch.export.register_dataclass(Detection, serialized_type_name="zoo.Detection")


class Outputs(nn.Module):
    """Hands its two results out as `form` arranges them."""

    def __init__(self, form: Callable[[Tensor, Tensor], Any]) -> None:
        super().__init__()
        self.first, self.second, self.form = conv(3, 4), conv(4, 4), form

    def forward(self, x: Tensor) -> Any:
        x = F.relu(self.first(x))
        return self.form(x, self.second(x))


def _as_dict(a: Tensor, b: Tensor) -> dict[str, Any]:
    return {"out": b, "nested": [a, {"mean": b.mean((2, 3))}]}


specimen("dict_output")(partial(Outputs, _as_dict))
specimen("namedtuple_output")(partial(Outputs, Pair))
specimen("dataclass_output")(partial(Outputs, Detection))


class TwoInputs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.left, self.right, self.both = conv(3, 4), conv(2, 4), conv(4, 4)

    def forward(self, image: Tensor, depth: Tensor, scale: float = 1.0) -> Tensor:
        return self.both(F.relu(self.left(image) + scale * self.right(depth)))  # type: ignore[no-any-return]


def _two(batch: int) -> tuple[Tensor, Tensor]:
    return _random(batch, 3, 16, 16), _random(batch, 2, 16, 16, seed=4)


specimen("two_inputs", _two)(TwoInputs)
specimen("inputs_by_name", lambda batch: dict(zip(("depth", "image"), reversed(_two(batch)), strict=True)))(TwoInputs)


@specimen("nested_inputs", lambda batch: {"batch": {"image": _two(batch)[0], "depth": _two(batch)[1]}})
class NestedInputs(TwoInputs):
    def forward(self, batch: dict[str, Tensor]) -> Tensor:  # type: ignore[override]
        return super().forward(batch["image"], batch["depth"])


# -- branches


@specimen("concat_branches")
class ConcatBranches(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem, self.point = conv(3, 4), conv(4, 4, 1)
        self.deep1, self.deep2, self.deep3 = conv(4, 4, 1), conv(4, 4), conv(4, 4)
        self.pooled, self.after = conv(4, 4, 1), conv(12, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.stem(x))
        deep = F.relu(self.deep3(F.relu(self.deep2(F.relu(self.deep1(x))))))
        pooled = F.relu(self.pooled(F.avg_pool2d(x, 3, 1, 1)))
        return self.after(torch.cat([F.relu(self.point(x)), deep, pooled], 1))  # type: ignore[no-any-return]


@specimen("auxiliary_head")
class AuxiliaryHead(nn.Module):
    """A second result in train mode only, from a head that eval mode never calls."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.aux, self.body, self.head = conv(3, 4), AuxiliaryBranch(), conv(4, 4), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Any:
        x = F.relu(self.stem(x))
        extra = self.aux(x) if self.training else None
        out = self.head(F.relu(self.body(x)).mean((2, 3)))
        return (out, extra) if self.training else out


class AuxiliaryBranch(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.bn, self.drop, self.fc = conv(4, 4), nn.BatchNorm2d(4), nn.Dropout(0.5), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.drop(self.bn(self.conv(x))).mean((2, 3)))  # type: ignore[no-any-return]


# -- U-Nets


def _noisy(channels: int) -> MakeInputs:
    return lambda batch: (_random(batch, channels, 16, 16), torch.arange(batch) * 100 + 10)


@specimen("time_shifted_block", _noisy(8))
class TimeShiftedBlock(ResnetBlock):
    def __init__(self) -> None:
        super().__init__(8, 8)


@specimen("time_shifted_block_conv_shortcut", _noisy(8))
class TimeShiftedBlockConvShortcut(ResnetBlock):
    def __init__(self) -> None:
        super().__init__(8, 12)


@specimen("unet", _noisy(3))
class UNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem, self.down1, self.shrink = conv(3, 8), ResnetBlock(8, 8), conv(8, 8, stride=2)
        self.mid, self.attention = ResnetBlock(8, 12), SmallAttention(12)
        self.enlarge, self.up1 = conv(12, 8), ResnetBlock(16, 8)
        self.norm, self.out = nn.GroupNorm(4, 8), conv(8, 3)

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        x = self.stem(x)
        skip = self.down1(x, time)
        x = self.attention(self.mid(self.shrink(skip), time))
        x = self.enlarge(F.interpolate(x, scale_factor=2.0, mode="nearest"))
        x = self.up1(torch.cat([x, skip], 1), time)
        return self.out(F.silu(self.norm(x)))  # type: ignore[no-any-return]
