"""Models by name: `timm:NAME`, `torchvision:NAME`, `diffusers:CONFIG_OR_DIR`, `python:module:callable`, `onnx:FILE`,
`demo:clothes`.

In: a name, perhaps a weights file and an input shape. Out: the module and example inputs for it.
Guarantees: no file that a name or an option refers to is unpickled; only `python:` runs code of the user's.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from layermerge.errors import ModelError
from layermerge.models.demo import WEIGHTS
from layermerge.models.demo.network import ClothesNet
from layermerge.models.inputs import Shape, random_input
from layermerge.models.libraries import from_diffusers, from_timm, from_torchvision, unknown_model
from layermerge.models.user_code import from_python
from layermerge.models.weights import load_weights
from layermerge.onnx_in.importing import from_onnx


@dataclass(frozen=True)
class LoadedModel:
    """A model and the inputs it runs on: what the caller asked for, or what the model says of itself, or None."""

    name: str
    module: nn.Module
    known_inputs: Any

    @property
    def example_inputs(self) -> Any:
        if self.known_inputs is None:
            raise ModelError(
                f"model '{self.name}' does not say what it takes; pass its input shape, for instance --input 3x224x224"
            )
        return self.known_inputs


def _from_demo(name: str) -> tuple[nn.Module, Any]:
    if name != "clothes":
        raise unknown_model("the demo", name, ["clothes"])
    model = ClothesNet()
    load_weights(model, WEIGHTS)
    return model, random_input((1, 28, 28))


def _from_onnx(name: str, shape: Shape | None = None) -> tuple[nn.Module, Any]:
    """Its example inputs are those that the file says; where it leaves height and width free, the caller does."""
    network = from_onnx(name, shape)
    shapes = [port.image_shape for port in network.file_interface.inputs]
    inputs = tuple(random_input(shape) for shape in shapes if shape is not None)
    if len(inputs) < len(shapes):
        return network, None
    return network, inputs if len(inputs) > 1 else inputs[0]


_SOURCES: dict[str, Callable[[str], tuple[nn.Module, Any]]] = {
    "timm": from_timm,
    "torchvision": from_torchvision,
    "diffusers": from_diffusers,
    "python": from_python,
    "onnx": _from_onnx,
    "demo": _from_demo,
}


def load_model(name: str, weights: Path | None = None, input_shape: Shape | None = None) -> LoadedModel:
    """Builds a model by its name, loads weights strictly if given, and makes example inputs (batch of 2, seeded)."""
    kind, _, rest = name.partition(":")
    if kind not in _SOURCES or not rest:
        raise ModelError(f"model '{name[:80]}' is not of the form {', '.join(f'{source}:...' for source in _SOURCES)}")
    module, own_inputs = _from_onnx(rest, input_shape) if kind == "onnx" else _SOURCES[kind](rest)
    if weights is not None:
        load_weights(module, weights)
    return LoadedModel(name, module, own_inputs if input_shape is None else random_input(input_shape))
