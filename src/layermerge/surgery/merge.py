"""Merge: a rewritten network with each range computed by one conv.

In: a `RewrittenModule`. Out: a new `MergedModule` in eval mode; the rewritten one is not touched.
Guarantees: every norm that can fold is folded, every range is one conv, removed layers are gone from the graph, and the
result is checked against the unmerged module immediately (see `check`).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, fx, nn
from torch.nn import functional as F

from layermerge.arguments import checked
from layermerge.conv import Sides
from layermerge.errors import SurgeryError
from layermerge.surgery.check import Exactness, require_finite
from layermerge.surgery.concat import add_up_repeats
from layermerge.surgery.kernels import Kernel
from layermerge.surgery.regions import merged_name, region_kernel
from layermerge.surgery.rewrite import RewrittenModule, Surgery
from layermerge.surgery.sites import Site, find_site
from layermerge.tracing.lift import LiftedModule, clone_as, drop_unused
from layermerge.tracing.operators import Role


class MergedModule(LiftedModule):
    """A merged network: fewer convs, no foldable norms; `surgery` says how it was made."""

    surgery: Surgery


@dataclass(frozen=True)
class _Part:
    """What replaces a region: padding that a conv cannot do itself, the conv, and a carrier for each shift."""

    name: str
    padding: Sides | None
    conv: nn.Conv2d
    carriers: dict[str, nn.Conv2d]


@checked(SurgeryError)
def merge(module: nn.Module) -> MergedModule:
    """Merges a rewritten network into few convolutions that compute the same function.

    >>> net = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 8, 3, padding=1))
    >>> traced = trace(net, torch.randn(2, 3, 16, 16))
    >>> merge(rewrite(traced, [plan(traced)["0-2:5x5g1"]]))
    MergedModule(
      (2): Conv2d(3, 8, kernel_size=(5, 5), stride=(1, 1), padding=(2, 2))
    )

    Costs one pass over the weights and one forward pass in float64, and two forward passes in the module's own dtype.
    """
    if not isinstance(module, RewrittenModule):
        raise SurgeryError(
            f"merge takes what rewrite returns, not {type(module).__name__}; call layermerge.rewrite first"
        )
    require_finite(module)
    regions = module.surgery.regions
    exactness = Exactness(module)
    parts: dict[int, _Part] = {}

    def replace(number: int) -> Kernel:
        kernel = region_kernel(module, number)
        parts[number] = _part(merged_name(module, regions[number]), kernel, module.dtype)
        return kernel

    with torch.no_grad():
        exactness.compare_each_region(replace)
        merged = _assemble(module, [parts[number] for number in range(len(regions))])
        exactness.compare_whole(merged)
    return merged


def merged_shell(module: RewrittenModule) -> MergedModule:
    """The merged form of a rewritten network without its weights, to load saved ones into; uses `module` up."""
    for part in module.modules():
        for name, parameter in part._parameters.items():
            if parameter is not None:
                part._parameters[name] = nn.Parameter(parameter.detach().to("meta"), parameter.requires_grad)
        for name, buffer in part._buffers.items():
            if buffer is not None and name not in part._non_persistent_buffers_set:
                part._buffers[name] = buffer.to("meta")
    with torch.no_grad():
        regions = module.surgery.regions
        return _assemble(
            module,
            [
                _part(merged_name(module, region), region_kernel(module, number), module.dtype)
                for number, region in enumerate(regions)
            ],
        )


def _part(name: str, kernel: Kernel, dtype: torch.dtype) -> _Part:
    spec = kernel.spec
    top, bottom, left, right = spec.padding
    symmetric = top == bottom and left == right
    padding = (top, left) if symmetric else (0, 0)
    conv = nn.Conv2d(
        spec.in_channels,
        spec.out_channels,
        spec.kernel,
        spec.stride,
        padding,
        spec.dilation,
        spec.groups,
        device="meta",
    )
    conv.weight, conv.bias = nn.Parameter(kernel.weight.to(dtype)), nn.Parameter(kernel.bias.to(dtype))
    carriers = {shift: _carrier(matrix.to(dtype)) for shift, matrix in kernel.shifts.items()}
    return _Part(name, None if symmetric else spec.padding, conv, carriers)


def _carrier(matrix: Tensor) -> nn.Conv2d:
    """Carries a shift through the kernels after it: a 1x1 conv on a 1x1 map."""
    carrier = nn.Conv2d(matrix.shape[1], matrix.shape[0], 1, bias=False, device="meta")
    carrier.weight = nn.Parameter(matrix[:, :, None, None].contiguous())
    return carrier


def _assemble(module: RewrittenModule, parts: list[_Part]) -> MergedModule:
    """A copy of the network with a part in the place of each region; what is not merged is copied."""
    borrowed = {id(tensor): tensor for tensor in (*module.parameters(), *module.buffers())}
    merged = clone_as(MergedModule, module, dict(borrowed))
    for number, part in enumerate(parts):
        _replace(merged, find_site(merged.graph, number), part)
    add_up_repeats(merged)
    merged.graph.eliminate_dead_code()
    merged.graph.lint()
    drop_unused(merged)
    merged.recompile()
    for home in merged.modules():
        for name, parameter in home._parameters.items():
            if parameter is not None and id(parameter) in borrowed:
                home._parameters[name] = nn.Parameter(parameter.detach().clone(), parameter.requires_grad)
        for name, buffer in home._buffers.items():
            if buffer is not None:
                home._buffers[name] = buffer.clone()
    return merged.eval()


def _replace(merged: MergedModule, site: Site, part: _Part) -> None:
    graph, end = merged.graph, site.end
    merged.set_submodule(part.name, part.conv)
    made: list[fx.Node] = []
    with graph.inserting_before(end):
        source = site.source
        if part.padding is not None:
            top, bottom, left, right = part.padding
            source = graph.call_function(F.pad, (source, [left, right, top, bottom]))
            source.meta = {**site.source.meta, "role": Role.PAD, "operator": "pad"}
            source.meta.pop("region", None)
        made.append(graph.call_module(part.name, (source,)))
        for shift, carrier in part.carriers.items():
            path = f"{part.name}_{shift}"
            merged.set_submodule(path, carrier)
            made.append(graph.call_module(path, (site.shifts[shift],)))
            made.append(graph.call_function(torch.add, (made[-2], made[-1])))
    for node in made:
        node.meta = {**end.meta, "role": Role.BARRIER, "operator": "merged"}
    made[0].meta.update(role=Role.CONV, operator="conv2d")
    for node in made[:-1]:
        del node.meta["region"]  # the last of them is the region's end
    end.replace_all_uses_with(made[-1])
    for node in reversed(site.members):
        graph.erase_node(node)
