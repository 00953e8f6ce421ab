"""The synthetic zoo, second part: train mode, inputs and outputs of every shape, branches, U-Nets."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from observed import MakeInputs
from zoo_blocks import ResnetBlock, SmallAttention
from zoo_registry import conv, random_tensor, specimen

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
    return random_tensor(batch, 3, 16, 16), random_tensor(batch, 2, 16, 16, seed=4)


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
    return lambda batch: (random_tensor(batch, channels, 16, 16), torch.arange(batch) * 100 + 10)


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
