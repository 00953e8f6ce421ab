"""torch, operator by operator."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from layermerge.errors import RuntimeUnavailable
from layermerge.runtimes.base import Pass, Runtime, RuntimeSettings
from layermerge.runtimes.exporting import for_serving
from layermerge.tracing.capture import Inputs


class TorchEager(Runtime):
    """What `module(x)` does."""

    name = "torch"
    package = "torch"
    extra = "torch"

    def __init__(self, settings: RuntimeSettings) -> None:
        if not isinstance(getattr(torch, settings.dtype, None), torch.dtype):
            raise RuntimeUnavailable(f"torch has no dtype '{settings.dtype}'; try float32 or bfloat16")
        super().__init__(settings)

    def prepare(self, module: nn.Module, inputs: Inputs, *, small: bool = False) -> Pass:
        del small
        device, dtype = torch.device(self.settings.device), getattr(torch, self.settings.dtype)
        layout = torch.channels_last if self.settings.channels_last else torch.contiguous_format
        served = for_serving(module).to(device, dtype)
        served = served.to(memory_format=layout)  # type: ignore[call-overload]

        def fit(leaf: object) -> object:
            if not isinstance(leaf, Tensor):
                return leaf
            moved = leaf.to(device, dtype) if leaf.is_floating_point() else leaf.to(device)
            return moved.contiguous(memory_format=layout) if moved.dim() == 4 else moved

        args, kwargs = pytree.tree_map(fit, (inputs.args, dict(inputs.kwargs)))
        called = self.compiled(served)

        def run() -> None:
            if torch.get_num_threads() != self.settings.threads:
                torch.set_num_threads(self.settings.threads)
            with torch.inference_mode():
                called(*args, **kwargs)

        return _timed_by_events(run) if device.type == "cuda" else run

    def compiled(self, module: nn.Module) -> nn.Module:
        return module


class TorchCompile(TorchEager):
    """What `torch.compile(module)(x)` does; the first pass compiles."""

    name = "torch-compile"

    def compiled(self, module: nn.Module) -> nn.Module:
        compiled = torch.compile(module)
        assert isinstance(compiled, nn.Module)
        return compiled


def _timed_by_events(run: Callable[[], None]) -> Pass:
    """On a GPU the host's clock sees when work was queued, not when it was done; events on the stream do."""

    def timed() -> float:
        event: Any = torch.cuda.Event
        start, end = event(enable_timing=True), event(enable_timing=True)
        start.record()
        run()
        end.record()
        torch.cuda.synchronize()
        return float(start.elapsed_time(end))

    return timed
