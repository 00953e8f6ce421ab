"""Regions of a rewritten graph: where each begins and ends, and the one kernel that its modules multiply to."""

from __future__ import annotations

from dataclasses import dataclass

from torch import fx

from layermerge.planning.reading import Reading
from layermerge.planning.remains import Remains
from layermerge.surgery.affines import affine_of
from layermerge.surgery.kernels import Kernel
from layermerge.surgery.rewrite import RewrittenModule
from layermerge.tracing.constants import conv_tensors
from layermerge.tracing.operators import Role
from layermerge.tracing.structure import BlockStep, ConvStep, DataPath, OpStep, SubgraphStep, main_input


@dataclass(frozen=True)
class Site:
    """A region in a graph: the map it reads, its nodes in order (the last is its output), and the shifts that join in it."""

    source: fx.Node
    members: tuple[fx.Node, ...]
    shifts: dict[str, fx.Node]

    @property
    def end(self) -> fx.Node:
        return self.members[-1]


def find_site(graph: fx.Graph, number: int) -> Site:
    """Where region `number` lies in the graph as it is now."""
    members = [node for node in graph.nodes if node.meta.get("region") == number]
    inside, read, shifts = set(members), list[fx.Node](), dict[str, fx.Node]()
    for node in members:
        inputs = [arg for arg in node.args if isinstance(arg, fx.Node)]
        read += inputs if node.meta["role"] is Role.ADD else [main_input(node)]
        if node.meta["role"] is Role.SHIFT:
            shifts[node.name] = next(arg for arg in inputs if arg is not main_input(node))
    outside = {node for node in read if node not in inside}
    assert len(outside) == 1, f"a region reads {len(outside)} feature maps"
    return Site(outside.pop(), tuple(members), shifts)


def merged_name(module: RewrittenModule, region: Reading) -> str:
    """The merged conv takes the name of the last conv kept in the region."""
    structure, kept = module.surgery.structure, module.surgery.kept
    return structure.layers[max(index for index in structure.layers_of(region.steps) if index in kept)].name


def region_kernel(module: RewrittenModule, region: Reading) -> Kernel:
    """What the region's convs, norms, scalars, shifts and shortcuts multiply to, from the weights they have now."""
    return _Multiplier(module).along(region.steps, module.surgery.structure.channels_into(region.steps[0]))


class _Multiplier:
    def __init__(self, module: RewrittenModule) -> None:
        self.module = module
        self.structure = module.surgery.structure
        self.remains = Remains(module.surgery.structure, module.surgery.kept)
        self.alive = {node.name: node for node in module.graph.nodes}

    def along(self, path: DataPath, channels: int) -> Kernel:
        # Operators act on the last item's own kernel, which is smaller than the product so far.
        product = latest = Kernel.identity(channels, self.module.device)
        for step in path:
            if isinstance(step, OpStep):
                latest = self._operator(step, latest)
                continue
            assert not isinstance(step, SubgraphStep), "a region is a path"
            if (item := self._item(step, latest.spec.out_channels)) is not None:
                product, latest = product.then(latest), item
        return product.then(latest)

    def _item(self, step: ConvStep | BlockStep, channels: int) -> Kernel | None:
        if isinstance(step, ConvStep):
            layer = self.structure.layers[step.layer]
            if step.layer not in self.remains.kept:
                return None
            return Kernel.of(*conv_tensors(self.module, self.alive[layer.node]), layer.spec)
        block = self.structure.blocks[step.block]
        bypass = self.along(block.bypass, channels)
        if self.remains.is_emptied(block):
            return bypass
        return self.along(block.body, channels).beside(bypass)

    def _operator(self, step: OpStep, kernel: Kernel) -> Kernel:
        if step.role is Role.PAD:
            return kernel.padded(step.pad)  # its node is gone: padding moved to the range's input
        node = self.alive.get(step.node)
        if node is None:
            return kernel
        if step.role in (Role.NORM, Role.SCALE):
            return kernel.scaled(*(part.expand_as(kernel.bias) for part in affine_of(self.module, node)))
        return kernel.shifted(step.node) if step.role is Role.SHIFT else kernel
