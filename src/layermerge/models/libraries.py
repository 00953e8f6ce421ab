"""Models of libraries: `timm:NAME`, `torchvision:NAME`, `diffusers:CONFIG_OR_DIR`. Each gives the module and example inputs."""

from __future__ import annotations

import difflib
import importlib.util
import inspect
import json
import warnings
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from packaging.version import Version
from torch import Tensor, nn

from layermerge.errors import ModelError, first_line
from layermerge.models.inputs import random_input
from layermerge.models.options import parse_options
from layermerge.models.torchvision_operators import import_library, import_torchvision
from layermerge.tracing.quiet import quiet_loggers

_SAFE_TIMM = Version("1.0.26")
"""The first that reads downloaded weights without running code in them."""


def unknown_model(source: str, name: str, known: list[str]) -> ModelError:
    close = difflib.get_close_matches(name, known, n=3)
    hint = f"did you mean {', '.join(close)}?" if close else f"it knows {len(known)} models"
    return ModelError(f"{source} has no model '{name}'; {hint}")


def _built(name: str, build: Callable[..., nn.Module], options: dict[str, Any]) -> nn.Module:
    try:
        # Each failed try of a download would be a line; the error that ends them says enough.
        with quiet_loggers(), warnings.catch_warnings():
            warnings.simplefilter(
                "ignore", FutureWarning
            )  # torchvision announces a change of its random initialisation
            return build(**options)
    except Exception as error:  # whatever a constructor makes of a wrong option
        advice = "; load weights from a file with --weights" if options.get("pretrained") else ""
        raise ModelError(
            f"model '{name}' cannot be built: {type(error).__name__}: {first_line(error)}{advice}"
        ) from error


def from_timm(name: str) -> tuple[nn.Module, Any]:
    timm = import_library("timm")
    arch, _, text = name.partition("?")
    if not timm.is_model(arch):
        raise unknown_model("timm", arch, timm.list_models())
    options = parse_options(text)
    if options.get("pretrained") and Version(timm.__version__) < _SAFE_TIMM:
        raise ModelError(f"timm {timm.__version__} may run code in weights that it downloads; upgrade to {_SAFE_TIMM}")
    model = _built(f"timm:{name}", lambda **given: timm.create_model(arch, **given), options)
    size = getattr(model, "default_cfg", {}).get("input_size")
    return model, random_input((getattr(model, "in_chans", size[0]), *size[1:])) if size else None


def from_torchvision(name: str) -> tuple[nn.Module, Any]:
    models = import_torchvision().models
    arch, _, text = name.partition("?")
    if arch not in models.list_models(module=models):
        raise unknown_model("torchvision", arch, models.list_models(module=models))
    options = parse_options(text)
    if "pretrained" in options:  # it unpickles what it downloads
        raise ModelError(f"model 'torchvision:{name}': pretrained is refused; load weights from a file with --weights")
    model = _built(f"torchvision:{name}", lambda **given: models.get_model(arch, weights=None, **given), options)
    crop = models.get_model_weights(arch).DEFAULT.transforms().crop_size[0]
    return model, random_input((3, crop, crop))


def import_diffusers() -> ModuleType:
    if importlib.util.find_spec("torchvision"):
        import_torchvision()  # diffusers imports its parts when they are asked for, and torchvision with them
    return import_library("diffusers")


def from_diffusers(name: str) -> tuple[nn.Module, Any]:
    diffusers: Any = import_diffusers()
    path = Path(name)
    config_file = path / "config.json" if path.is_dir() else path
    try:
        config = json.loads(config_file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ModelError(
            f"'{config_file}' is not a diffusers configuration ({first_line(error)}); give a model directory or its config.json"
        ) from error
    kind: Any = getattr(diffusers, str(config.get("_class_name")), None) if isinstance(config, dict) else None
    if not _is_model_class(kind):
        raise ModelError(f"'{config_file}' does not name a diffusers model class under '_class_name'")
    try:
        if path.is_dir() and (path / "diffusion_pytorch_model.safetensors").is_file():
            # Without the last argument it advises on stderr to install another package.
            model = kind.from_pretrained(path, use_safetensors=True, local_files_only=True, low_cpu_mem_usage=False)
        else:
            model = kind.from_config(config)
        return model, _diffusion_inputs(model)
    except Exception as error:
        raise ModelError(f"diffusers cannot build '{name}': {first_line(error)}") from error


def _is_model_class(kind: object) -> bool:
    return inspect.isclass(kind) and issubclass(kind, nn.Module) and hasattr(kind, "from_config")


def _diffusion_inputs(model: nn.Module) -> tuple[Tensor, ...] | None:
    """Sample, time steps and, where forward() asks for it, the text that conditions it: sizes from the configuration."""
    config: Any = model.config
    size = config.get("sample_size")
    if not isinstance(size, int) or "timestep" not in inspect.signature(model.forward).parameters:
        return None
    inputs = [random_input((config["in_channels"], size, size)), torch.tensor([10, 500])]
    if "encoder_hidden_states" in inspect.signature(model.forward).parameters:
        width = config["cross_attention_dim"]
        inputs.append(random_input((77, width if isinstance(width, int) else width[0])))
    return tuple(inputs)
