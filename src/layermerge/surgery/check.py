"""Check: merged equals unmerged, on the example inputs.

The measure is max|a - b| / max|a|. Each region's kernel, in float64 on the feature map that the region really reads, must
agree with the region's layers to 1e-10. Then the merged network, with its weights in its own dtype, must agree at every
region's end and at the output to 1e-5, or to ten times the unmerged network's own rounding error where that is larger.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn import functional as F
from torch.utils import _pytree as pytree

from layermerge.errors import SurgeryError
from layermerge.surgery.kernels import Kernel
from layermerge.surgery.regions import Site, find_site
from layermerge.surgery.rewrite import RewrittenModule
from layermerge.tracing.lift import LiftedModule
from layermerge.tracing.modes import evaluating
from layermerge.tracing.outputs import relative_difference

EXACT = 1e-10
ROUNDED = 1e-5
_ROUNDING_FACTOR = 10


def require_finite(module: nn.Module) -> None:
    """Refuses a network whose weights are NaN or infinite: it equals nothing, itself included.

    Buffers may be infinite, as the masks of attention are.
    """
    for name, tensor in (*module.named_parameters(), *module.named_buffers()):
        broken = tensor.isnan() if not isinstance(tensor, nn.Parameter) else ~tensor.isfinite()
        if broken.any():
            raise SurgeryError(
                f"'{name}' holds NaN or infinite values, so nothing can be merged; restore the last weights that were finite"
            )


class Exactness:
    """Holds a rewritten network's values while it is merged, and compares."""

    def __init__(self, module: RewrittenModule) -> None:
        self.module = module
        self.sites = [find_site(module.graph, number) for number in range(len(module.surgery.regions))]
        self.own: dict[int | str, Tensor] = {}
        self.rounding: dict[int | str, float] = {}

    def compare_each_region(self, kernel_of: Callable[[int], Kernel]) -> None:
        """Runs the unmerged network, asks for each region's kernel as its end is reached, and compares the two."""
        ends = {site.end: number for number, site in enumerate(self.sites)}
        last_readings = self._last_readings(ends)
        with evaluating(self.module):
            self.own = _run(self.module, ends, wide=False)

            def compare(number: int, expected: Tensor, held: dict[fx.Node, Tensor]) -> None:
                self.rounding[number] = relative_difference(expected, self.own[number].to(expected.dtype))
                site, kernel = self.sites[number], kernel_of(number)
                self._require_finite(number, kernel)
                actual = _apply(kernel, held[site.source], {name: held[node] for name, node in site.shifts.items()})
                self._require("float64", number, expected, actual, EXACT)
                for node in last_readings.pop(number):
                    del held[node]

            exact = _run(self.module, ends, wide=True, sites=self.sites, at_end=compare)
        for key, value in exact.items():
            self.rounding[key] = relative_difference(value, self.own[key].to(value.dtype))

    def _last_readings(self, ends: dict[fx.Node, int]) -> dict[int, list[fx.Node]]:
        """For each region, the maps that no region after it reads: they can be let go with it."""
        last: dict[fx.Node, int] = {}
        for node in self.module.graph.nodes:
            if node in ends:
                site = self.sites[ends[node]]
                last.update(dict.fromkeys((site.source, *site.shifts.values()), ends[node]))
        return {number: [node for node, reader in last.items() if reader == number] for number in ends.values()}

    def compare_whole(self, merged: LiftedModule) -> None:
        """Compares the merged network, in its own dtype, with the unmerged one."""
        ends = {node: node.meta["region"] for node in merged.graph.nodes if "region" in node.meta}
        values = _run(merged, ends, wide=False, inputs_of=self.module)
        assert values.keys() == self.own.keys(), "a region's end is gone"
        for key, value in values.items():
            bound = max(ROUNDED, _ROUNDING_FACTOR * self.rounding[key])
            self._require(str(value.dtype).removeprefix("torch."), key, self.own[key], value, bound)

    def _require_finite(self, number: int, kernel: Kernel) -> None:
        if not (kernel.weight.isfinite().all() and kernel.bias.isfinite().all()):
            raise SurgeryError(
                f"the weights of candidate {self.module.surgery.regions[number].candidate.key} multiply to NaN or infinite "
                "values; look for a zero that is divided by or a norm without variance"
            )

    def _require(self, dtype: str, key: int | str, expected: Tensor, actual: Tensor, bound: float) -> None:
        difference = relative_difference(expected, actual)
        if not difference <= bound:
            where = f"candidate {self.module.surgery.regions[key].candidate.key}" if isinstance(key, int) else key
            raise SurgeryError(
                f"merged and unmerged differ by {difference:.1e} in {dtype} at {where}, where {bound:.1e} is allowed; "
                "nothing was merged"
            )


def _apply(kernel: Kernel, x: Tensor, shifts: dict[str, Tensor]) -> Tensor:
    spec = kernel.spec
    top, bottom, left, right = spec.padding
    padded = F.pad(x, (left, right, top, bottom)) if any(spec.padding) else x
    out = F.conv2d(padded, kernel.weight, kernel.bias, spec.stride, 0, spec.dilation, spec.groups)
    for name, matrix in kernel.shifts.items():
        out = out + F.conv2d(shifts[name], matrix[:, :, None, None])
    return out


class _Run(fx.Interpreter):
    """Runs a graph and hands over the value at each region's end. With `wide`, all arithmetic is in float64.

    Weights are widened one module at a time, so that a float64 run needs no float64 copy of the network. So are values that
    the network makes float32 whatever its weights are (a quantised latent, an embedding), which its layers would not take.
    """

    def __init__(self, module: LiftedModule, ends: dict[fx.Node, int], *, wide: bool, hold: set[fx.Node]) -> None:
        super().__init__(module)
        self.extra_traceback = False  # it would append lines of its own to our errors
        self.ends = ends
        self.wide = wide
        self.hold = hold
        self.held: dict[fx.Node, Tensor] = {}
        self.at_end: Callable[[int, Tensor, dict[fx.Node, Tensor]], None] = lambda *_: None

    def run_node(self, n: fx.Node) -> Any:
        value = super().run_node(n)
        if self.wide:
            value = pytree.tree_map(_wide, value)
        if n in self.hold:
            self.held[n] = value
        if n in self.ends:
            self.at_end(self.ends[n], value, self.held)
        return value

    def call_module(self, target: Any, args: Any, kwargs: Any) -> Any:
        module = self.fetch_attr(target)
        assert isinstance(module, nn.Module)
        with _widened(module) if self.wide else nullcontext():
            return module(*args, **kwargs)


def _wide(value: Any) -> Any:
    return value.double() if isinstance(value, Tensor) and value.is_floating_point() else value


def _run(
    module: LiftedModule,
    ends: dict[fx.Node, int],
    *,
    wide: bool,
    sites: list[Site] | None = None,
    at_end: Callable[[int, Tensor, dict[fx.Node, Tensor]], None] | None = None,
    inputs_of: RewrittenModule | None = None,
) -> dict[int | str, Tensor]:
    """The network's outputs on its example inputs, and its values at the ends of regions unless `at_end` takes them."""
    source = inputs_of or module
    assert isinstance(source, RewrittenModule)
    inputs = source.surgery.inputs.resized(1)
    dtype = torch.float64 if wide else module.dtype

    def fit(leaf: Any) -> Any:
        if not isinstance(leaf, Tensor):
            return leaf
        return leaf.to(module.device, dtype) if leaf.is_floating_point() else leaf.to(module.device)

    values: dict[int | str, Tensor] = {}
    hold = {node for site in sites or () for node in (site.source, *site.shifts.values())}
    run = _Run(module, ends, wide=dtype is torch.float64, hold=hold)
    run.at_end = at_end or (lambda number, value, _held: values.__setitem__(number, value))
    leaves = [fit(leaf) for leaf in pytree.tree_leaves((inputs.args, dict(inputs.kwargs)))]
    output = run.run(*leaves, enable_io_processing=False)
    for position, leaf in enumerate(pytree.tree_leaves(output)):
        if isinstance(leaf, Tensor):
            values[f"output {position}"] = leaf
    return values


@contextmanager
def _widened(module: nn.Module) -> Iterator[None]:
    """The module with float64 tensors, for one call."""
    narrow: list[tuple[dict[str, Any], str, Any]] = []
    for part in module.modules():
        for table in (part._parameters, part._buffers):
            for name, tensor in table.items():
                if tensor is not None and tensor.is_floating_point() and tensor.dtype != torch.float64:
                    narrow.append((table, name, tensor))
                    wide = tensor.detach().double()
                    table[name] = nn.Parameter(wide) if isinstance(tensor, nn.Parameter) else wide  # type: ignore[assignment]
    try:
        yield
    finally:
        for table, name, tensor in narrow:
            table[name] = tensor
