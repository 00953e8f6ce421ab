"""TensorRT, through ONNX; needs a GPU, and says so where there is none."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from layermerge.errors import RuntimeUnavailable
from layermerge.runtimes.onnx_file import OnnxRuntimeBase


class TensorRt(OnnxRuntimeBase):
    """An engine built from the exported file, fed with tensors that are on the GPU already."""

    name = "tensorrt"
    package = "tensorrt"
    extra = "tensorrt"

    def _load(self) -> ModuleType:
        if not torch.cuda.is_available():
            raise RuntimeUnavailable(
                "runtime 'tensorrt' needs an NVIDIA GPU, and torch sees none; choose another runtime"
            )
        return super()._load()

    def session(self, path: Path) -> tuple[list[str], Any]:
        trt: Any = self.library
        logger = trt.Logger(trt.Logger.ERROR)
        builder = trt.Builder(logger)
        network = builder.create_network(0)
        parser = trt.OnnxParser(network, logger)
        if not parser.parse_from_file(str(path)):
            raise RuntimeUnavailable(f"TensorRT cannot read the network: {parser.get_error(0)}")
        names = [network.get_input(index).name for index in range(network.num_inputs)]
        outputs = [network.get_output(index).name for index in range(network.num_outputs)]

        def run(feed: dict[str, Any]) -> None:
            if not state:
                state.update(self._start(trt, builder, network, logger, feed, outputs))
            state["context"].execute_async_v3(torch.cuda.current_stream().cuda_stream)
            torch.cuda.synchronize()

        state: dict[str, Any] = {}
        return names, run

    @staticmethod
    def _start(
        trt: Any, builder: Any, network: Any, logger: Any, feed: dict[str, Any], outputs: list[str]
    ) -> dict[str, Any]:
        """Builds the engine for the shapes of the first pass and binds its tensors."""
        config, profile = builder.create_builder_config(), builder.create_optimization_profile()
        for name, array in feed.items():
            profile.set_shape(name, array.shape, array.shape, array.shape)
        config.add_optimization_profile(profile)
        engine = trt.Runtime(logger).deserialize_cuda_engine(builder.build_serialized_network(network, config))
        context = engine.create_execution_context()
        tensors = {name: torch.from_numpy(array).cuda() for name, array in feed.items()}
        for name, tensor in tensors.items():
            context.set_input_shape(name, tuple(tensor.shape))
        for name in outputs:
            tensors[name] = torch.empty(tuple(context.get_tensor_shape(name)), device="cuda")
        for name, tensor in tensors.items():
            context.set_tensor_address(name, tensor.data_ptr())
        return {"context": context, "engine": engine, "tensors": tensors}
