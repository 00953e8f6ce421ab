"""TensorRT, through ONNX; needs a GPU, and says so where there is none."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from layermerge.errors import RuntimeUnavailable
from layermerge.runtimes.base import Pass
from layermerge.runtimes.onnx_file import Array, Feed, OnnxRuntimeBase, ServedFile, Session
from layermerge.runtimes.onnx_owners import owner_named, owners_of
from layermerge.runtimes.recording import Operator, Recording
from layermerge.tracing.inputs import Inputs


class TensorRt(OnnxRuntimeBase):
    """An engine built from the exported file. What is timed has its inputs on the GPU already."""

    name = "tensorrt"
    package = "tensorrt"
    extra = "tensorrt"
    copies = 1  # each is built again, which takes minutes

    def _load(self) -> ModuleType:
        if not torch.cuda.is_available():
            raise RuntimeUnavailable(
                "runtime 'tensorrt' needs an NVIDIA GPU, and torch sees none; choose another runtime"
            )
        return super()._load()

    def session(self, path: Path) -> tuple[list[str], Session]:
        trt: Any = self.library
        logger = trt.Logger(trt.Logger.ERROR)
        builder = trt.Builder(logger)
        network = builder.create_network(0)
        parser = trt.OnnxParser(network, logger)
        if not parser.parse_from_file(str(path)):
            raise RuntimeUnavailable(f"TensorRT cannot read the network: {parser.get_error(0)}")
        names = [network.get_input(index).name for index in range(network.num_inputs)]
        return names, _Engines(trt, builder, network, logger)

    def recorded(self, path: Path, inputs: Inputs) -> Recording:
        names, session = self.session(path)
        feed = ServedFile(names, session).feed(inputs.tensors)
        assert isinstance(session, _Engines)
        engine = session.engine_for(feed)
        engine.load(feed)
        return _Profile(self.library, engine, owners_of(path))

    def bound(self, session: Session, feed: Feed) -> Pass:
        assert isinstance(session, _Engines)
        engine = session.engine_for(feed)
        engine.load(feed)
        return engine.execute


@dataclass(frozen=True)
class _Engine:
    """A network built for fixed shapes, and the GPU's memory for its inputs and outputs."""

    context: Any
    engine: Any
    tensors: dict[str, Tensor]
    outputs: Sequence[str]

    def load(self, feed: Feed) -> None:
        for name, array in feed.items():
            self.tensors[name].copy_(torch.from_numpy(array))

    def execute(self) -> None:
        self.context.execute_async_v3(torch.cuda.current_stream().cuda_stream)
        torch.cuda.synchronize()


class _Profile(Recording):
    """What TensorRT's profiler reports of each layer, in the order in which they ran."""

    def __init__(self, trt: Any, engine: _Engine, owners: dict[str, str]) -> None:
        self.engine, self.owners = engine, owners
        self.found: list[Sequence[Operator]] = []
        reported: list[tuple[str, float]] = []

        class Profiler(trt.IProfiler):  # type: ignore[misc]
            """Called for every layer of a pass."""

            def report_layer_time(self, layer_name: str, ms: float) -> None:
                reported.append((layer_name, ms))

        self.reported = reported
        engine.context.profiler = Profiler()

    def __call__(self) -> None:
        self.reported.clear()
        self.engine.execute()
        self.found.append([self._operator(name, ms) for name, ms in self.reported])

    def _operator(self, name: str, ms: float) -> Operator:
        """Layers that were fused are called after all of them."""
        parts = name.split(" + ")
        owners = [owner for part in parts if (owner := owner_named(self.owners, part))]
        return Operator(owners[0] if owners else None, any("conv" in part.lower() for part in parts), ms)

    def passes(self) -> list[Sequence[Operator]]:
        return self.found


class _Engines:
    """Engines by the shapes of their inputs: the last batch of a data set is smaller than the others."""

    def __init__(self, trt: Any, builder: Any, network: Any, logger: Any) -> None:
        self.trt, self.builder, self.network, self.logger = trt, builder, network, logger
        self._built: dict[tuple[tuple[int, ...], ...], _Engine] = {}

    def __call__(self, feed: Feed) -> list[Array]:
        engine = self.engine_for(feed)
        engine.load(feed)
        engine.execute()
        return [engine.tensors[name].cpu().numpy() for name in engine.outputs]

    def engine_for(self, feed: Feed) -> _Engine:
        shapes = tuple(array.shape for array in feed.values())
        if shapes not in self._built:
            self._built[shapes] = self._build(feed)
        return self._built[shapes]

    def _build(self, feed: Feed) -> _Engine:
        config, profile = self.builder.create_builder_config(), self.builder.create_optimization_profile()
        for name, array in feed.items():
            profile.set_shape(name, array.shape, array.shape, array.shape)
        config.add_optimization_profile(profile)
        plan = self.builder.build_serialized_network(self.network, config)
        engine = self.trt.Runtime(self.logger).deserialize_cuda_engine(plan)
        context = engine.create_execution_context()
        tensors = {name: torch.from_numpy(array).cuda() for name, array in feed.items()}
        for name, tensor in tensors.items():
            context.set_input_shape(name, tuple(tensor.shape))
        outputs = [self.network.get_output(index).name for index in range(self.network.num_outputs)]
        for name in outputs:
            tensors[name] = torch.empty(tuple(context.get_tensor_shape(name)), device="cuda")
        for name, tensor in tensors.items():
            context.set_tensor_address(name, tensor.data_ptr())
        return _Engine(context, engine, tensors, outputs)
