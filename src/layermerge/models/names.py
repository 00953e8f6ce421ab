"""Models by name: `timm:NAME`, `torchvision:NAME`, `diffusers:CONFIG_OR_DIR`, `python:module:callable`, `demo:clothes`.

In: a name, perhaps a weights file and an input shape. Out: the module and example inputs for it.
Nothing here unpickles code: weights are safetensors, or a `.pth` read with `weights_only=True`.
"""

from __future__ import annotations

import difflib
import importlib
import inspect
import json
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from types import ModuleType
from typing import Any
from urllib.parse import parse_qsl

import torch
import yaml
from torch import Tensor, nn

from layermerge.errors import ModelError
from layermerge.models.demo import WEIGHTS
from layermerge.models.demo.network import ClothesNet

Shape = tuple[int, ...]
_BATCH = 2
_SEED = 20240721


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


def parse_shape(text: str) -> Shape:
    """Reads '3x224x224', an input's shape without the batch."""
    parts = text.lower().split("x")
    if not all(part.isdigit() and int(part) > 0 for part in parts):
        raise ModelError(f"input shape '{text}' is not of the form 3x224x224 (channels, height, width)")
    return tuple(int(part) for part in parts)


def load_model(name: str, weights: Path | None = None, input_shape: Shape | None = None) -> LoadedModel:
    """Builds a model by its name, loads weights strictly if given, and makes example inputs (batch of 2, seeded)."""
    kind, _, rest = name.partition(":")
    if kind not in _SOURCES or not rest:
        raise ModelError(f"model '{name}' is not of the form {', '.join(f'{source}:...' for source in _SOURCES)}")
    module, own_inputs = _SOURCES[kind](rest)
    if weights is not None:
        load_weights(module, weights)
    return LoadedModel(name, module, own_inputs if input_shape is None else random_input(input_shape))


def random_input(shape: Shape) -> Tensor:
    return torch.randn(_BATCH, *shape, generator=torch.Generator().manual_seed(_SEED))


def load_weights(module: nn.Module, path: Path) -> None:
    """Loads a checkpoint strictly; every missing or unexpected key is an error."""
    if not path.is_file():
        raise ModelError(f"weights file '{path}' does not exist")
    try:
        if path.suffix == ".safetensors":
            from safetensors.torch import load_file

            state = load_file(path)
        else:
            state = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        reason = str(error).splitlines()[0][:160] if str(error) else type(error).__name__
        raise ModelError(
            f"weights file '{path}' cannot be read ({reason}); give a .safetensors file, or a .pth of tensors only"
        ) from error
    if not isinstance(state, dict) or not all(isinstance(value, Tensor) for value in state.values()):
        raise ModelError(f"weights file '{path}' holds no plain state_dict; save model.state_dict() alone")
    wanted = module.state_dict()
    missing, unexpected = sorted(wanted.keys() - state.keys()), sorted(state.keys() - wanted.keys())
    misfits = sorted(key for key in wanted.keys() & state.keys() if wanted[key].shape != state[key].shape)
    for kind, keys in (("lacks", missing), ("has unknown", unexpected), ("has another shape for", misfits)):
        if keys:
            more = f" and {len(keys) - 1} more" if len(keys) > 1 else ""
            raise ModelError(f"weights file '{path}' {kind} '{keys[0]}'{more}; it belongs to another model")
    module.load_state_dict(state)


def import_torchvision() -> ModuleType:
    """Imports torchvision also where its compiled operators do not fit the installed torch (a CUDA wheel beside CPU torch)."""
    try:
        return importlib.import_module("torchvision")
    except RuntimeError as error:
        if "torchvision::nms does not exist" not in str(error):
            raise
    _declare_torchvision_operators()
    for name in [name for name in sys.modules if name.split(".")[0] == "torchvision"]:
        del sys.modules[name]
    return importlib.import_module("torchvision")


@lru_cache(maxsize=1)
def _declare_torchvision_operators() -> Any:
    """The two schemas that torchvision looks up when imported; models and transforms need no more of them."""
    library: Any = torch.library.Library("torchvision", "FRAGMENT")  # type: ignore[no-untyped-call]
    for operator in ("nms", "qnms"):
        library.define(f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    return library


def _require(package: str) -> ModuleType:
    try:
        if package == "torchvision" or importlib.util.find_spec("torchvision"):
            torchvision = import_torchvision()  # timm and diffusers import it themselves
            if package == "torchvision":
                return torchvision
        return importlib.import_module(package)
    except ImportError as error:
        raise ModelError(f"{package} is not installed ({error}); try: pip install 'layermerge[models]'") from error


def import_diffusers() -> ModuleType:
    return _require("diffusers")


def _unknown(source: str, name: str, known: list[str]) -> ModelError:
    close = difflib.get_close_matches(name, known, n=3)
    hint = f"did you mean {', '.join(close)}?" if close else f"it knows {len(known)} models"
    return ModelError(f"{source} has no model '{name}'; {hint}")


def _with_options(text: str, build: Callable[..., nn.Module]) -> nn.Module:
    """Calls `build` with what follows the name: num_classes=10&in_chans=1, values as YAML reads them."""
    try:
        pairs = parse_qsl(text, strict_parsing=True) if text else []
        options = {key: yaml.safe_load(value) for key, value in pairs}
    except (ValueError, yaml.YAMLError) as error:
        raise ModelError(f"'?{text}' is not of the form ?num_classes=10&in_chans=1") from error
    try:
        return build(**options)
    except Exception as error:  # whatever a constructor makes of a wrong option
        if not options:
            raise
        reason = " ".join(str(error).split())[:160]
        raise ModelError(f"the model cannot be built with '?{text}' ({type(error).__name__}: {reason})") from error


def _from_timm(name: str) -> tuple[nn.Module, Any]:
    timm = _require("timm")
    name, _, options = name.partition("?")
    if not timm.is_model(name):
        raise _unknown("timm", name, timm.list_models())
    model = _with_options(options, partial(timm.create_model, name))
    size = getattr(model, "default_cfg", {}).get("input_size")
    return model, random_input((getattr(model, "in_chans", size[0]), *size[1:])) if size else None


def _from_torchvision(name: str) -> tuple[nn.Module, Any]:
    models = _require("torchvision").models
    name, _, options = name.partition("?")
    if name not in models.list_models(module=models):
        raise _unknown("torchvision", name, models.list_models(module=models))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # it announces a change of its random initialisation
        model = _with_options(options, partial(models.get_model, name, weights=None))
    crop = models.get_model_weights(name).DEFAULT.transforms().crop_size[0]
    return model, random_input((3, crop, crop))


def _from_diffusers(name: str) -> tuple[nn.Module, Any]:
    diffusers: Any = import_diffusers()
    path = Path(name)
    config_file = path / "config.json" if path.is_dir() else path
    try:
        config = json.loads(config_file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise ModelError(
            f"'{config_file}' is no diffusers configuration ({error}); give a model directory or its config.json"
        ) from error
    kind: Any = getattr(diffusers, str(config.get("_class_name")), None) if isinstance(config, dict) else None
    if not _is_model_class(kind):
        raise ModelError(f"'{config_file}' names no diffusers model class under '_class_name'")
    try:
        if path.is_dir() and (path / "diffusion_pytorch_model.safetensors").is_file():
            # Without the last argument it advises on stderr to install another package.
            model = kind.from_pretrained(path, use_safetensors=True, local_files_only=True, low_cpu_mem_usage=False)
        else:
            model = kind.from_config(config)
    except Exception as error:
        raise ModelError(f"diffusers cannot build '{name}': {str(error).splitlines()[0][:200]}") from error
    return model, _diffusion_inputs(model)


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


def _from_python(name: str) -> tuple[nn.Module, Any]:
    module_name, _, attribute = name.partition(":")
    if not attribute:
        raise ModelError(f"'python:{name}' is not of the form python:module:callable")
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        module = importlib.import_module(module_name)
    except Exception as error:  # whatever the user's module raises while it is imported
        raise ModelError(
            f"cannot import '{module_name}' ({type(error).__name__}: {error}); run where it can be"
        ) from error
    build = getattr(module, attribute, None)
    if not callable(build):
        raise ModelError(f"module '{module_name}' has no callable '{attribute}'")
    try:
        built = build()
    except Exception as error:
        raise ModelError(f"'{module_name}:{attribute}()' failed: {type(error).__name__}: {error}") from error
    model, inputs = built if isinstance(built, tuple) and len(built) == 2 else (built, None)
    if not isinstance(model, nn.Module):
        raise ModelError(
            f"'{module_name}:{attribute}()' returned {type(model).__name__}; return an nn.Module, or (module, example inputs)"
        )
    return model, inputs


def _from_demo(name: str) -> tuple[nn.Module, Any]:
    if name != "clothes":
        raise _unknown("the demo", name, ["clothes"])
    model = ClothesNet()
    load_weights(model, WEIGHTS)
    return model, random_input((1, 28, 28))


_SOURCES: dict[str, Callable[[str], tuple[nn.Module, Any]]] = {
    "timm": _from_timm,
    "torchvision": _from_torchvision,
    "diffusers": _from_diffusers,
    "python": _from_python,
    "demo": _from_demo,
}
