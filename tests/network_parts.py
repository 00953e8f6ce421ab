"""Series-parallel networks as plain data: what the random generator draws, and what modules and oracle are built from.

Nothing here knows how layermerge reads a network.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

Pair = tuple[int, int]
Sides = tuple[int, int, int, int]
"""Padding as (top, bottom, left, right)."""
NO_SIDES: Sides = (0, 0, 0, 0)
Shape = tuple[int, int, int]
"""Channels, height, width."""


@dataclass(frozen=True)
class Conv:
    """A convolution: padding by the module itself (or 'same'), and zeros put around the map by hand before it."""

    name: str
    ins: int
    outs: int
    kernel: Pair
    stride: Pair = (1, 1)
    dilation: Pair = (1, 1)
    groups: int = 1
    bias: bool = True
    own: Pair | str = (0, 0)
    by_hand: Sides = NO_SIDES

    @property
    def spread(self) -> Pair:
        """How many pixels beyond the first its taps reach."""
        return (self.kernel[0] - 1) * self.dilation[0], (self.kernel[1] - 1) * self.dilation[1]

    @property
    def padding(self) -> Sides:
        """All of it; of 'same' the odd pixel comes last."""
        if isinstance(self.own, str):
            tall, wide = self.spread
            own = (tall // 2, tall - tall // 2, wide // 2, wide - wide // 2)
        else:
            own = (self.own[0], self.own[0], self.own[1], self.own[1])
        top, bottom, left, right = (a + b for a, b in zip(own, self.by_hand, strict=True))
        return top, bottom, left, right

    def output(self, shape: Shape) -> Shape:
        top, bottom, left, right = self.padding
        height = (shape[1] + top + bottom - self.spread[0] - 1) // self.stride[0] + 1
        width = (shape[2] + left + right - self.spread[1] - 1) // self.stride[1] + 1
        return self.outs, height, width


@dataclass(frozen=True)
class Norm:
    """BatchNorm with running statistics."""

    name: str
    channels: int
    eps: float
    affine: bool = True


@dataclass(frozen=True)
class Constant:
    """A map and a tensor that no input changes: `mul`, `div`, `add` or `sub`; one value, or one a channel."""

    name: str
    operator: str
    channels: int
    buffer: bool = False


@dataclass(frozen=True)
class Number:
    """A map and a plain number: `mul`, `div`, `add`, `sub`, `rsub` or `neg`."""

    operator: str
    value: float


@dataclass(frozen=True)
class StatNorm:
    """A norm whose statistics come from the map itself: `group`, `instance`, `batch` or `layer`."""

    name: str
    kind: str
    shape: Shape
    groups: int = 1
    affine: bool = True


@dataclass(frozen=True)
class Activation:
    """A module where it has a name (several may share it), otherwise a function or a formula."""

    kind: str
    name: str | None = None
    channels: int = 1
    """Of a PReLU: how many weights it has."""


@dataclass(frozen=True)
class Dropout:
    name: str


@dataclass(frozen=True)
class Pad:
    """Zeros around a map that something else than a conv reads first."""

    sides: Sides


@dataclass(frozen=True)
class Shift:
    """One value per channel, computed from the network's second input, is added."""

    name: str
    channels: int


@dataclass(frozen=True)
class Barrier:
    """What no range crosses: `max_pool`, `avg_pool`, `upsample`, `reflect`, `cumsum`."""

    kind: str


@dataclass(frozen=True)
class Twice:
    """A conv that is called two times in a row, an activation between."""

    conv: Conv


@dataclass(frozen=True)
class Gate:
    """A map times a path of its mean over height and width."""

    path: Path


@dataclass(frozen=True)
class Concat:
    """Paths that read the same map, one after the other along the channels."""

    branches: tuple[Path, ...]


@dataclass(frozen=True)
class Sum:
    """Two paths that read the same map, added: first + second."""

    first: Path
    second: Path


@dataclass(frozen=True)
class Tap:
    """The map here is one of the network's outputs too."""


Part = (
    Conv
    | Norm
    | Constant
    | Number
    | StatNorm
    | Activation
    | Dropout
    | Pad
    | Shift
    | Barrier
    | Twice
    | Gate
    | Concat
    | Sum
    | Tap
)
Path = tuple[Part, ...]


@dataclass(frozen=True)
class Network:
    """A path on an image of this shape; its weights are drawn with this seed."""

    path: Path
    shape: Shape
    seed: int


def inner_paths(part: Part) -> tuple[Path, ...]:
    """The paths that a part is made of."""
    match part:
        case Gate(path):
            return (path,)
        case Concat(branches):
            return branches
        case Sum(first, second):
            return first, second
        case _:
            return ()


def every_part(path: Path) -> Iterator[Part]:
    """All parts, those inside others included."""
    for part in path:
        yield part
        for inner in inner_paths(part):
            yield from every_part(inner)


def convs(path: Path) -> list[Conv]:
    """All convs that are called once."""
    return [part for part in every_part(path) if isinstance(part, Conv)]
