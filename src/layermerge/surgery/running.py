"""Running: a graph on its example inputs, in its own dtype or all in float64, with its values at the ends of regions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.utils import _pytree as pytree

from layermerge.surgery.sites import Site
from layermerge.tracing.inputs import Inputs
from layermerge.tracing.lift import LiftedModule

AtEnd = Callable[[int, Tensor, dict[fx.Node, Tensor]], None]
"""Called with the number of a region, the value at its end, and the values that were asked to be held."""


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
        self.at_end: AtEnd = lambda *_: None

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


def run(
    module: LiftedModule,
    inputs: Inputs,
    ends: dict[fx.Node, int],
    *,
    wide: bool,
    sites: Iterable[Site] = (),
    at_end: AtEnd | None = None,
) -> dict[int | str, Tensor]:
    """The network's outputs on inputs of batch size 1, and its values at the ends of regions unless `at_end` takes them."""
    inputs = inputs.resized(1)
    dtype = torch.float64 if wide else module.dtype

    def fit(leaf: Any) -> Any:
        if not isinstance(leaf, Tensor):
            return leaf
        return leaf.to(module.device, dtype) if leaf.is_floating_point() else leaf.to(module.device)

    values: dict[int | str, Tensor] = {}
    hold = {node for site in sites for node in (site.source, *site.shifts.values())}
    running = _Run(module, ends, wide=dtype is torch.float64, hold=hold)
    running.at_end = at_end or (lambda number, value, _held: values.__setitem__(number, value))
    leaves = [fit(leaf) for leaf in pytree.tree_leaves((inputs.args, dict(inputs.kwargs)))]
    output = running.run(*leaves, enable_io_processing=False)
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
