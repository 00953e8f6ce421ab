"""Models: networks by name, and the one that ships with the package."""

from layermerge.models.inputs import parse_shape, random_input
from layermerge.models.libraries import import_diffusers
from layermerge.models.names import LoadedModel, load_model
from layermerge.models.torchvision_operators import import_torchvision
from layermerge.models.weights import load_weights

__all__ = [
    "LoadedModel",
    "import_diffusers",
    "import_torchvision",
    "load_model",
    "load_weights",
    "parse_shape",
    "random_input",
]
