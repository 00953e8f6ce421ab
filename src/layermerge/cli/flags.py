"""Flags that several verbs share: which network, which data, and how; each goes before what the recipe says."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

if TYPE_CHECKING:
    from layermerge.runs.directory import RunDirectory
    from layermerge.runs.recipe import RunRecipe

ModelArgument = Annotated[
    str,
    typer.Argument(
        metavar="MODEL",
        help="timm:NAME, torchvision:NAME, onnx:FILE, diffusers:CONFIG_OR_DIR, python:module:callable, ...",
    ),
]
RunArgument = Annotated[Path, typer.Argument(metavar="RUN_DIR", help="The run directory.")]
PlaceOption = Annotated[
    Path | None, typer.Option("--run-dir", metavar="DIR", help="Where results go; runs/NAME OF THE RECIPE by default.")
]
RecipeArgument = Annotated[Path | None, typer.Argument(metavar="RECIPE", help="A recipe file; flags go before it.")]
RecipeOption = Annotated[Path | None, typer.Option("--recipe", metavar="FILE", help="A recipe file.")]
WeightsOption = Annotated[Path | None, typer.Option(help="A .safetensors file, or a .pth of tensors; loaded strictly.")]
InputOption = Annotated[
    str | None, typer.Option("--input", metavar="CxHxW", help="Input shape without the batch, such as 3x224x224.")
]
BudgetOption = Annotated[
    str | None, typer.Option("--budget", help="60% or 0.6, 1.8x or 12ms; that of the recipe by default.")
]
LabelOption = Annotated[str | None, typer.Option("--label", help="Which fine-tuning; that of the recipe by default.")]
MethodOption = Annotated[
    str | None, typer.Option("--method", help="layermerge, depth, layeronly, sequential, channels, student, ...")
]

_SHARED: dict[str, tuple[str, Any]] = {
    "model": (
        "model",
        Annotated[str | None, typer.Option("--model", metavar="MODEL", help="The network, named as for plan.")],
    ),
    "weights": ("weights", WeightsOption),
    "input": ("input", InputOption),
    "free_size": (
        "free_size",
        Annotated[
            bool | None,
            typer.Option("--free-size", help="Keep height and width free; tables are of the size given."),
        ],
    ),
    "data": (
        "data.source",
        Annotated[
            str | None,
            typer.Option(
                "--data",
                metavar="SOURCE",
                help="imagefolder:PATH, cifar10:PATH, fashion-mnist:PATH, npz:PATH or embedded.",
            ),
        ],
    ),
    "images": (
        "data.images",
        Annotated[
            Path | None,
            typer.Option("--images", metavar="DIR", help="A folder of images without labels, instead of --data."),
        ],
    ),
    "budget": (
        "budgets",
        Annotated[list[str] | None, typer.Option("--budget", help="60% or 0.6, 1.8x or 12ms; repeatable.")],
    ),
    "method": ("method", MethodOption),
    "label": ("label", LabelOption),
    "finetune": (
        "finetune",
        Annotated[
            str | None,
            typer.Option("--finetune", metavar="none", help="none: no training, the network stays as calibrated."),
        ],
    ),
    "license": (
        "license",
        Annotated[
            str | None,
            typer.Option("--license", metavar="NAME", help="Of the weights, for the model card, such as apache-2.0."),
        ],
    ),
    "runtime": ("runtime", Annotated[str | None, typer.Option("--runtime", help="torch, onnxruntime, openvino, ...")]),
    "batch": ("batch_size", Annotated[int | None, typer.Option("--batch", "-b", min=1, help="Batch size to time.")]),
    "threads": ("threads", Annotated[int | None, typer.Option("--threads", min=1, help="Threads of the runtime.")]),
    "runtime_device": (
        "runtime_device",
        Annotated[str | None, typer.Option("--runtime-device", help="Where the runtime runs: cpu or cuda.")],
    ),
    "dtype": (
        "runtime_dtype",
        Annotated[
            str | None,
            typer.Option("--dtype", help="What the runtime computes in: float32, float16 or bfloat16."),
        ],
    ),
    "channels_last": (
        "channels_last",
        Annotated[
            bool | None,
            typer.Option("--channels-last/--no-channels-last", help="The layout of feature maps, in torch."),
        ],
    ),
    "workers": (
        "workers",
        Annotated[int | None, typer.Option("--workers", min=1, help="Processes that measure importance.")],
    ),
    "executor": (
        "executor",
        Annotated[str | None, typer.Option("--executor", help="local, or ray for many machines.")],
    ),
    "address": (
        "address",
        Annotated[str | None, typer.Option("--address", help="The Ray cluster; by default one of its own here.")],
    ),
}
"""By parameter: the recipe's key, and how it is written on the command line."""
RUNTIME = ("runtime", "batch", "threads", "runtime_device", "dtype", "channels_last")
"""The runtime and its settings, which a latency table belongs to."""
_SET = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Any key of the recipe, such as finetune.lr=0.01; repeatable."),
]
_PYTHON = Annotated[bool, typer.Option("--allow-python", help="Let a recipe name a model as python:module:callable.")]


@dataclass(frozen=True)
class Flags:
    """What the command line says instead of the recipe."""

    changes: dict[str, Any]
    allow_python: bool = False

    def words(self, key: str) -> list[str]:
        """A key of the recipe as it was given, for a command that continues from here."""
        flag = next(name for name, (own, _) in _SHARED.items() if own == key)
        given = self.changes.get(key, [])
        return [word for value in (given if isinstance(given, list) else [given]) for word in (f"--{flag}", str(value))]

    def recipe(self, place: Path | None, given: Path | None = None) -> RunRecipe:
        """The recipe of a file or of the run directory, with what the flags say instead."""
        from layermerge.runs.directory import RunDirectory

        return self.recipe_of(None if place is None else RunDirectory(place), given)

    def recipe_of(self, directory: RunDirectory | None, given: Path | None) -> RunRecipe:
        from layermerge.errors import RecipeError
        from layermerge.runs.recipe_file import run_recipe

        chosen = run_recipe(directory, given, self.changes)
        named = chosen.model or ""
        if named.startswith("python:") and not (self.allow_python or "model" in self.changes):
            raise RecipeError(
                f"the recipe names code to run ('{named}'); allow it with --allow-python, if you trust it"
            )
        return chosen


def takes(*names: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Adds shared flags to a verb, which gets them as its argument `flags`."""

    def decorate(verb: Callable[..., None]) -> Callable[..., None]:
        hints = get_type_hints(verb, include_extras=True)
        own = [
            parameter.replace(annotation=hints[name])
            for name, parameter in inspect.signature(verb).parameters.items()
            if name != "flags"
        ]
        kinds = {name: _SHARED[name][1] for name in names} | {"set": _SET, "allow_python": _PYTHON}
        shared = [
            inspect.Parameter(
                name, inspect.Parameter.KEYWORD_ONLY, default=False if name == "allow_python" else None, annotation=kind
            )
            for name, kind in kinds.items()
        ]

        @wraps(verb)
        def call(**given: Any) -> None:
            settings, allowed = given.pop("set"), bool(given.pop("allow_python"))
            changes = {_SHARED[name][0]: given.pop(name) for name in names}
            stated = {key: str(value) if isinstance(value, Path) else value for key, value in changes.items()}
            stated = {key: value for key, value in stated.items() if value is not None and value != []}
            _require_one_source(stated)
            verb(**given, flags=Flags(stated | _read_settings(settings or []), allowed))

        parameters = [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in own] + shared
        call.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        call.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        return call

    return decorate


def _require_one_source(stated: dict[str, Any]) -> None:
    from layermerge.errors import RecipeError

    if "data.source" in stated and "data.images" in stated:
        raise RecipeError("--data and --images both say on which images; give one of them")


def _read_settings(settings: list[str]) -> dict[str, Any]:
    from layermerge.errors import RecipeError
    from layermerge.runs.recipe import read_value

    changes = {}
    for setting in settings:
        key, equals, text = setting.partition("=")
        if not equals or not key:
            raise RecipeError(f"--set {setting}: write KEY=VALUE, such as finetune.lr=0.01")
        changes[key.strip()] = read_value(text, f"--set {setting}")
    return changes
