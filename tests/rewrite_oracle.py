"""What a rewritten network must compute, worked out by hand from its description and the rules of the method.

In: a `Network` and which convs each range covers and keeps, by name. Out: a `Program`. Nothing of layermerge's planning and
surgery is used: a range finds its place by names, and each rule is written out once more, in its plainest form.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from network_parts import (
    NO_SIDES,
    Activation,
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
    Shift,
    Sides,
    StatNorm,
    Sum,
    Tap,
    Twice,
    convs,
    every_part,
)
from network_program import Cropped, Joined, Mean, Padded, Program, Valid

_ON_A_CHAIN = (Norm, Constant, Number, StatNorm, Activation, Dropout, Pad, Shift)
_FOLDS_BEHIND = (Norm, Constant, Number, Dropout)
_LIKE_RELU = ("silu", "hardswish", "gelu")
"""What a ReLU may stand in for; formulas written by hand are not known."""


@dataclass(frozen=True)
class Range:
    """Convs that become one: those it covers, in the network's own order, and those that are kept of them."""

    covers: frozenset[str]
    keeps: frozenset[str]
    replaces: str | None = None
    """`activation`: the one behind it is a ReLU; `gate`: what its convs compute is a constant."""

    @property
    def changes_nothing(self) -> bool:
        return len(self.covers) == 1 and self.keeps == self.covers and self.replaces is None


@dataclass(frozen=True)
class Block:
    """A sum that can lose one of its paths: it is then the other one."""

    body: Path
    shortcut: Path
    is_chain: bool


def block_of(part: Sum) -> Block | None:
    """The path with more convs is the body; among equals the one with the larger kernels, then the first.

    The shortcut has one conv at most and no sum of its own. Where a path is not a chain, it is the body if the other is empty.
    """
    paths = (part.first, part.second)
    if any(isinstance(inside, Tap) for path in paths for inside in every_part(path)):
        return None
    if all(_is_chain(path) for path in paths):
        body, shortcut = paths if _weight(paths[0]) >= _weight(paths[1]) else paths[::-1]
        plain = len(convs(shortcut)) <= 1 and not any(isinstance(inside, Sum) for inside in shortcut)
        if convs(body) and plain:
            return Block(body, shortcut, is_chain=True)
    for body, shortcut in (paths, paths[::-1]):
        if not shortcut and convs(body):
            return Block(body, shortcut, is_chain=False)
    return None


def _weight(path: Path) -> Pair:
    found = convs(path)
    return len(found), sum(conv.kernel[0] * conv.kernel[1] for conv in found)


def _is_chain(path: Path) -> bool:
    return all(
        isinstance(part, (Conv, *_ON_A_CHAIN)) or (isinstance(part, Sum) and block_of(part) is not None)
        for part in path
    )


@dataclass(frozen=True)
class _Region:
    """A range that lost an activation: its place among the ranges, and the number of its result."""

    place: int
    end: int
    lost: Activation


def expected(network: Network, ranges: Sequence[Range], *, add_activation: bool = True) -> Program:
    """What the network computes with these ranges applied, which are given in the order of its layers."""
    return _Rewriting(network, ranges).program(add_activation)


class _Rewriting:
    def __init__(self, network: Network, ranges: Sequence[Range]) -> None:
        self.network = network
        self.ranges = [one for one in ranges if not one.changes_nothing]
        self.removed = {name for one in ranges for name in one.covers - one.keeps}
        self.result = Program()
        self.regions: list[_Region] = []
        self.stood_in: set[int] = set()
        """Activations of the network that are a ReLU now, by `id`: two may look alike."""

    def program(self, add_activation: bool) -> Program:
        last = self._along(self.network.path, 0, ())
        self.result.outputs.insert(0, last)
        if add_activation:
            for region in sorted(self.regions, key=lambda one: one.place):
                self._bring_back(region)
        return self.result

    def _bring_back(self, region: _Region) -> None:
        """Behind the add, if that alone reads the range; nowhere, unless a conv would follow without an activation."""
        place, readers = region.end, self.result.readers(region.end)
        if len(readers) == 1 and None not in readers:
            (reader,) = readers
            assert reader is not None
            place = reader if self.result.steps[reader].work == Joined("add") else place
        if self.result.meets_a_conv(place):
            self.result.activated[place] = region.lost

    # -- outside ranges

    def _along(self, path: Path, x: int, behind: Path) -> int:
        """`behind` is what stands behind the path, where its last map goes nowhere else."""
        place = 0
        while place < len(path):
            found = self._range_at(path, place)
            if found is None:
                x, place = self._part(path[place], x, (*path[place + 1 :], *behind)), place + 1
            else:
                one, end = found
                while end < len(path) and isinstance(path[end], _FOLDS_BEHIND):
                    end += 1
                while isinstance(path[end - 1], Dropout):
                    end -= 1
                moves = len(one.covers) > 1 and any(isinstance(part, StatNorm) for part in path[place:end])
                followed = (*path[end:], *behind)
                while end < len(path) and one.keeps and not moves and self._mean_gate(path[end]):
                    end += 1
                x, place = self._range(one, path[place:end], x, followed), end
        return x

    def _mean_gate(self, part: Part) -> Constant | None:
        """What replaces a gate, if one of the ranges does so."""
        if not isinstance(part, Gate):
            return None
        inside = convs(part.path)
        replaced = any(one.replaces == "gate" and one.covers == {conv.name for conv in inside} for one in self.ranges)
        return Constant(f"{inside[-1].name}_mean", "mul", inside[-1].outs, buffer=False) if replaced else None

    def _stands_in(self, followed: Path) -> bool:
        """Whether the activation of the network that stands behind a range is found, which is then a ReLU."""
        for part in followed:
            if isinstance(part, Activation):
                assert part.kind in _LIKE_RELU, "nothing is known to stand in for it"
                self.stood_in.add(id(part))
                return True
            if not isinstance(part, _ON_A_CHAIN):
                break
        return False

    def _part(self, part: Part, x: int, followed: Path) -> int:
        emit = self.result.emit
        if id(part) in self.stood_in:
            return emit(Activation("relu"), x)
        if mean := self._mean_gate(part):
            return emit(mean, x)
        match part:
            case Tap():
                self.result.outputs.append(x)
                return x
            case Dropout():
                return x
            case Pad(sides):
                return emit(Padded(sides), x)
            case Twice(conv):
                return emit(conv, emit(Activation("relu"), emit(conv, x)))
            case Gate(path):
                return emit(Joined("mul"), x, self._along(path, emit(Mean(), x), ()))
            case Concat(branches):
                return emit(Joined("cat"), *(self._along(branch, x, ()) for branch in branches))
            case Sum(first, second):
                block = block_of(part)
                if block and self._is_emptied(block):
                    return self._along(block.shortcut, x, ())
                behind = [followed if block and path is block.body else () for path in (first, second)]
                return emit(Joined("add"), self._along(first, x, behind[0]), self._along(second, x, behind[1]))
            case _:
                return emit(part, x)

    def _is_emptied(self, block: Block) -> bool:
        return all(conv.name in self.removed for conv in convs(block.body))

    def _range_at(self, path: Path, place: int) -> tuple[Range, int] | None:
        """The range that begins with this part of the path, and where it ends."""
        for one in self.ranges:
            covered: set[str] = set()
            for end in range(place, len(path)):
                part = path[end]
                block = block_of(part) if isinstance(part, Sum) else None
                if not isinstance(part, (Conv, *_ON_A_CHAIN)) and block is None:
                    break
                if end == place and isinstance(part, _ON_A_CHAIN):
                    break
                if isinstance(part, _ON_A_CHAIN):
                    continue
                covered |= {conv.name for conv in convs((part,))}
                if not covered <= one.covers:
                    break
                if covered == one.covers and self._lies_here(one, path[place : end + 1]):
                    return one, end + 1
        return None

    def _lies_here(self, one: Range, parts: Path) -> bool:
        """Whether these parts as a whole are the range; otherwise it lies inside the one block that they are."""
        block = block_of(parts[0]) if isinstance(parts[0], Sum) else None
        if block is None or len(parts) > 1:
            return True
        if convs(block.shortcut):
            return True
        if not one.keeps or len(one.covers) == 1:
            return False  # an emptied block is its shortcut, wherever the range is said to lie
        return self._can_be_fused(block) and _lead(block.body) is None

    def _can_be_fused(self, block: Block) -> bool:
        allowed = (Conv, Norm, Constant, Number, Dropout)
        if not block.is_chain or not all(isinstance(part, allowed) for part in block.shortcut):
            return False
        inner = [block_of(part) for part in block.body if isinstance(part, Sum)]
        if any(isinstance(part, StatNorm) for part in block.body):
            return False
        return all(one and self._can_be_fused(one) for one in inner) and self._lines_up(block)

    def _lines_up(self, block: Block) -> bool:
        """Where one path has gaps between its taps, the other's must fall on them."""
        if self._is_emptied(block):
            return True
        fronts = [self._padding(path)[0] for path in (block.body, block.shortcut)]
        for axis in (0, 1):
            steps = {
                conv.dilation[axis]
                for conv in convs((*block.body, *block.shortcut))
                if conv.name not in self.removed and conv.kernel[axis] > 1
            }
            apart = fronts[0][2 * axis] - fronts[1][2 * axis]
            if steps - {1} and (len(steps) > 1 or apart % max(steps)):
                return False
        return True

    # -- inside a range

    def _range(self, one: Range, parts: Path, x: int, followed: Path) -> int:
        norms = [part for part in parts if isinstance(part, StatNorm)]
        if not one.keeps:
            x, _ = self._straight(parts, x, in_place=norms[-1:])
            return x
        sides, _ = self._padding(parts)
        x, lost = self._straight(parts, self._padded(sides, x))
        for norm in norms[-1:]:
            x = self.result.emit(norm, x)
        chain = tuple(part for part in parts if not isinstance(part, Gate))
        fits = lost is not None and lost.channels in (1, _channels_behind(chain))
        if one.replaces and not self._stands_in(followed):
            assert lost is not None
            assert lost.kind in _LIKE_RELU
            lost = Activation("relu")
        if lost and fits:
            self.regions.append(_Region(self.ranges.index(one), x, lost))
        return x

    def _padded(self, sides: Sides, x: int) -> int:
        return x if sides == NO_SIDES else self.result.emit(Padded(sides), x)

    def _straight(self, parts: Path, x: int, in_place: Iterable[StatNorm] = ()) -> tuple[int, Activation | None]:
        """The parts without padding, activations, removed convs and their norms; and the last activation that went."""
        lost: Activation | None = None
        conv_is_gone = False
        for part in parts:
            match part:
                case Activation():
                    lost, conv_is_gone = part, False
                case Pad() | Dropout():
                    pass
                case Gate():
                    mean = self._mean_gate(part)
                    assert mean is not None
                    x, conv_is_gone = self.result.emit(mean, x), False
                case Norm() | Constant() if conv_is_gone:
                    pass
                case StatNorm() if part not in in_place:
                    conv_is_gone = False
                case Conv(name) if name in self.removed:
                    conv_is_gone = True
                case Conv():
                    x, conv_is_gone = self.result.emit(Valid(part), x), False
                case Sum():
                    conv_is_gone = False
                    x, inside = self._block(part, x)
                    lost = inside or lost
                case _:
                    x, conv_is_gone = self.result.emit(part, x), False
        return x, lost

    def _block(self, part: Sum, x: int) -> tuple[int, Activation | None]:
        block = block_of(part)
        assert block is not None
        if self._is_emptied(block):
            return self._straight(block.shortcut, x)
        whole, _ = self._padding((part,))
        ends: list[int] = []
        lost: Activation | None = None
        for path in (block.body, block.shortcut):
            own, _ = self._padding(path)
            crop = tuple(total - part for total, part in zip(whole, own, strict=True))
            start = self.result.emit(Cropped(crop), x) if any(crop) else x  # type: ignore[arg-type]
            end, inside = self._straight(path, start)
            ends.append(end)
            lost = inside or lost
        return self.result.emit(Joined("add"), *ends), lost

    def _padding(self, parts: Path) -> tuple[Sides, Pair]:
        """What has to be around the input so that nothing inside pads; and by how much the parts stride."""
        (top, bottom, left, right), (down, along) = NO_SIDES, (1, 1)
        for part in parts:
            sides, steps = self._padding_of(part)
            top, bottom = top + sides[0] * down, bottom + sides[1] * down
            left, right = left + sides[2] * along, right + sides[3] * along
            down, along = down * steps[0], along * steps[1]
        return (top, bottom, left, right), (down, along)

    def _padding_of(self, part: Part) -> tuple[Sides, Pair]:
        if isinstance(part, Conv):
            return (NO_SIDES, (1, 1)) if part.name in self.removed else (part.padding, part.stride)
        if isinstance(part, Pad):
            return part.sides, (1, 1)
        if isinstance(part, Sum) and (block := block_of(part)):
            if self._is_emptied(block):
                return self._padding(block.shortcut)
            (own, steps), (other, _) = self._padding(block.body), self._padding(block.shortcut)
            top, bottom, left, right = (max(pair) for pair in zip(own, other, strict=True))
            return (top, bottom, left, right), steps
        return NO_SIDES, (1, 1)


def _channels_behind(parts: Path) -> int:
    """Of what the last conv yields: a removed one has as many behind it as before it."""
    last = next(part for part in reversed(parts) if convs((part,)))
    if isinstance(last, Conv):
        return last.outs
    assert isinstance(last, Sum)
    block = block_of(last)
    assert block is not None
    return _channels_behind(block.body)


def _lead(body: Path) -> Part | None:
    """What stands between a fork and the first conv of the body, padding and dropout aside."""
    for part in body:
        if isinstance(part, Conv):
            return None
        if isinstance(part, Sum):
            block = block_of(part)
            return _lead(block.body) if block else None
        if not isinstance(part, (Pad, Dropout)):
            return part
    return None
