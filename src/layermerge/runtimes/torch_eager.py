"""torch, operator by operator."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.utils import _pytree as pytree

from layermerge.errors import RuntimeUnavailable
from layermerge.runtimes.base import Pass, Runtime, RuntimeSettings, Served
from layermerge.runtimes.recording import Recording
from layermerge.runtimes.torch_recording import TorchRecording
from layermerge.runtimes.writing import for_serving
from layermerge.tracing.inputs import Inputs


@contextmanager
def torch_threads(count: int) -> Iterator[None]:
    """Within it torch computes with this many threads; afterwards with as many as before."""
    before = torch.get_num_threads()
    if before != count:
        torch.set_num_threads(count)
    try:
        yield
    finally:
        if before != count:
            torch.set_num_threads(before)


_BALLAST = 7
"""Blocks of up to 8 MB, of the size of feature maps, so that they come from where those do."""


class TorchEager(Runtime):
    """What `module(x)` does."""

    name = "torch"
    package = "torch"
    extra = "torch"
    fuses = False
    copies = 5

    def __init__(self, settings: RuntimeSettings) -> None:
        if not isinstance(getattr(torch, settings.dtype, None), torch.dtype):
            raise RuntimeUnavailable(f"torch has no dtype '{settings.dtype}'; try float32 or bfloat16")
        if not getattr(torch, settings.dtype).is_floating_point:
            raise RuntimeUnavailable(
                f"runtime '{self.name}' computes in floating point, not in {settings.dtype}; try float32 or bfloat16"
            )
        super().__init__(settings)

    def running(self) -> AbstractContextManager[None]:
        return torch_threads(self.settings.threads)

    @contextmanager
    def elsewhere(self, number: int) -> Iterator[None]:
        sizes = random.Random(number)
        ballast = [torch.empty(sizes.randrange(1 << 10, 1 << 23), dtype=torch.uint8) for _ in range(_BALLAST)]
        yield
        del ballast

    def prepare(self, module: nn.Module, inputs: Inputs, *, small: bool = False) -> Pass:
        del small
        called = self._placed(module)
        args, kwargs = self._fitted((inputs.args, dict(inputs.kwargs)))

        def run() -> None:
            with self.running(), torch.inference_mode():
                called(*args, **kwargs)

        return _timed_by_events(run) if self._device.type == "cuda" else run

    def record(self, module: nn.Module, inputs: Inputs, *, small: bool = False) -> Recording | None:
        del small
        placed = self._placed(module)
        if self._device.type != "cpu":
            return None
        args, kwargs = self._fitted((inputs.args, dict(inputs.kwargs)))
        graph = placed if isinstance(placed, fx.GraphModule) else fx.symbolic_trace(placed)
        return TorchRecording(graph, (*args, *kwargs.values()), self.running)

    def serve(self, module: nn.Module, inputs: Inputs) -> Served:
        del inputs
        called = self._placed(module)

        def network(*args: Any, **kwargs: Any) -> Any:
            args, kwargs = self._fitted((args, kwargs))
            with self.running(), torch.no_grad():
                return pytree.tree_map(_handed_back, called(*args, **kwargs))

        return network

    @property
    def _device(self) -> torch.device:
        return torch.device(self.settings.device)

    @property
    def _layout(self) -> torch.memory_format:
        return torch.channels_last if self.settings.channels_last else torch.contiguous_format

    def _placed(self, module: nn.Module) -> nn.Module:
        served = for_serving(module).to(self._device, getattr(torch, self.settings.dtype))
        return self.compiled(served.to(memory_format=self._layout))  # type: ignore[call-overload]

    def _fitted(self, inputs: Any) -> Any:
        """Inputs as the placed module takes them."""
        dtype = getattr(torch, self.settings.dtype)

        def fit(leaf: object) -> object:
            if not isinstance(leaf, Tensor):
                return leaf
            moved = leaf.to(self._device, dtype) if leaf.is_floating_point() else leaf.to(self._device)
            return moved.contiguous(memory_format=self._layout) if moved.dim() == 4 else moved

        return pytree.tree_map(fit, inputs)

    def compiled(self, module: nn.Module) -> nn.Module:
        return module


class TorchCompile(TorchEager):
    """What `torch.compile(module)(x)` does; the first pass compiles."""

    name = "torch-compile"
    copies = 1  # each is compiled again

    def record(self, module: nn.Module, inputs: Inputs, *, small: bool = False) -> None:
        """Operators of its own make are not those of the network."""

    def compiled(self, module: nn.Module) -> nn.Module:
        compiled = torch.compile(module)
        assert isinstance(compiled, nn.Module)
        return compiled


def _handed_back(leaf: object) -> object:
    """An output where and as whoever scores it expects it, whatever the network computes in."""
    if not isinstance(leaf, Tensor):
        return leaf
    return leaf.float().cpu() if leaf.is_floating_point() else leaf.cpu()


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
