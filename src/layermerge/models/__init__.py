"""Models: networks by name, and the one that ships with the package."""

from layermerge.models.names import (
    LoadedModel,
    import_diffusers,
    import_torchvision,
    load_model,
    load_weights,
    parse_shape,
    random_input,
)

__all__ = [
    "LoadedModel",
    "import_diffusers",
    "import_torchvision",
    "load_model",
    "load_weights",
    "parse_shape",
    "random_input",
]
