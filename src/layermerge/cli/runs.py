"""The verbs that need a network and data: importance, finetune, compress, compare.

They share a recipe: a file, flags that go before it, or what an earlier verb left in the run directory.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from layermerge.cli.app import InputOption, JsonOption, WeightsOption, app, print_json

if TYPE_CHECKING:
    from layermerge.runs.recipe import RunRecipe
    from layermerge.runs.steps import Run

RECIPE = "recipe.yaml"
UNMERGED = "unmerged"
"""Where a fine-tuned network is saved before it is merged, beside the merged one."""

RecipeArgument = Annotated[Path | None, typer.Argument(metavar="[RECIPE]", help="A recipe file; flags go before it.")]
RecipeOption = Annotated[Path | None, typer.Option("--recipe", metavar="FILE", help="A recipe file.")]
PlaceArgument = Annotated[Path, typer.Argument(metavar="RUN_DIR", help="The run directory.")]
PlaceOption = Annotated[
    Path | None, typer.Option("--run-dir", metavar="DIR", help="Where results go; runs/NAME OF THE RECIPE by default.")
]
ModelFlag = Annotated[str | None, typer.Option("--model", metavar="MODEL", help="The network, named as for plan.")]
DataFlag = Annotated[
    str | None,
    typer.Option(
        "--data", metavar="SOURCE", help="imagefolder:PATH, cifar10:PATH, fashion-mnist:PATH, npz:PATH or embedded."
    ),
]
RuntimeFlag = Annotated[str | None, typer.Option("--runtime", help="torch, onnxruntime, openvino, ...")]
SetFlag = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Any key of the recipe, such as finetune.lr=0.01; repeatable."),
]
PythonFlag = Annotated[
    bool, typer.Option("--allow-python", help="Let a recipe name a model as python:module:callable.")
]
BudgetFlag = Annotated[list[str] | None, typer.Option("--budget", help="60%, 1.8x or 12ms; repeatable.")]
MethodFlag = Annotated[
    str | None, typer.Option("--method", help="layermerge, depth, layeronly, sequential, channels, student, ...")
]
WorkersFlag = Annotated[int | None, typer.Option("--workers", min=1, help="Processes that measure importance.")]
ExecutorFlag = Annotated[str | None, typer.Option("--executor", help="local, or ray for many machines.")]
AddressFlag = Annotated[str | None, typer.Option("--address", help="The Ray cluster; by default one of its own here.")]


@app.command()
def importance(
    run_dir: PlaceArgument,
    recipe: RecipeOption = None,
    model: ModelFlag = None,
    weights: WeightsOption = None,
    input: InputOption = None,
    data: DataFlag = None,
    method: MethodFlag = None,
    workers: WorkersFlag = None,
    executor: ExecutorFlag = None,
    address: AddressFlag = None,
    shard: Annotated[str | None, typer.Option(help="Measure part 2/4 only, into a file of its own.")] = None,
    set: SetFlag = None,
    allow_python: PythonFlag = False,
    as_json: JsonOption = False,
) -> None:
    """Measure the importance table; goes on where it stopped. What latency rules out is spared.

    Example: layermerge importance runs/a --recipe recipes/cifar10_resnet20.yaml --workers 2
    """
    from layermerge.runs.directory import IMPORTANCE
    from layermerge.tables.importance import importance_cost
    from layermerge.tables.shards import WHOLE_TABLE, parse_shard, shard_path

    part = WHOLE_TABLE if shard is None else parse_shard(shard)
    flags: dict[str, Any] = {"model": model, "weights": weights, "input": input, "data.source": data, "method": method}
    flags |= {"workers": workers, "executor": executor, "address": address}
    chosen = read_flags(recipe or _known(run_dir), flags, set, allow_python)
    run = open_run(chosen, run_dir, chosen.method)
    menu = run.menu(chosen.method)
    cost = importance_cost(menu, run.importance(menu, run.latency(menu), part))
    note_recipe(chosen, run_dir)
    if as_json:
        print_json(dict(vars(cost)))
    else:
        print(f"{cost}; written to {shard_path(run_dir / IMPORTANCE, part)}")


@app.command()
def finetune(
    run_dir: PlaceArgument,
    recipe: RecipeOption = None,
    budget: BudgetFlag = None,
    original: Annotated[bool, typer.Option("--original", help="Train the network as it is instead.")] = False,
    model: ModelFlag = None,
    weights: WeightsOption = None,
    input: InputOption = None,
    data: DataFlag = None,
    method: MethodFlag = None,
    set: SetFlag = None,
    allow_python: PythonFlag = False,
    as_json: JsonOption = False,
) -> None:
    """Fine-tune the network chosen for a budget, not yet merged, and save it; goes on where it stopped.

    Example: layermerge finetune runs/a --budget 60%
    """
    from layermerge.runs.methods import CONTROL
    from layermerge.runs.saving import save
    from layermerge.surgery.rewrite import rewrite
    from layermerge.tuning.distributed import leader_first, usable_device

    flags: dict[str, Any] = {"model": model, "weights": weights, "input": input, "data.source": data, "method": method}
    flags |= {"budgets": budget or None}
    chosen = read_flags(recipe or _known(run_dir), flags, set, allow_python)
    run = open_run(chosen, run_dir, chosen.method)
    saved = {}
    for share in ["100%"] if original else chosen.budgets:
        with leader_first(usable_device(chosen.device)) as group:
            candidates = () if original else run.choose(chosen.method, share)[0].candidates
        place = run.place(CONTROL if original else run.named(chosen.method), share) / chosen.label
        net = run.tune(rewrite(run.trace, candidates), chosen.finetune, place)
        if group.leads:
            save(place / UNMERGED, net)
            saved[share] = {"score": run.task.evaluate(net), "saved_to": str(place / UNMERGED)}
    if group.leads:
        note_recipe(chosen, run_dir)
    if as_json and group.leads:
        print_json(saved)
    for share, facts in saved.items() if not as_json else ():
        print(f"{share}: held-out score {facts['score']:.4f}, saved to {facts['saved_to']}")


@app.command()
def compress(
    recipe: RecipeArgument = None,
    budget: BudgetFlag = None,
    model: ModelFlag = None,
    weights: WeightsOption = None,
    input: InputOption = None,
    data: DataFlag = None,
    method: MethodFlag = None,
    runtime: RuntimeFlag = None,
    run_dir: PlaceOption = None,
    workers: WorkersFlag = None,
    executor: ExecutorFlag = None,
    address: AddressFlag = None,
    set: SetFlag = None,
    allow_python: PythonFlag = False,
    as_json: JsonOption = False,
) -> None:
    """Turn a trained network and data into a faster network: plan, tables, choice, fine-tuning, merge, export.

    Example: layermerge compress recipes/cifar10_resnet20.yaml --budget 60% --runtime onnxruntime
    """
    from layermerge.runs.methods import run_method

    flags: dict[str, Any] = {"model": model, "weights": weights, "input": input, "data.source": data, "method": method}
    flags |= {"runtime": runtime, "budgets": budget or None}
    flags |= {"workers": workers, "executor": executor, "address": address}
    chosen = read_flags(recipe, flags, set, allow_python)
    place = run_dir or _default_place(recipe, chosen)
    run = open_run(chosen, place)
    reports = []
    for share in chosen.budgets:
        result = run_method(run, chosen.method, share)
        reports.append(result.report)
        if not as_json:
            print(f"{result.report}\n  {result.report.cost}\n  in {result.directory}")
    note_recipe(chosen, place)
    if as_json:
        print_json([report.model_dump(mode="json") for report in reports])


@app.command()
def compare(
    recipe: RecipeArgument = None,
    method: Annotated[list[str] | None, typer.Option("--method", help="A method to compare; repeatable.")] = None,
    budget: BudgetFlag = None,
    model: ModelFlag = None,
    weights: WeightsOption = None,
    input: InputOption = None,
    data: DataFlag = None,
    runtime: RuntimeFlag = None,
    run_dir: PlaceOption = None,
    workers: WorkersFlag = None,
    executor: ExecutorFlag = None,
    address: AddressFlag = None,
    set: SetFlag = None,
    allow_python: PythonFlag = False,
    as_json: JsonOption = False,
) -> None:
    """Compare methods at several budgets: shared tables, the same fine-tuning for all and for the original.

    Example: layermerge compare recipes/cifar10_resnet20.yaml --method layermerge --method depth --budget 60%
    """
    from layermerge.reporting.comparison import comparison_table, write_comparison
    from layermerge.runs.compress import compare_run

    flags: dict[str, Any] = {"model": model, "weights": weights, "input": input, "data.source": data}
    flags |= {"runtime": runtime, "budgets": budget or None}
    flags |= {"workers": workers, "executor": executor, "address": address}
    chosen = read_flags(recipe, flags, set, allow_python)
    place = run_dir or _default_place(recipe, chosen)
    methods = method or ["layermerge", "depth", "layeronly"]
    _require_known(methods)  # before hours are spent on the control
    found = compare_run(open_run(chosen, place), methods, chosen.budgets)
    notes = [f"{miss.method} at {miss.budget}: {miss.reason}" for miss in found.missing]
    note_recipe(chosen, place)
    written = write_comparison(place, chosen.label, found.reports, found.directories, notes)
    if as_json:
        print_json([report.model_dump(mode="json") for report in found.reports])
    else:
        print(comparison_table(found.reports, notes))
        print(f"written to {', '.join(map(str, written))}", file=sys.stderr)


def _known(run_dir: Path) -> Path | None:
    """The recipe that an earlier verb left in the run directory."""
    kept = run_dir / RECIPE
    return kept if kept.is_file() else None


def _default_place(recipe: Path | None, chosen: RunRecipe) -> Path:
    return Path("runs") / (recipe.stem if recipe is not None else chosen.model.replace(":", "-").replace("/", "-"))


def read_flags(
    path: Path | None, flags: dict[str, Any], settings: list[str] | None = None, allow_python: bool = False
) -> RunRecipe:
    """The recipe of a file, where there is one, with what flags and `--set` say instead."""
    import yaml

    from layermerge.errors import RecipeError
    from layermerge.runs.recipe import read_recipe

    changes = {
        key: str(value) if isinstance(value, Path) else value for key, value in flags.items() if value is not None
    }
    for setting in settings or ():
        key, equals, text = setting.partition("=")
        if not equals or not key:
            raise RecipeError(f"--set {setting}: write KEY=VALUE, such as finetune.lr=0.01")
        try:
            changes[key.strip()] = yaml.safe_load(text)
        except (yaml.YAMLError, ValueError):  # a date or number that does not exist is a ValueError
            raise RecipeError(f"--set {setting}: '{text}' is no YAML value") from None
    chosen = read_recipe(path, changes)
    _require_known([chosen.method])
    if chosen.model.startswith("python:") and not (allow_python or "model" in changes):
        raise RecipeError(
            f"recipe '{path}' names code to run ('{chosen.model}'); allow it with --allow-python, if you trust it"
        )
    return chosen


def _require_known(methods: list[str]) -> None:
    """Before anything is loaded or written."""
    from layermerge.errors import RecipeError
    from layermerge.runs.methods import method_names

    for method in methods:
        if method not in method_names():
            raise RecipeError(f"unknown method '{method}'; choose one of {', '.join(method_names())}")


def open_run(chosen: RunRecipe, place: Path, menu: str = "layeronly") -> Run:
    """Loads the network and the data, and notes the recipe in a run directory that has none, for verbs that follow.

    Rules that fit no layer, and methods that have no menu where one is needed, are refused before anything is written.
    """
    from layermerge.models import load_model, parse_shape
    from layermerge.planning.plan import plan
    from layermerge.runs.steps import Run

    loaded = load_model(chosen.model, chosen.weights, parse_shape(chosen.input) if chosen.input else None)
    run = Run(loaded.module, chosen.data.open(loaded.module), place, chosen.settings)
    plan(run.trace, chosen.rules, menu)
    if _known(place) is None:
        note_recipe(chosen, place)
    return run


def note_recipe(chosen: RunRecipe, place: Path) -> None:
    """Leaves the recipe to verbs that follow; one that is there already gives way only to a command that went well."""
    import yaml

    from layermerge.files import text_writer, write_files

    document = chosen.model_dump(mode="json", exclude_unset=True)
    write_files({place / RECIPE: text_writer(yaml.safe_dump(document, sort_keys=False))})
