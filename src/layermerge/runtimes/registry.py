"""Runtimes by name."""

from __future__ import annotations

from layermerge.errors import RuntimeUnavailable
from layermerge.runtimes.base import Runtime, RuntimeSettings
from layermerge.runtimes.int8_runtimes import OnnxRuntimeInt8, OpenVinoInt8
from layermerge.runtimes.onnx_runtime import OnnxRuntime
from layermerge.runtimes.openvino_runtime import OpenVino
from layermerge.runtimes.tensorrt_runtime import TensorRt
from layermerge.runtimes.torch_eager import TorchCompile, TorchEager

RUNTIMES: dict[str, type[Runtime]] = {
    kind.name: kind
    for kind in (TorchEager, TorchCompile, OnnxRuntime, OnnxRuntimeInt8, OpenVino, OpenVinoInt8, TensorRt)
}


def make_runtime(name: str | Runtime, settings: RuntimeSettings | None = None) -> Runtime:
    """The runtime of that name, ready to build; one clear error where it cannot run here. A runtime is taken as it is."""
    if isinstance(name, Runtime):
        return name
    if name not in RUNTIMES:
        raise RuntimeUnavailable(f"unknown runtime '{name}'; choose one of {', '.join(RUNTIMES)}")
    return RUNTIMES[name](settings or RuntimeSettings())
