"""Knapsack: for each merged geometry that a range can reach, the convs to keep.

In: the items of a range in data-path order. Out: geometry -> the kept set with the largest sum of L1 norms (paper eq. 3).
Cost: O(items x geometries), never a walk over subsets.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from layermerge.conv import ConvSpec, compose, parallel
from layermerge.planning.ranges import PathWalk
from layermerge.planning.rules import Rules, emptied, in_series, side_by_side
from layermerge.tracing.operators import Role
from layermerge.tracing.structure import BlockStep, ConvStep, DataPath, OpStep, Structure

_compose = lru_cache(maxsize=None)(compose)
_in_series = lru_cache(maxsize=None)(in_series)


@dataclass(frozen=True, slots=True)
class Choice:
    """A kept set, as bits over the layers."""

    l1: float
    count: int
    kept: int

    def __gt__(self, other: Choice) -> bool:
        """What we prefer: more L1, then more convs, then earlier ones."""
        return (self.l1, self.count, -self.kept) > (other.l1, other.count, -other.kept)

    def plus(self, other: Choice) -> Choice:
        return Choice(self.l1 + other.l1, self.count + other.count, self.kept | other.kept)


NOTHING = Choice(0.0, 0, 0)

State = tuple[ConvSpec, bool]
"""A reached geometry, and whether any conv is kept (a kept 1x1 depthwise conv looks like the identity)."""
Options = dict[State, Choice]


@dataclass(frozen=True)
class Refusal:
    """Why nothing legal is left."""

    reason: str


class Knapsack:
    """Extends a range item by item, keeping the best choice for each geometry."""

    def __init__(self, structure: Structure, rules: Rules) -> None:
        self.structure = structure
        self.rules = rules
        self._block_options: dict[int, Options | Refusal] = {}

    def start(self, channels: int) -> Options:
        return {(ConvSpec.identity(channels), False): NOTHING}

    def extend(self, options: Options, before: tuple[OpStep, ...], item: ConvStep | BlockStep) -> Options | Refusal:
        """What the range reaches with one item more, or the rule that leaves nothing."""
        choices = self._conv_options(item.layer) if isinstance(item, ConvStep) else self.block_options(item.block)
        if isinstance(choices, Refusal):
            return choices
        extended: Options = {}
        refusal = ""
        for (spec, any_kept), choice in options.items():
            for op in before:
                if op.role is Role.PAD:
                    assert op.shape is not None
                    spec = _compose(spec, ConvSpec.identity(op.shape[0]).padded(op.pad))
            for (added, adds), addition in choices.items():
                merged = _compose(spec, added)
                if not adds:
                    self._offer(extended, (merged, any_kept), choice)
                    continue
                reason = _in_series(spec, added) if any_kept else None
                reason = reason or (self.rules.too_large(merged) if any_kept or addition.count > 1 else None)
                if reason:
                    refusal = reason
                else:
                    self._offer(extended, (merged, True), choice.plus(addition))
        return extended or Refusal(refusal)

    @staticmethod
    def offers(options: Options) -> Options | Refusal:
        """With which of the geometries a range may end that need not go further."""
        refusals = {state: emptied(state[0]) for state in options if not state[1]}
        offers = {state: choice for state, choice in options.items() if not refusals.get(state)}
        return offers or Refusal(next(filter(None, refusals.values())))

    @staticmethod
    def _offer(options: Options, state: State, choice: Choice) -> None:
        known = options.get(state)
        if known is None or choice > known:
            options[state] = choice

    def _conv_options(self, index: int) -> Options:
        layer = self.structure.layers[index]
        options: Options = {(layer.spec, True): Choice(layer.l1, 1, 1 << index)}
        if not layer.irreducible:
            options[ConvSpec.identity(layer.spec.in_channels), False] = NOTHING
        return options

    def block_options(self, index: int) -> Options | Refusal:
        """A whole block as one item: its body alongside its shortcut, or the shortcut alone where the body is emptied."""
        if index not in self._block_options:
            block = self.structure.blocks[index]
            body, bypass = (self._path_options(branch, block.channels) for branch in (block.body, block.bypass))
            if isinstance(body, Refusal) or isinstance(bypass, Refusal):
                self._block_options[index] = body if isinstance(body, Refusal) else bypass
            else:
                self._block_options[index] = self._side_by_side(body, bypass)
        return self._block_options[index]

    def _side_by_side(self, bodies: Options, bypasses: Options) -> Options | Refusal:
        options: Options = {}
        refusal = ""
        for (body, body_kept), inside in bodies.items():
            for (bypass, bypass_kept), beside in bypasses.items():
                if not body_kept:
                    self._offer(options, (bypass, bypass_kept), beside)
                elif reason := side_by_side(body, bypass):
                    refusal = reason
                else:
                    self._offer(options, (parallel(body, bypass), True), inside.plus(beside))
        return options or Refusal(refusal)

    def _path_options(self, path: DataPath, channels: int) -> Options | Refusal:
        walk = PathWalk.of(path)
        options: Options | Refusal = self.start(channels)
        for before, item in zip(walk.before, walk.items, strict=True):
            if isinstance(options, Refusal):
                break
            options = self.extend(options, before, item)
        return options
