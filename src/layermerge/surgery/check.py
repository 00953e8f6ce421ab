"""Check: merged equals unmerged, on the example inputs, at every region's end and at the output.

The measure is max|a - b| / max|a|. In float64 it must be at most 1e-10. In the module's own dtype it must be at most 1e-5,
or ten times the unmerged network's own rounding error where that is larger.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.utils import _pytree as pytree

from layermerge.errors import SurgeryError
from layermerge.tracing.capture import Inputs
from layermerge.tracing.lift import LiftedModule
from layermerge.tracing.verify import relative_difference

EXACT = 1e-10
ROUNDED = 1e-5
_ROUNDING_FACTOR = 10


class _Recorder(fx.Interpreter):
    """Runs a graph and keeps the feature map at each region's end. With `wide`, all arithmetic is in float64.

    Weights are widened one module at a time, so that a float64 run needs no float64 copy of the network.
    """

    def __init__(self, module: LiftedModule, ends: dict[str, int], *, wide: bool) -> None:
        super().__init__(module)
        self.ends = ends
        self.wide = wide
        self.seen: dict[int | str, Tensor] = {}

    def run_node(self, n: fx.Node) -> Any:
        value = super().run_node(n)
        if n.name in self.ends:
            self.seen[self.ends[n.name]] = value
        return value

    def call_module(self, target: Any, args: Any, kwargs: Any) -> Any:
        module = self.fetch_attr(target)
        assert isinstance(module, nn.Module)
        with _widened(module) if self.wide else _as_it_is():
            return module(*args, **kwargs)

    def get_attr(self, target: Any, args: Any, kwargs: Any) -> Any:
        value = super().get_attr(target, args, kwargs)
        return value.double() if self.wide and isinstance(value, Tensor) and value.is_floating_point() else value


@contextmanager
def _as_it_is() -> Iterator[None]:
    yield


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


def check_merged(module: Any, merged: LiftedModule) -> None:
    """Compares the two, casting the merged convs from float64 to the module's own dtype in between."""
    training = [(part, part.training) for part in module.modules()]
    module.eval()
    try:
        inputs = module.surgery.inputs.resized(1)
        exact = _run(module, _ends(module), inputs, wide=True)
        _require("float64", exact, _run(merged, _merged_ends(merged), inputs, wide=True), {}, EXACT, module)
        _cast(merged, next(module.parameters()).dtype)
        own = _run(module, _ends(module), inputs, wide=False)
        rounding = {key: relative_difference(exact[key], own[key]) for key in own}
        _require(
            "the network's own dtype",
            own,
            _run(merged, _merged_ends(merged), inputs, wide=False),
            rounding,
            ROUNDED,
            module,
        )
    finally:
        for part, mode in training:
            part.training = mode


def _cast(merged: LiftedModule, dtype: torch.dtype) -> None:
    for part in merged.modules():
        for name, tensor in part._parameters.items():
            if tensor is not None and tensor.dtype == torch.float64:
                part._parameters[name] = nn.Parameter(tensor.detach().to(dtype), tensor.requires_grad)


def _ends(module: Any) -> dict[str, int]:
    """The last node of each region, by name."""
    return {node.name: node.meta["region"] for node in module.graph.nodes if "region" in node.meta}


def _merged_ends(merged: LiftedModule) -> dict[str, int]:
    return {node.name: node.meta["merged_region"] for node in merged.graph.nodes if "merged_region" in node.meta}


def _run(module: LiftedModule, ends: dict[str, int], inputs: Inputs, *, wide: bool) -> dict[int | str, Tensor]:
    dtype = torch.float64 if wide else next(module.parameters()).dtype
    device = next(module.parameters()).device

    def fit(leaf: Any) -> Any:
        if not isinstance(leaf, Tensor):
            return leaf
        return leaf.to(device, dtype) if leaf.is_floating_point() else leaf.to(device)

    leaves = [fit(leaf) for leaf in pytree.tree_leaves((inputs.args, dict(inputs.kwargs)))]
    recorder = _Recorder(module, ends, wide=wide)
    output = recorder.run(*leaves, enable_io_processing=False)
    values = recorder.seen
    for position, leaf in enumerate(pytree.tree_leaves(output)):
        if isinstance(leaf, Tensor):
            values[f"output {position}"] = leaf
    return values


def _require(
    kind: str,
    expected: dict[int | str, Tensor],
    actual: dict[int | str, Tensor],
    rounding: dict[int | str, float],
    limit: float,
    module: Any,
) -> None:
    for key, value in expected.items():
        bound = max(limit, _ROUNDING_FACTOR * rounding.get(key, 0.0))
        difference = relative_difference(value, actual[key])
        if not difference <= bound:
            where = module.surgery.regions[key].candidate.key if isinstance(key, int) else key
            raise SurgeryError(
                f"merged and unmerged differ by {difference:.1e} in {kind} at {where} (allowed {bound:.1e}); nothing was merged"
            )
