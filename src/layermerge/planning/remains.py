"""Remains: what is left of a network's paths when only some layers stay, and the one conv that a path then becomes.

Where `knapsack` searches over kept sets, this looks at a single one; a set that breaks a rule is a `PlanError`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from layermerge.conv import ConvSpec, compose, parallel
from layermerge.errors import PlanError
from layermerge.planning.rules import in_series, side_by_side
from layermerge.tracing.operators import Role
from layermerge.tracing.structure import Block, BlockStep, ConvStep, DataPath, OpStep, Structure, SubgraphStep

_KEPT_SUBGRAPH = "no range holds a body that is not a path, unless it drops it"


@dataclass(frozen=True)
class Remains:
    """A structure and the indices of the layers that stay."""

    structure: Structure
    kept: frozenset[int]

    @staticmethod
    def without(structure: Structure, removed: Iterable[int]) -> Remains:
        return Remains(structure, frozenset(range(len(structure.layers))).difference(removed))

    def any_kept(self, path: DataPath) -> bool:
        """Whether a conv of the path stays."""
        return any(index in self.kept for index in self.structure.layers_of(path))

    def is_emptied(self, block: Block) -> bool:
        """Whether no conv of the body stays: then the block is its shortcut, x and not 2x."""
        return not self.any_kept(block.body)

    def branches(self, block: Block) -> list[DataPath]:
        """What is left of a block: both branches, or the shortcut alone."""
        return [block.bypass] if self.is_emptied(block) else [block.body, block.bypass]

    def emptied_blocks(self) -> dict[str, tuple[str, ...]]:
        """The outermost blocks whose body is emptied, by their add: the nodes of that body."""
        found: dict[str, tuple[str, ...]] = {}
        for block in self.structure.blocks:
            nested = any(block.add in nodes for nodes in found.values())
            if not nested and self.is_emptied(block):
                found[block.add] = tuple(self.structure.nodes_of(block.body))
        return found

    def stripped(self, path: DataPath) -> Iterator[str]:
        """The nodes that one conv in place of the path cannot have: activations, padding, removed convs and their norms."""
        dropping = False
        for step in path:
            if isinstance(step, ConvStep):
                layer = self.structure.layers[step.layer]
                dropping = step.layer not in self.kept
                yield from (*layer.pads, layer.node) if dropping else layer.pads
            elif isinstance(step, BlockStep):
                dropping = False
                for branch in self.branches(self.structure.blocks[step.block]):
                    yield from self.stripped(branch)
            elif isinstance(step, SubgraphStep):
                raise AssertionError(_KEPT_SUBGRAPH)
            elif step.role in (Role.ACTIVATION, Role.PAD) or (step.role is Role.NORM and dropping):
                dropping = dropping and step.role is not Role.ACTIVATION
                yield step.node
            elif step.role is not Role.DROPOUT:
                dropping = False

    # -- geometry

    def spec(self, path: DataPath, channels: int) -> ConvSpec:
        """The conv that the path becomes; the identity where none is kept."""
        spec, any_kept = ConvSpec.identity(channels), False
        for step in path:
            if isinstance(step, OpStep):
                if step.role is Role.PAD:
                    spec = compose(spec, ConvSpec.identity(spec.out_channels).padded(step.pad))
                continue
            assert not isinstance(step, SubgraphStep), _KEPT_SUBGRAPH
            added = self._item_spec(step)
            if not self.any_kept((step,)):
                continue
            if any_kept and (reason := in_series(spec, added)):
                raise PlanError(reason)
            spec, any_kept = compose(spec, added), True
        return spec

    def _item_spec(self, item: ConvStep | BlockStep) -> ConvSpec:
        if isinstance(item, BlockStep):
            return self.block_spec(self.structure.blocks[item.block])
        layer = self.structure.layers[item.layer]
        if layer.irreducible and item.layer not in self.kept:
            raise PlanError(f"'{layer.name}' cannot be removed: it changes the shape of its input")
        return layer.spec

    def block_spec(self, block: Block) -> ConvSpec:
        """A whole block as one conv: its body alongside its shortcut; the shortcut alone where the body is emptied."""
        bypass = self.branch_spec(block, block.bypass)
        if self.is_emptied(block):
            return bypass
        body = self.branch_spec(block, block.body)
        if reason := side_by_side(body, bypass):
            raise PlanError(reason)
        return parallel(body, bypass)

    def branch_spec(self, block: Block, branch: DataPath) -> ConvSpec:
        return self.spec(branch, block.channels)
