"""The FID extractor computed by OpenVINO: the same features, in less than half the time on one thread."""

from __future__ import annotations

from pathlib import Path

import openvino
import torch
from torch import Tensor

from layermerge.sampling.quality import TorchScriptExtractor

_SETTINGS = {"INFERENCE_NUM_THREADS": 1, "INFERENCE_PRECISION_HINT": "f32"}


class OpenVinoExtractor(TorchScriptExtractor):
    """A network in a TorchScript file, as any other but for who computes it: in float32, on one thread."""

    def __init__(self, path: str | Path, side: int = 299) -> None:
        super().__init__(path, side)
        model = openvino.convert_model(self.network, example_input=torch.zeros(1, 3, side, side))
        compiled = openvino.Core().compile_model(model, "CPU", _SETTINGS)

        def network(shown: Tensor) -> Tensor:
            return torch.from_numpy(compiled(shown.contiguous().numpy())[0])

        self.network = network
        self.name += f" openvino {openvino.__version__}"
