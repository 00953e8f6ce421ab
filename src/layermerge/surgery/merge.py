"""Merge: a rewritten network with each range computed by one conv.

In: a `RewrittenModule`. Out: a new `MergedModule` in eval mode; the rewritten one is not touched.
Guarantees: every norm that can fold is folded, every range is one conv, removed layers are gone from the graph, and the
result is checked against the unmerged module on the spot: in float64 before its weights are cast, then in their own dtype.
"""

from __future__ import annotations

import torch
from torch import Tensor, fx, nn
from torch.nn import functional as F

from layermerge.errors import SurgeryError
from layermerge.planning.geometry import is_emptied
from layermerge.surgery.check import check_merged
from layermerge.surgery.fold import norm_as_affine
from layermerge.surgery.fuse import Kernel
from layermerge.surgery.rewrite import Region, RewrittenModule, Surgery
from layermerge.tracing.lift import LiftedModule, clone_as, drop_unused
from layermerge.tracing.roles import Role
from layermerge.tracing.structure import BlockStep, ConvStep, OpStep, Path, main_input


class MergedModule(LiftedModule):
    """A merged network: fewer convs, no foldable norms; `surgery` says how it came about."""

    surgery: Surgery


def merge(module: nn.Module) -> MergedModule:
    """Merges a rewritten network into few convolutions that compute the same function.

    >>> net = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 8, 3, padding=1))
    >>> traced = trace(net, torch.randn(2, 3, 16, 16))
    >>> merge(rewrite(traced, [plan(traced)["0-2:5x5g1"]]))
    MergedModule(
      (2): Conv2d(3, 8, kernel_size=(5, 5), stride=(1, 1), padding=(2, 2))
    )

    Costs one pass over the weights in float64 and two forward passes of each network for the check.
    """
    if not isinstance(module, RewrittenModule):
        raise SurgeryError(
            f"merge takes what rewrite returns, not {type(module).__name__}; call layermerge.rewrite first"
        )
    with torch.no_grad():
        merged = _merge_in_float64(module)
        check_merged(module, merged)
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
        return _merge_in_float64(module)


def _merge_in_float64(module: RewrittenModule) -> MergedModule:
    """The merged module with its merged convs still in float64."""
    shared = {id(tensor): tensor for tensor in (*module.parameters(), *module.buffers())}
    merged = clone_as(MergedModule, module, shared)
    for number, region in enumerate(module.surgery.regions):
        weights = _RegionWeights(module, region)
        _replace_region(merged, number, weights.name(), weights.kernel())
    merged.graph.eliminate_dead_code()
    merged.graph.lint()
    drop_unused(merged)
    merged.recompile()
    # What was not merged is still shared with the rewritten module; from here on it is the merged module's own.
    own = {name: tensor for name, tensor in merged.named_parameters() if id(tensor) in shared}
    for name, tensor in own.items():
        home, _, attribute = name.rpartition(".")
        setattr(merged.get_submodule(home), attribute, nn.Parameter(tensor.detach().clone(), tensor.requires_grad))
    for name, buffer in list(merged.named_buffers()):
        home, _, attribute = name.rpartition(".")
        merged.get_submodule(home)._buffers[attribute] = buffer.clone()
    return merged.eval()


class _RegionWeights:
    """Reads the weights of a region's modules and multiplies them into one kernel."""

    def __init__(self, module: RewrittenModule, region: Region) -> None:
        self.module = module
        self.region = region
        self.structure = module.surgery.structure
        self.kept = module.surgery.kept
        self.alive = {node.name: node for node in module.graph.nodes}

    def _conv(self, layer: int) -> nn.Conv2d:
        conv = self.module.get_submodule(self.structure.layers[layer].name)
        assert isinstance(conv, nn.Conv2d)
        return conv

    def name(self) -> str:
        """The merged conv takes the name of the last conv kept in the region."""
        last = max(index for index in self.structure.layers_of(self.region.steps) if index in self.kept)
        return self.structure.layers[last].name

    def kernel(self) -> Kernel:
        first = self.structure.layers[self.region.candidate.start]
        device = next(self.module.parameters()).device
        return self._along(self.region.steps, Kernel.identity(first.spec.in_channels, device))

    def _along(self, path: Path, kernel: Kernel) -> Kernel:
        for step in path:
            if isinstance(step, ConvStep):
                if step.layer in self.kept:
                    conv = self._conv(step.layer)
                    kernel = kernel.then(Kernel.of(conv.weight, conv.bias, self.structure.layers[step.layer].spec))
            elif isinstance(step, BlockStep):
                kernel = kernel.then(self._block(step, kernel.spec.out_channels, kernel.weight.device))
            elif step.role is Role.PAD:
                kernel = kernel.padded(step.pad)
            elif step.node in self.alive:
                kernel = self._op(step, kernel)
        return kernel

    def _block(self, step: BlockStep, channels: int, device: torch.device) -> Kernel:
        block = self.structure.blocks[step.block]
        bypass = self._along(block.bypass, Kernel.identity(channels, device))
        if is_emptied(self.structure, block, self.kept):
            return bypass
        return self._along(block.body, Kernel.identity(channels, device)).beside(bypass)

    def _op(self, step: OpStep, kernel: Kernel) -> Kernel:
        node = self.alive[step.node]
        if step.role is Role.NORM:
            norm = self.module.get_submodule(str(node.target))
            assert isinstance(norm, nn.modules.batchnorm._BatchNorm)
            assert norm.running_mean is not None
            assert norm.running_var is not None
            weight, bias = (None if tensor is None else tensor.detach() for tensor in (norm.weight, norm.bias))
            return kernel.scaled(*norm_as_affine(norm.running_mean, norm.running_var, norm.eps, weight, bias))
        if step.role is Role.SCALE:
            factor = _scalar(node)
            scale = torch.full_like(kernel.bias, factor)
            return kernel.scaled(scale, torch.zeros_like(scale))
        if step.role is Role.SHIFT:
            return kernel.shifted(step.node)
        return kernel


def _scalar(node: fx.Node) -> float:
    value = node.args[1]
    assert isinstance(value, (int, float))
    return 1.0 / value if node.meta["operator"] == "div" else float(value)


def _replace_region(merged: MergedModule, number: int, name: str, kernel: Kernel) -> None:
    """Puts one conv in the place of a region's nodes; shifts that joined inside are carried to its output."""
    graph = merged.graph
    members = [node for node in graph.nodes if node.meta.get("region") == number]
    source = _input_of(members)
    end = members[-1]
    top, bottom, left, right = kernel.spec.padding
    symmetric = top == bottom and left == right
    _set_module(merged, name, _conv_module(kernel, (top, left) if symmetric else (0, 0)))
    with graph.inserting_before(end):
        padded = source if symmetric else graph.call_function(F.pad, (source, [left, right, top, bottom]))
        out = conv = graph.call_module(name, (padded,))
        for shift, matrix in kernel.shifts.items():
            carrier = f"{name}_{shift}"
            _set_module(merged, carrier, _carrier_module(matrix))
            operand = _shift_operand(next(node for node in members if node.name == shift))
            carried = graph.call_module(carrier, (operand,))
            out = graph.call_function(torch.add, (out, carried))
            carried.meta = out.meta = {"role": Role.SHIFT, "operator": "add", "shape": end.meta["shape"], "owner": ""}
    conv.meta = {"role": Role.CONV, "operator": "conv2d", "shape": end.meta["shape"], "owner": end.meta["owner"]}
    if padded is not source:
        padded.meta = {**conv.meta, "role": Role.PAD, "operator": "pad", "shape": source.meta["shape"]}
    out.meta["merged_region"] = number
    end.replace_all_uses_with(out)
    for node in reversed(members):
        graph.erase_node(node)


def _input_of(members: list[fx.Node]) -> fx.Node:
    """The one feature map that a region reads."""
    inside = set(members)
    read: list[fx.Node] = []
    for node in members:
        both = node.meta["role"] is Role.ADD
        read += [arg for arg in node.args if isinstance(arg, fx.Node)] if both else [main_input(node)]
    outside = {node for node in read if node not in inside}
    assert len(outside) == 1, f"a region reads {len(outside)} feature maps"
    return outside.pop()


def _shift_operand(node: fx.Node) -> fx.Node:
    main = main_input(node)
    return next(arg for arg in node.args if isinstance(arg, fx.Node) and arg is not main)


def _conv_module(kernel: Kernel, padding: tuple[int, int]) -> nn.Conv2d:
    spec = kernel.spec
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
    conv.weight, conv.bias = nn.Parameter(kernel.weight), nn.Parameter(kernel.bias)
    return conv


def _carrier_module(matrix: Tensor) -> nn.Conv2d:
    """Carries a shift through the kernels behind it: a 1x1 conv on a 1x1 map."""
    carrier = nn.Conv2d(matrix.shape[1], matrix.shape[0], 1, bias=False, device="meta")
    carrier.weight = nn.Parameter(matrix[:, :, None, None].contiguous())
    return carrier


def _set_module(root: nn.Module, path: str, module: nn.Module) -> None:
    parent, _, name = path.rpartition(".")
    root.get_submodule(parent).add_module(name, module)
