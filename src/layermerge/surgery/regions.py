"""Regions of a rewritten network: the one kernel that the modules of each multiply to."""

from __future__ import annotations

from dataclasses import replace

from torch import fx

from layermerge.planning.reading import Reading
from layermerge.planning.remains import Remains
from layermerge.surgery.affines import affine_of
from layermerge.surgery.kernels import Kernel
from layermerge.surgery.rewrite import RewrittenModule
from layermerge.surgery.sites import find_site
from layermerge.tracing.constants import conv_tensors
from layermerge.tracing.operators import Role
from layermerge.tracing.structure import BlockStep, ConvStep, DataPath, OpStep, SubgraphStep


def merged_name(module: RewrittenModule, region: Reading) -> str:
    """The merged conv takes the name of the last conv kept in the region."""
    structure, kept = module.surgery.structure, module.surgery.kept
    return structure.layers[max(index for index in structure.layers_of(region.steps) if index in kept)].name


def region_kernel(module: RewrittenModule, number: int) -> Kernel:
    """What the region's convs, norms, scalars, shifts and shortcuts multiply to, from the weights they have now."""
    region, members = module.surgery.regions[number], find_site(module.graph, number).members
    if any("condensed" in node.meta for node in members):
        return _condensed(module, region, members)
    return _Multiplier(module).along(region.steps, module.surgery.structure.channels_into(region.steps[0]))


def _condensed(module: RewrittenModule, region: Reading, members: tuple[fx.Node, ...]) -> Kernel:
    """One conv, what carries its shifts, and perhaps a norm: what calibration made of the region's layers."""
    convs = [node for node in members if node.meta["role"] is Role.CONV]
    kernels = [Kernel.of(*conv_tensors(module, node), region.spec) for node in convs]
    names = [node.meta.get("carries") for node in convs]
    shifts = {name: one.weight[:, :, 0, 0] for name, one in zip(names, kernels, strict=True) if name}
    kernel = replace(kernels[0], shifts=shifts)
    return kernel.scaled(*affine_of(module, members[-1])) if members[-1].meta["role"] is Role.NORM else kernel


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
