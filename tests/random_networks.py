"""Random series-parallel networks: everything that a path, a residual block or a branch may hold, in random geometry."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from math import gcd
from typing import TypeVar

from network_parts import (
    NO_SIDES,
    Activation,
    Barrier,
    Concat,
    Constant,
    Conv,
    Dropout,
    Gate,
    Network,
    Norm,
    Number,
    Pad,
    Pair,
    Part,
    Path,
    Shape,
    Shift,
    Sides,
    StatNorm,
    Sum,
    Tap,
    Twice,
    convs,
)

_T = TypeVar("_T")

_KERNELS = ((3, 3), (1, 1), (2, 2), (3, 1), (1, 3), (2, 3), (5, 1), (4, 4))
_MODULES = ("relu", "silu", "relu6", "hardswish", "leaky_relu", "gelu", "tanh", "elu")
_FORMULAS = ("relu", "tanh", "swish by hand", "softsign by hand", "hardswish by hand", "clamp", "abs")


def random_network(rng: random.Random, most_convs: int = 9) -> Network:
    """A network that runs: shapes are followed while it is drawn."""
    return _Drawing(rng, most_convs).network()


class _Drawing:
    def __init__(self, rng: random.Random, most_convs: int) -> None:
        self.rng = rng
        self.left = most_convs
        self.names = 0
        self.shared: list[str] = []

    def _likely(self, share: float) -> bool:
        return self.rng.randint(0, 99) >= 100 - round(100 * share)  # shrinks towards no

    def _one(self, choices: Sequence[_T]) -> _T:
        return self.rng.choice(choices)

    def _name(self, kind: str) -> str:
        self.names += 1
        return f"{kind}{self.names}"

    def network(self) -> Network:
        shape = image = (self._one((3, 2, 4)), self._one((8, 7, 9)), self._one((8, 6, 9)))
        path: list[Part] = []
        for _ in range(self.rng.randint(1, 4)):
            parts, shape = self._stretch(shape)
            path += parts
            if self._likely(0.1) and path and not isinstance(path[-1], (Pad, Tap)):
                path.append(Tap())
        if not convs(tuple(path)):
            path += self._unit(shape, shape[0])
        return Network(tuple(path), image, self.rng.randint(0, 9999))

    def _stretch(self, shape: Shape) -> tuple[Path, Shape]:
        """Some parts of the outermost path: they may change the shape."""
        kinds = ["unit", "sum", "unit", "sum", "odd", "concat", "strided sum", "barrier", "gate", "twice", "padded"]
        kind = self._one(kinds) if self.left > 0 else "barrier"
        match kind:
            case "sum":
                return self._sum(shape, depth=0), shape
            case "strided sum":
                return self._strided_sum(shape)
            case "concat":
                return self._concat(shape, depth=0)
            case "barrier":
                return self._barrier(shape)
            case "gate":
                return (self._gate(shape),), shape
            case "twice":
                return (Twice(self._conv(shape, shape[0])),), shape
            case "odd":
                return self._odd(shape)
            case "padded":
                top, right = self.rng.randint(0, 1), self.rng.randint(0, 2)
                lead: Path = (Pad((top, 1, 0, right)), self._norm(shape[0]))
                parts = (*lead, *self._unit(_after(lead, shape), shape[0]))
                return parts, _after(parts, shape)
            case _:
                unit = self._unit(shape, self._channels(shape[0]))
                return unit, _after(unit, shape)

    # -- convs

    def _channels(self, channels: int) -> int:
        return self._one((channels, channels, 4, 6, 2, 3))

    def _groups(self, ins: int, outs: int) -> int:
        common = gcd(ins, outs)
        return self._one([1, 1, 1, *(groups for groups in range(2, common + 1) if common % groups == 0), common])

    def _conv(self, shape: Shape, outs: int, stride: Pair = (1, 1)) -> Conv:
        """A conv whose output is as large as its input, or as many times smaller as it strides."""
        self.left -= 1
        kernel = self._one(_KERNELS)
        dilation = self._one(((1, 1), (2, 2), (2, 1))) if self._likely(0.15) else (1, 1)
        conv = Conv(
            self._name("conv"),
            shape[0],
            outs,
            kernel,
            stride,
            dilation,
            self._groups(shape[0], outs),
            bias=self._likely(0.6),
        )
        sides: list[int] = []
        for size, spread, step in zip(shape[1:], conv.spread, stride, strict=True):
            total = max(0, (-(-size // step) - 1) * step + spread + 1 - size)
            front = self.rng.randint(0, total) if self._likely(0.3) else total // 2
            sides += [front, total - front]
        return self._padded(conv, (sides[0], sides[1], sides[2], sides[3]))

    def _padded(self, conv: Conv, sides: Sides) -> Conv:
        """The conv with this padding, in one of the ways to write it."""
        if conv.stride == (1, 1) and self._likely(0.2) and replace(conv, own="same").padding == sides:
            return replace(conv, own="same", by_hand=NO_SIDES)
        top, bottom, left, right = sides
        own = (min(top, bottom), min(left, right)) if self._likely(0.8) else (0, 0)
        by_hand = (top - own[0], bottom - own[0], left - own[1], right - own[1])
        return replace(conv, own=own, by_hand=by_hand)

    def _unit(self, shape: Shape, outs: int, stride: Pair = (1, 1)) -> Path:
        """A conv with what stands around convs."""
        before: list[Part] = []
        if self._likely(0.12):
            before.append(self._norm(shape[0]))
        conv = self._conv(shape, outs, stride)
        if self._likely(0.08) and any(conv.padding):
            before, conv = self._padded_earlier(shape, conv)
        behind: list[Part] = []
        shape = _after((*before, conv), shape)
        if self._likely(0.5):
            behind.append(self._norm(outs))
        if self._likely(0.08):
            behind.append(self._norm(outs))
        if self._likely(0.1):
            behind.append(self._number())
        if self._likely(0.07):
            behind.append(Shift(self._name("shift"), outs))
        if self._likely(0.1):
            behind.append(self._stat_norm(shape))
        if self._likely(0.6):
            behind.append(self._activation(outs))
        if self._likely(0.12):
            behind.append(Dropout(self._name("drop")))
        return (*before, conv, *behind)

    def _padded_earlier(self, shape: Shape, conv: Conv) -> tuple[list[Part], Conv]:
        """The conv's padding stands before a norm or an activation that stands before it."""
        top, bottom, left, right = conv.padding
        sides = (self.rng.randint(0, top), bottom, left, self.rng.randint(0, right))
        if not any(sides):
            return [], conv
        rest = (top - sides[0], 0, 0, right - sides[3])
        between = self._norm(shape[0]) if self._likely(0.5) else self._activation(shape[0])
        return [Pad(sides), between], self._padded(conv, rest)

    def _odd(self, shape: Shape) -> tuple[Path, Shape]:
        """A conv that pads too little or too much, and strides as it likes."""
        conv = self._conv(shape, self._channels(shape[0]), self._one(((1, 1), (2, 2), (1, 2), (3, 2))))
        top, bottom, left, right = (max(0, side + self.rng.randint(-1, 1)) for side in conv.padding)
        changed = self._padded(conv, (top, bottom, left, right))
        if min(changed.output(shape)[1:]) < 3:
            changed = conv
        parts: Path = (changed, self._activation(changed.outs)) if self._likely(0.6) else (changed,)
        return parts, changed.output(shape)

    # -- what stands between convs

    def _norm(self, channels: int) -> Part:
        if self._likely(0.2):
            count = channels if self._likely(0.7) else 1
            operator = self._one(("mul", "add", "div", "sub"))
            return Constant(self._name("constant"), operator, count, buffer=self._likely(0.4))
        eps = self._one((1e-5, 1e-3, 0.3))
        return Norm(self._name("norm"), channels, eps, affine=not self._likely(0.15))

    def _number(self) -> Number:
        operator = self._one(("mul", "add", "div", "sub", "rsub", "neg"))
        return Number(operator, 0.0 if operator == "neg" else self._one((0.7, 1.0, 1.5, -0.6)))

    def _stat_norm(self, shape: Shape) -> Part:
        if shape[1] * shape[2] < 4:
            return self._norm(shape[0])
        kind = self._one(("group", "instance", "batch", "layer"))
        groups = self._one([groups for groups in range(1, shape[0] + 1) if shape[0] % groups == 0])
        return StatNorm(self._name("stat"), kind, shape, groups, affine=not self._likely(0.3))

    def _activation(self, channels: int) -> Activation:
        if self._likely(0.3):
            return Activation(self._one(_FORMULAS))
        if self._likely(0.1):
            return Activation("prelu", self._name("prelu"), channels)
        if self.shared and self._likely(0.3):
            name = self._one(self.shared)
            return Activation(name.rstrip("0123456789"), name)
        kind = self._one(_MODULES)
        name = f"{kind}{self.names}"
        self.names += 1
        if not kind[-1].isdigit():
            self.shared.append(name)
        return Activation(kind, name)

    # -- branches

    def _body(self, shape: Shape, outs: int, depth: int, stride: Pair = (1, 1)) -> Path:
        """Any path to `outs` channels; nothing but a stride changes its size."""
        parts: list[Part] = []
        if self._likely(0.15):
            parts.append(self._norm(shape[0]))
        if self._likely(0.15):
            parts.append(self._activation(shape[0]))
        count = self.rng.randint(1, 3)
        strided = self.rng.randint(0, count - 1)
        for place in range(count):
            channels = outs if place == count - 1 else self._channels(shape[0])
            unit = self._unit(shape, channels, stride if place == strided else (1, 1))
            parts += unit
            shape = _after(unit, shape)
            if depth < 2 and self.left > 0 and self._likely(0.25):
                parts += self._inside(shape, depth)
        if self._likely(0.6) and isinstance(parts[-1], Activation):
            parts.pop()  # the activation stands behind the add
        if self._likely(0.07) and not isinstance(parts[-1], Activation):
            parts.append(Number("mul", 0.5))
        if self._likely(0.15):
            parts.append(Dropout(self._name("drop")))
        return self._with_padding_moved(tuple(parts)) if stride == (1, 1) and self._likely(0.15) else tuple(parts)

    def _inside(self, shape: Shape, depth: int) -> Path:
        """What a body may hold beside convs; none of it changes the shape."""
        kind = self._one(("sum", "gate", "sum", "tap", "concat", "barrier"))
        match kind:
            case "sum":
                return self._sum(shape, depth + 1)
            case "gate":
                return (self._gate(shape),)
            case "concat":
                parts, wide = self._concat(shape, depth + 1)
                return (*parts, *self._unit(wide, shape[0]))
            case "tap":
                return (Tap(),)
            case _:
                return (Barrier(self._one(("avg_pool", "cumsum"))),)

    def _with_padding_moved(self, path: Path) -> Path:
        """A pixel of padding taken from one conv of the path and given to a later one."""
        places = [place for place, part in enumerate(path) if isinstance(part, Conv)]
        plain = all(isinstance(part, (Conv, Norm, Constant, Number, Activation, Dropout, Shift)) for part in path)
        if not plain or len(places) < 2:
            return path
        parts, side = list(path), self.rng.randint(0, 3)
        giver, taker = parts[places[0]], parts[places[-1]]
        assert isinstance(giver, Conv)
        assert isinstance(taker, Conv)
        given, taken = list(giver.padding), list(taker.padding)
        if given[side] == 0:
            return path
        given[side], taken[side] = given[side] - 1, taken[side] + 1
        parts[places[0]] = self._padded(giver, (given[0], given[1], given[2], given[3]))
        parts[places[-1]] = self._padded(taker, (taken[0], taken[1], taken[2], taken[3]))
        return tuple(parts)

    def _sum(self, shape: Shape, depth: int) -> Path:
        body = self._body(shape, shape[0], depth)
        shortcut: Path = ()
        if self._likely(0.45):
            shortcut = self._shortcut(shape, depth)
        return self._added(body, shortcut, shape[0])

    def _shortcut(self, shape: Shape, depth: int) -> Path:
        channels = shape[0]
        kind = self._one(("conv", "norm", "conv", "number", "dropout", "activation", "body", "stat norm"))
        match kind:
            case "norm":
                return (self._norm(channels),)
            case "number":
                return (self._number(),)
            case "dropout":
                return (Dropout(self._name("drop")),)
            case "activation":
                return (self._activation(channels),)
            case "stat norm":
                return (self._stat_norm(shape),)
            case "body":
                return self._body(shape, channels, depth + 1)
            case _:
                return self._plain_conv(shape, channels, (1, 1))

    def _plain_conv(self, shape: Shape, outs: int, stride: Pair) -> Path:
        conv = self._conv(shape, outs, stride)
        return (conv, self._norm(outs)) if self._likely(0.5) else (conv,)

    def _strided_sum(self, shape: Shape) -> tuple[Path, Shape]:
        stride = self._one(((2, 2), (2, 1), (1, 2))) if min(shape[1:]) > 4 else (1, 1)
        outs = self._channels(shape[0])
        body = self._body(shape, outs, 1, stride)
        parts = self._added(body, self._plain_conv(shape, outs, stride), outs)
        return parts, (outs, -(-shape[1] // stride[0]), -(-shape[2] // stride[1]))

    def _added(self, body: Path, shortcut: Path, channels: int) -> Path:
        total = Sum(shortcut, body) if self._likely(0.5) else Sum(body, shortcut)
        behind: list[Part] = []
        if self._likely(0.15):
            behind.append(self._norm(channels))
        if self._likely(0.5):
            behind.append(self._activation(channels))
        return (total, *behind)

    def _concat(self, shape: Shape, depth: int) -> tuple[Path, Shape]:
        branches: list[Path] = []
        for _ in range(2):
            branches.append(self._body(shape, self._one((2, shape[0])), depth + 1) if self._likely(0.8) else ())
        if not any(branches):
            branches[0] = self._unit(shape, 2)
        wide = sum(_after(branch, shape)[0] for branch in branches)
        return (Concat(tuple(branches)),), (wide, *shape[1:])

    def _gate(self, shape: Shape) -> Gate:
        channels = shape[0]
        if self._likely(0.4):
            return Gate((Activation("sigmoid"),))
        narrow = self._one((2, channels))
        self.left -= 2
        reduce = Conv(self._name("conv"), channels, narrow, (1, 1))
        grow = Conv(self._name("conv"), narrow, channels, (1, 1))
        return Gate((reduce, self._activation(narrow), grow, Activation("sigmoid")))

    def _barrier(self, shape: Shape) -> tuple[Path, Shape]:
        channels, height, width = shape
        kinds = ["avg_pool", "cumsum"]
        kinds += ["max_pool"] if min(height, width) > 3 else []
        kinds += ["upsample"] if max(height, width) < 6 else []
        kind = self._one([*kinds, "reflect"] if self.left > 0 else kinds)
        match kind:
            case "max_pool":
                return (Barrier(kind),), (channels, height - 1, width - 1)
            case "upsample":
                return (Barrier(kind),), (channels, 2 * height, 2 * width)
            case "reflect":
                self.left -= 1
                conv = Conv(self._name("conv"), channels, channels, (3, 3))
                return (Barrier(kind), conv, self._activation(channels)), shape
            case _:
                return (Barrier(kind),), shape


def _after(path: Path, shape: Shape) -> Shape:
    """The shape behind a path; of a sum or a concat only the channels are looked at, as neither changes the size."""
    for part in path:
        match part:
            case Conv():
                shape = part.output(shape)
            case Pad((top, bottom, left, right)):
                shape = (shape[0], shape[1] + top + bottom, shape[2] + left + right)
            case Concat(branches):
                shape = (sum(_after(branch, shape)[0] for branch in branches), *shape[1:])
            case Sum(first, second):
                shape = _after(first or second, shape)
    return shape
