"""Recipes: everything a run needs to know, as validated data, from Python or from a YAML file.

`Settings` says how a network is compressed; a `RunRecipe` adds which network, on which data, to which budgets. An unknown
key, a wrong type or a value out of range is one line that names the key.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import torch
from pydantic import AfterValidator, BeforeValidator, Field, ValidationError, field_validator

from layermerge.baselines.channel_criteria import Across, Measure
from layermerge.calibration.sample import FEWEST
from layermerge.errors import LayerMergeError, RecipeError, first_line
from layermerge.files import STRICT, UserRecord, first_problem
from layermerge.models import parse_shape
from layermerge.planning.rules import Rules
from layermerge.runs.data_recipe import DataRecipe
from layermerge.runs.yaml_text import LONGEST, read_yaml
from layermerge.runtimes.base import Runtime, RuntimeSettings
from layermerge.runtimes.registry import RUNTIMES, make_runtime
from layermerge.solving.budget import budget_text
from layermerge.tables.bounds import Objective, Stakes, largest_gain, usual_objective
from layermerge.tables.estimators.base import Estimator
from layermerge.tables.estimators.calibrated import Calibrated
from layermerge.tables.estimators.trained import Trained
from layermerge.tables.executors import Executor, LocalProcesses, in_this_process
from layermerge.tables.ray_cluster import RayCluster
from layermerge.tuning.distributed import usable_device
from layermerge.tuning.recipe import Distillation, Recipe

Read = TypeVar("Read")


def _named_rules(value: Any) -> Any:
    """`ours` and `paper` stand for whole sets of rules."""
    named = {"ours": Rules(), "paper": Rules.paper()}
    if not isinstance(value, str):
        return value
    if value not in named:
        raise ValueError(f"unknown rules '{value[:40]}'; write ours, paper, or single rules such as max_kernel: 7")
    return named[value]


def _budget(value: Any) -> str:
    if len(str(value)) > 40:
        raise ValueError("write a budget such as 60%, 1.8x or 12ms")
    return _refused_as_value(budget_text, value)


def _shape(text: str) -> str:
    _refused_as_value(parse_shape, text)
    return text


def _refused_as_value(read: Callable[[Any], Read], value: Any) -> Read:
    """What can be read from a value; pydantic gives a ValueError its place in the recipe."""
    try:
        return read(value)
    except LayerMergeError as error:
        raise ValueError(str(error)) from None


def _device(name: str) -> str:
    """How a device is written; whether it is there is another question, asked on the machine that trains."""
    if not re.fullmatch(r"auto|cpu|(cuda|mps|xpu)(:[0-9]{1,3})?", name):
        raise ValueError(f"there is no device '{name[:40]}'; write cpu, cuda, cuda:1 or auto")
    return name


def _runtime(name: str) -> str:
    if name not in RUNTIMES:
        raise ValueError(f"unknown runtime '{name[:40]}'; choose one of {', '.join(RUNTIMES)}")
    return name


IMPORTANCE = Recipe(steps=100, batch_size=64, lr=0.01)
"""Of copies that are trained, where a recipe says so."""
FINETUNE = Recipe(epochs=10, distill=Distillation(temperature=4.0, weight=0.7), clip_norm=1.0, channels_last=True)
"""The original is available, so the compressed network learns from its answers too; gradients are clipped, since a calibrated
network starts near its goal and a large first step would undo that; laid out as CPUs train fastest.
"""


def _filled(default: Recipe, value: Any) -> Any:
    """Keys that a part leaves out keep their defaults, so that naming one key does not change the others."""
    if not isinstance(value, dict):
        return value
    known = default.model_dump(exclude_unset=True)
    if value.keys() & {"epochs", "steps"}:  # either says how long
        known = {key: stated for key, stated in known.items() if key not in ("epochs", "steps")}
    return known | value


def _importance(value: Any) -> Any:
    """`calibrated` stands for no training, `trained` for the usual one."""
    if isinstance(value, str) and value not in ("calibrated", "trained"):
        raise ValueError(f"importance is '{value[:40]}'; write calibrated, trained, or how copies are trained")
    return {"calibrated": None, "trained": IMPORTANCE}[value] if isinstance(value, str) else _filled(IMPORTANCE, value)


def _none(value: Any) -> Any:
    """`finetune: none` leaves it out."""
    return None if value == "none" else value


BudgetText = Annotated[str, BeforeValidator(_budget)]
Device = Annotated[str, AfterValidator(_device)]


class Settings(UserRecord):
    """How a network is compressed: settings for each stage."""

    model_config = STRICT

    method: str = "layermerge"
    """layermerge, depth, layeronly, sequential, channels, channels+layermerge and so on, or student."""
    rules: Annotated[Rules, BeforeValidator(_named_rules)] = Rules()
    """What may be removed and merged; in a recipe also `ours`, `paper`, or single rules."""
    free_size: bool = False
    """Keep height and width of the images free, in the compressed network and its file; latency is that of the size given."""
    runtime: Annotated[str, AfterValidator(_runtime)] = "onnxruntime"
    """The runtime that will serve the network: torch, torch-compile, onnxruntime, onnxruntime-int8, openvino, openvino-int8
    or tensorrt.
    """
    threads: int = Field(default=1, ge=1, le=1024)
    """Threads that the runtime may use."""
    runtime_device: Device = "cpu"
    """Where latency is measured: cpu or cuda."""
    runtime_dtype: str = "float32"
    """What the runtime computes in: float32, float16 or bfloat16; a runtime refuses what it does not support."""
    channels_last: bool = False
    """Whether feature maps are laid out channels last; torch only."""
    batch_size: int = Field(default=1, ge=1, le=65_536)
    """The batch whose latency is measured."""
    importance: Annotated[Recipe | None, BeforeValidator(_importance)] = None
    """How a copy is trained for each entry of the importance table. By default, or with `calibrated`, there is no training:
    entries are fitted to the original in closed form and compared with it.
    """
    calibrate: int = Field(default=512, ge=0, le=1_000_000)
    """How many training images the chosen network is fitted to the original on before fine-tuning; 0 for no fit."""
    finetune: Annotated[Recipe | None, BeforeValidator(partial(_filled, FINETUNE)), BeforeValidator(_none)] = FINETUNE
    """How the chosen network is trained; `none` for no training."""
    device: Device = "cpu"
    """Where networks are trained: cpu, cuda or auto. Latency is measured where the runtime runs."""
    objective: Objective = Field(default_factory=lambda known: _usual_objective(known["importance"]))
    """What is summed over candidates: exp of the change of the score, as in the paper, or the change itself (delta). By
    default exp where copies are trained, and delta where divergences from the original are estimated."""
    label: str = Field(default="plain", max_length=100, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    """Names this way of fine-tuning: runs that differ in nothing else share tables and choices."""
    license: str | None = Field(default=None, max_length=100, pattern=r"^[A-Za-z0-9][A-Za-z0-9 .,+()-]*$")
    """Of the weights, such as apache-2.0, for the model card; where it is not stated, the card says so."""
    first_budget: BudgetText | None = None
    """The budget of the first stage, for methods with two; by default both stages take the same share."""
    channel_measure: Measure = "magnitude"
    """By what `channels` ranks: magnitude of the weights, geometric distance, scale of the norms, or taylor, by gradients."""
    channel_ranking: Across = "layer"
    """Whether `channels` takes the same share of each layer, or the weakest of the whole network."""
    executor: Literal["local", "ray"] = "local"
    """Where importance is measured: in processes of this machine, or on a Ray cluster."""
    workers: int = Field(default=1, ge=1, le=256)
    """Processes that measure importance, with the local executor."""
    address: str = "local"
    """The Ray cluster to use."""
    gpus_per_worker: float = Field(default=0.0, ge=0, le=64)
    """With Ray: GPUs for each entry; may be a fraction."""

    @field_validator("calibrate")
    @classmethod
    def _enough_images(cls, value: int) -> int:
        if 0 < value < FEWEST:
            raise ValueError(
                f"{value} images are too few to calibrate with; give at least {FEWEST}, or 0 to leave it out"
            )
        return value

    @property
    def estimator(self) -> Estimator:
        return Calibrated() if self.importance is None else Trained(self.importance)

    @property
    def objective_is_usual(self) -> bool:
        """Whether it is the default."""
        return self.objective == _usual_objective(self.importance)

    def stakes(self, ceiling: float = 1.0) -> Stakes:
        """What a merge could earn, where no network of the task scores more than `ceiling`."""
        return Stakes(self.objective, 0.0 if self.importance is None else largest_gain(ceiling))

    def require_machine(self) -> None:
        """Raises if this machine lacks the runtime or the device, before hours are spent on earlier steps."""
        self.make_runtime()
        try:
            torch.empty(0, device=usable_device(self.device))
        except (RuntimeError, AssertionError) as error:
            raise RecipeError(
                f"device '{self.device}' cannot be used here: {first_line(error)}; set device: cpu"
            ) from error

    @property
    def serves_float16(self) -> bool:
        """Whether what is served is a float16 file."""
        return RUNTIMES[self.runtime].reads_onnx and self.runtime_dtype == "float16"

    def make_runtime(self) -> Runtime:
        how = RuntimeSettings(self.threads, self.runtime_device, self.runtime_dtype, self.channels_last)
        return make_runtime(self.runtime, how)

    def make_executor(self) -> Executor:
        if self.executor == "ray":
            return RayCluster(self.address, self.gpus_per_worker)
        return LocalProcesses(self.workers) if self.workers > 1 else in_this_process


def _usual_objective(importance: Recipe | None) -> Objective:
    return usual_objective("calibrated" if importance is None else "trained")


class RunRecipe(Settings):
    """A whole run: the network, the data, the budgets, and how. A run that Python started names neither of the first two."""

    model: str | None = Field(default=None, max_length=1000)
    weights: Path | None = None
    input: Annotated[str, AfterValidator(_shape)] | None = None
    data: DataRecipe | None = None
    budgets: tuple[BudgetText, ...] = Field(default=("60%",), min_length=1)

    @field_validator("data", mode="before")
    @classmethod
    def _short_form(cls, value: Any) -> Any:
        """`data: cifar10:PATH` says no more than the source."""
        return {"source": value} if isinstance(value, str) else value

    @staticmethod
    def of(settings: Settings, data: DataRecipe | None = None) -> RunRecipe:
        recipe = RunRecipe.model_validate(settings.model_dump(exclude_unset=True))
        return recipe if data is None else recipe.model_copy(update={"data": data})

    @property
    def settings(self) -> Settings:
        return Settings.model_validate({name: getattr(self, name) for name in Settings.model_fields})

    def require_model(self) -> str:
        if self.model is None:
            raise RecipeError("model: is missing; give it in the recipe or as --model timm:NAME")
        return self.model

    def require_data(self) -> DataRecipe:
        if self.data is None:
            raise RecipeError(
                "data: is missing; give it in the recipe or as --data imagefolder:PATH, without labels as --images DIR"
            )
        return self.data


_HOW_LONG = {"epochs": "steps", "steps": "epochs"}


def read_recipe(path: Path | None, changes: dict[str, Any] | None = None) -> RunRecipe:
    """Reads a recipe file, if any, with changes that override it; keys of parts are written `finetune.lr`."""
    document = {} if path is None else _read_mapping(path)
    for key, value in (changes or {}).items():
        _place(document, key, value)
        part, _, last = key.rpartition(".")
        other = f"{part}.{_HOW_LONG.get(last)}"
        if last in _HOW_LONG and isinstance(document.get(part), dict) and other not in (changes or {}):
            document[part].pop(_HOW_LONG[last], None)  # either says how long, and the change goes before the file
    where = f"recipe '{path}'" if path is not None else "the run"
    try:
        return RunRecipe.model_validate(document)
    except ValidationError as error:
        raise RecipeError(f"{where}: {first_problem(error)}") from None
    except LayerMergeError as error:  # of rules or statistics that contradict themselves
        raise RecipeError(f"{where}: {error}") from None


def _read_mapping(path: Path) -> dict[str, Any]:
    try:
        with path.open(encoding="utf-8") as file:
            text = file.read(LONGEST + 1)
    except UnicodeDecodeError:
        raise RecipeError(f"recipe '{path}' is not a text file in UTF-8") from None
    except OSError as error:
        raise RecipeError(f"recipe '{path}' cannot be read: {error.strerror or error}") from error
    try:
        document = read_yaml(text)
    except ValueError as error:
        raise RecipeError(f"recipe '{path}' {error}") from error
    if not isinstance(document, dict):
        raise RecipeError(f"recipe '{path}' is not a mapping of keys to values; begin with model: timm:NAME")
    return document


def read_value(text: str, where: str) -> Any:
    """A value as YAML writes it; `where` is what messages call it."""
    try:
        return read_yaml(text)
    except ValueError as error:
        raise RecipeError(f"{where[:60]}: '{text[:60]}' {error}") from None


def _place(document: dict[str, Any], key: str, value: Any) -> None:
    *parts, last = key.split(".")
    for part in parts:
        inner = document.get(part)
        if part == "data" and isinstance(inner, str):
            inner = {"source": inner}
        if not isinstance(inner, (dict, type(None))):
            raise RecipeError(f"{key}: {part} is not a mapping, so it has no key {last}")
        inner = dict(inner or {})  # a copy: with an alias, another part may be the same object
        document[part], document = inner, inner
    document[last] = value
