"""Alone: networks that are loaded without the class that they came from.

In: a `.pt2` or `.onnx` file, or a directory of a saved network that holds one. Out: a module in eval mode, whose weights are
those of the file to the bit. A file that is not of the network saved beside it is refused.
"""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import nn

from layermerge.errors import ArtifactError
from layermerge.onnx_in.importing import from_onnx
from layermerge.pt2_in.reading import from_pt2
from layermerge.runs.directory import NetworkDirectory


def load_alone(path: Path) -> nn.Module:
    """A network from a file that holds all of it, or from a directory with such a file: `model.pt2` before `model.onnx`."""
    if not path.exists():
        raise ArtifactError(f"'{path}' does not exist; give the directory of a saved network, or a .pt2 or .onnx file")
    if path.is_file():
        return _read(path)
    place = NetworkDirectory(path)
    file = next((each for each in (place.program, place.exported) if each.is_file()), None)
    if file is None:
        raise ArtifactError(_advice(place))
    module = _read(file)
    _require_same_weights(module, file, place)
    return module


def _read(file: Path) -> nn.Module:
    if file.suffix not in (".pt2", ".onnx"):
        raise ArtifactError(
            f"'{file}' does not hold a whole network; give a .pt2 or .onnx file, or a directory and the original model"
        )
    module: nn.Module = from_pt2(file) if file.suffix == ".pt2" else from_onnx(file)
    return module.eval()


def _advice(place: NetworkDirectory) -> str:
    if not place.holds_network:
        return f"'{place.path}' holds no saved network; give the directory of one, or a .pt2 or .onnx file"
    return (
        f"'{place.path}' holds weights but not the network around them, so its class is needed: "
        "layermerge.load(directory, model) with a fresh instance of the original, "
        f"or export it once to '{place.program.name}' there, which loads alone"
    )


def _require_same_weights(module: nn.Module, file: Path, place: NetworkDirectory) -> None:
    """Weights that have the same name in both must be the same; an ONNX file has names of its own for some."""
    if not place.weights.is_file():
        return
    try:
        saved = load_file(place.weights)
    except (SafetensorError, OSError) as error:
        raise ArtifactError(f"'{place.weights}' cannot be read ({error}); it is truncated") from error
    for name, tensor in module.state_dict().items():
        other = saved.get(name)
        if other is not None and other.shape == tensor.shape and not torch.equal(other, tensor):
            raise ArtifactError(
                f"'{file}' holds another network than '{place.weights.name}' next to it ('{name}' differs); export it again"
            )
