"""Fitted regions: one conv in the place of a region's layers, for kernels that are not the layers' product.

In: a rewritten network, the number of a region, the kernel that it is to compute. Out: the same network, whose region is a
conv, the carriers of its shifts and, in networks that have batch norms, one of these; it trains, and `merge` folds it as any
other. A region that is one conv, with or without a norm, keeps its own modules.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import fx, nn
from torch.nn import functional as F

from layermerge.conv import ConvSpec
from layermerge.surgery.kernels import Kernel
from layermerge.surgery.regions import merged_name, region_kernel
from layermerge.surgery.rewrite import RewrittenModule
from layermerge.surgery.sites import Site, find_site
from layermerge.tracing.computed_conv import ComputedConv2d
from layermerge.tracing.lift import drop_unused
from layermerge.tracing.operators import Role

Norm = nn.modules.batchnorm._BatchNorm


@dataclass(frozen=True)
class FittedModules:
    """What computes a fitted region: a conv, what carries each shift, a batch norm; a conv without a norm has a bias."""

    conv: nn.Conv2d
    norm: Norm | None
    carriers: dict[str, nn.Conv2d] = field(default_factory=dict)


def _own_modules(module: RewrittenModule, site: Site) -> FittedModules | None:
    """The conv of a region and the norm after it, where these compute all of it; None where its layers are more."""
    calls = [node for node in site.members if node.meta["role"] is not Role.PAD]
    if any(node.op != "call_module" for node in calls):
        return None
    conv, *others = (module.get_submodule(str(node.target)) for node in calls)
    if not isinstance(conv, nn.Conv2d) or isinstance(conv, ComputedConv2d) or len(others) > 1:
        return None
    if not others:
        return None if conv.bias is None else FittedModules(conv, None)
    norm = others[0]
    trains = isinstance(norm, Norm) and norm.affine and norm.track_running_stats
    return FittedModules(conv, norm) if trains and isinstance(norm, Norm) else None


def condense(module: RewrittenModule, number: int, kernel: Kernel) -> FittedModules:
    """The region's conv and norm; where its layers are more than that, new ones of the kernel's shape take their place.

    A network that never had batch norms is not given any: in training they would hide how the layers before them drift, and
    their statistics would lag behind. Weights are still to be written: by `calibrate`, or from a file.
    """
    site = find_site(module.graph, number)
    if (own := _own_modules(module, site)) is not None:
        return own
    name, spec = merged_name(module, module.surgery.regions[number]), kernel.spec
    norm = nn.BatchNorm2d(spec.out_channels) if module.surgery.structure.has_batch_norms else None
    with torch.random.fork_rng(devices=()):  # their weights are drawn, and then written over
        carriers = {
            shift: nn.Conv2d(matrix.shape[1], matrix.shape[0], 1, bias=False) for shift, matrix in kernel.shifts.items()
        }
        made = FittedModules(_conv_of(spec, bias=norm is None), norm, carriers)
    paths: dict[str, nn.Module] = {name: made.conv, **{f"{name}_{shift}": one for shift, one in carriers.items()}}
    if norm is not None:
        paths[f"{name}_norm"] = norm
    for path, part in paths.items():
        module.set_submodule(path, part.to(module.device, module.dtype).train(module.training))
    end = _insert(module, site, kernel, name, number, normed=norm is not None)
    site.end.replace_all_uses_with(end)
    for node in reversed(site.members):
        module.graph.erase_node(node)
    drop_unused(module)
    module.graph.lint()
    module.recompile()
    return made


def condense_all(module: RewrittenModule) -> None:
    """Brings a rewritten network into the form that its fits gave it, to load weights into."""
    spans = {(fit.start, fit.end) for fit in module.surgery.fits}
    for number, region in enumerate(module.surgery.regions):
        if (region.candidate.start, region.candidate.end) in spans:
            condense(module, number, region_kernel(module, number))


def _pads_itself(spec: ConvSpec) -> bool:
    top, bottom, left, right = spec.padding
    return top == bottom and left == right


def _conv_of(spec: ConvSpec, *, bias: bool) -> nn.Conv2d:
    padding = (spec.padding[0], spec.padding[2]) if _pads_itself(spec) else (0, 0)
    return nn.Conv2d(
        spec.in_channels, spec.out_channels, spec.kernel, spec.stride, padding, spec.dilation, spec.groups, bias
    )


def _insert(module: RewrittenModule, site: Site, kernel: Kernel, name: str, number: int, *, normed: bool) -> fx.Node:
    """The nodes of a condensed region, before its old end; the last of them gives its output."""
    graph, plain = module.graph, {**site.end.meta, "region": number}

    def noted(node: fx.Node, role: Role, operator: str, **notes: object) -> fx.Node:
        node.meta = {**plain, "role": role, "operator": operator, "constant": False, "condensed": True, **notes}
        return node

    top, bottom, left, right = kernel.spec.padding
    with graph.inserting_before(site.end):
        source = site.source
        if not _pads_itself(kernel.spec):
            padded = graph.call_function(F.pad, (source, [left, right, top, bottom]))
            source = noted(padded, Role.PAD, "pad", shape=site.source.meta["shape"])
        latest = noted(graph.call_module(name, (source,)), Role.CONV, "conv2d")
        for shift, matrix in kernel.shifts.items():
            read = site.shifts[shift]
            carried = noted(graph.call_module(f"{name}_{shift}", (read,)), Role.CONV, "conv2d", carries=shift)
            carried.meta["shape"] = (read.meta["shape"][0], matrix.shape[0], 1, 1)
            latest = noted(graph.call_function(torch.add, (latest, carried)), Role.SHIFT, "add")
        return noted(graph.call_module(f"{name}_norm", (latest,)), Role.NORM, "batch_norm") if normed else latest
