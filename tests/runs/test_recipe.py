"""Recipes: those we ship are valid and say what the paper says; every mistake in one is a line with the file and the key."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

import layermerge as lm
from layermerge.data.preparation import Statistics
from layermerge.errors import RecipeError
from layermerge.runs.recipe import DataRecipe, RunRecipe, Settings, read_recipe
from layermerge.tables.executors import LocalProcesses, in_this_process
from layermerge.tables.ray_cluster import RayCluster
from layermerge.tasks import NoiseSchedule
from layermerge.tuning.recipe import Recipe

ROOT = Path(__file__).resolve().parents[2]
SHIPPED = sorted((ROOT / "recipes").glob("*.yaml"))
LEAST = "model: timm:resnet34\ndata: cifar10:somewhere\n"


def shipped(name: str) -> RunRecipe:
    return read_recipe(ROOT / "recipes" / f"{name}.yaml")


def written(folder: Path, text: str) -> Path:
    path = folder / "mine.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def refusal(path: Path | None, changes: dict[str, Any] | None = None) -> str:
    with pytest.raises(RecipeError) as caught:
        read_recipe(path, changes)
    assert "\n" not in str(caught.value)
    return str(caught.value)


# -- those that are shipped


def test_there_are_recipes() -> None:
    assert len(SHIPPED) >= 7


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_a_shipped_recipe_is_valid_and_comes_back_from_what_a_run_notes(path: Path, tmp_path: Path) -> None:
    recipe = read_recipe(path)
    kept = yaml.safe_dump(recipe.model_dump(mode="json", exclude_unset=True))
    assert read_recipe(written(tmp_path, kept)) == recipe
    assert recipe.settings == Settings.model_validate({name: getattr(recipe, name) for name in Settings.model_fields})


# Figures of the paper: its tables (milliseconds at batch 128) and its appendix on experiments.
POINTS: dict[str, tuple[float, list[float]]] = {
    "resnet34_imagenet": (205, [146, 123, 103]),
    "mobilenetv2_100_imagenet": (40.6, [22.3, 18.5, 15.6, 13.4]),
    "mobilenetv2_140_imagenet": (60.1, [26.1, 25.0, 21.0, 18.0]),
}
SMALL_COPIES = Recipe(epochs=1, subset=50_000, batch_size=256, lr=0.1, weight_decay=1e-5)


@pytest.mark.parametrize("name", POINTS)
def test_points_rules_and_tables_are_those_of_the_paper(name: str) -> None:
    original, points = POINTS[name]
    recipe = shipped(name)
    assert list(recipe.budgets) == [f"{round(100 * point / original)}%" for point in points]
    assert recipe.rules == lm.Rules.paper()
    assert (recipe.batch_size, recipe.importance) == (128, SMALL_COPIES)
    assert recipe.data.source.startswith("imagefolder:")
    assert (recipe.objective, recipe.importance.momentum) == ("exp", 0.9)


def test_the_papers_training_of_a_plain_network() -> None:
    recipe = shipped("resnet34_imagenet")
    tuning = recipe.finetune
    assert recipe.model == "timm:resnet34"
    assert (tuning.optimizer, tuning.epochs, tuning.batch_size, tuning.lr) == ("sgd", 90, 1024, 1.024)
    assert (tuning.momentum, tuning.nesterov, tuning.weight_decay) == (0.875, False, 3.05e-5)
    assert (tuning.warmup_epochs, tuning.schedule, tuning.label_smoothing) == (8, "cosine", 0.1)
    assert recipe.data.augment == "imagenet"


@pytest.mark.parametrize(("width", "lr", "augment"), [("100", 0.05, "imagenet"), ("140", 0.1, "randaugment")])
def test_the_papers_training_of_inverted_blocks(width: str, lr: float, augment: str) -> None:
    recipe = shipped(f"mobilenetv2_{width}_imagenet")
    tuning = recipe.finetune
    assert recipe.model == f"timm:mobilenetv2_{width}"
    assert (tuning.optimizer, tuning.epochs, tuning.batch_size, tuning.lr) == ("sgd", 180, 256, lr)
    assert (tuning.momentum, tuning.nesterov, tuning.weight_decay, tuning.schedule) == (0.9, True, 1e-5, "cosine")
    assert recipe.data.augment == augment


def test_the_papers_training_of_a_denoising_network() -> None:
    recipe = shipped("ddpm_cifar10")
    assert list(recipe.budgets) == [f"{round(100 * point / 65.7)}%" for point in (48, 46, 38)]
    assert (recipe.rules, recipe.batch_size) == (lm.Rules.paper(), 128)
    assert (recipe.data.task, recipe.data.held_out, recipe.data.augment) == ("diffusion", 500, "flip")
    assert recipe.data.noise.schedule().fingerprint() == NoiseSchedule.from_betas(1000, 1e-4, 0.02).fingerprint()
    short, tuning = recipe.importance, recipe.finetune
    assert (short.optimizer, short.lr, short.epochs, short.subset, short.batch_size) == ("adam", 2e-4, 50, 500, 256)
    assert (tuning.optimizer, tuning.lr, tuning.steps, tuning.batch_size) == ("adam", 4e-4, 100_000, 128)
    assert (tuning.clip_norm, tuning.ema, tuning.schedule, tuning.weight_decay) == (1.0, 0.9999, "constant", 0)


# -- what can be written


def test_the_least_recipe_and_its_short_form(tmp_path: Path) -> None:
    recipe = read_recipe(written(tmp_path, LEAST))
    assert recipe == RunRecipe(model="timm:resnet34", data=DataRecipe(source="cifar10:somewhere"))
    assert recipe.settings == Settings()
    assert recipe.budgets == ("60%",)


def test_naming_one_key_of_a_part_leaves_the_others(tmp_path: Path) -> None:
    few = read_recipe(written(tmp_path, LEAST), {"importance.steps": 7})
    assert few.importance == Recipe(steps=7, batch_size=64, lr=0.01)
    assert read_recipe(written(tmp_path, LEAST), {"importance.lr": 0.5}).importance == Recipe(
        steps=100, batch_size=64, lr=0.5
    )
    longer = read_recipe(written(tmp_path, LEAST + "importance: {epochs: 2}\n"))
    assert longer.importance == Recipe(epochs=2, batch_size=64, lr=0.01)
    assert read_recipe(written(tmp_path, LEAST), {"finetune.lr": 0.5}).finetune == Recipe(epochs=10, lr=0.5)
    assert read_recipe(written(tmp_path, LEAST), {"finetune.steps": 5}).finetune == Recipe(steps=5)
    # What a run notes brings back the same, also where a key says what every recipe says by default.
    large = read_recipe(written(tmp_path, LEAST), {"importance.batch_size": Recipe(steps=1).batch_size})
    kept = yaml.safe_dump(large.model_dump(mode="json", exclude_unset=True))
    assert read_recipe(written(tmp_path, kept)) == large


def test_names_and_parts_stand_for_rules_and_statistics(tmp_path: Path) -> None:
    assert read_recipe(written(tmp_path, LEAST + "rules: ours\n")).rules == lm.Rules()
    assert read_recipe(written(tmp_path, LEAST + "rules: paper\n")).rules == lm.Rules.paper()
    assert read_recipe(written(tmp_path, LEAST + "rules: {max_kernel: 5, pin: [a]}\n")).rules == lm.Rules(
        max_kernel=5, pin=("a",)
    )
    given = read_recipe(None, {"model": "a:b", "data": {"source": "npz:x", "normalise": {"mean": [0.5], "std": [2]}}})
    assert given.data.normalise == Statistics((0.5,), (2.0,))


def test_changes_go_before_the_file_and_reach_parts(tmp_path: Path) -> None:
    path = written(tmp_path, LEAST + "finetune: {epochs: 3, lr: 0.5}\nruntime: torch\n")
    changes = {"finetune.lr": 0.01, "data.pad": 2, "importance.steps": 7, "runtime": "openvino", "budgets": ["2x"]}
    recipe = read_recipe(path, changes)
    assert recipe.finetune == Recipe(epochs=3, lr=0.01)
    assert recipe.data == DataRecipe(source="cifar10:somewhere", pad=2)
    assert recipe.importance == Recipe(steps=7, batch_size=64, lr=0.01)
    assert (recipe.runtime, recipe.budgets) == ("openvino", ("2x",))


def test_no_file_is_needed() -> None:
    assert read_recipe(None, {"model": "timm:resnet34", "data.source": "embedded"}).data.source == "embedded"


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, in_this_process),
        ({"workers": 1}, in_this_process),
        ({"workers": 3}, LocalProcesses(3)),
        ({"executor": "ray"}, RayCluster("local", 0.0)),
        ({"executor": "ray", "address": "auto", "gpus_per_worker": 0.5, "workers": 3}, RayCluster("auto", 0.5)),
    ],
)
def test_settings_make_their_executor(given: dict[str, Any], expected: Any) -> None:
    made: Any = Settings(**given).make_executor()
    if expected is in_this_process:
        assert made is in_this_process
    else:
        assert type(made) is type(expected)
        assert vars(made) == vars(expected)


# -- mistakes


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (LEAST + "budget: 60%\n", "budget: there is no such key"),
        (LEAST + "finetune: {epochs: 1, lrr: 2}\n", "finetune.lrr: there is no such key"),
        (LEAST + "finetune: {epochs: 1, distill: {heat: 2}}\n", "finetune.distill.heat: there is no such key"),
        (LEAST + "rules: {max_kernal: 5}\n", "rules.max_kernal: there is no such key"),
        ("model: a:b\ndata: {source: x, sauce: y}\n", "data.sauce: there is no such key"),
        (
            "model: a:b\ndata: {source: x, normalise: {mean: [1], std: [1], median: [1]}}\n",
            "data.normalise.median: there is no such key",
        ),
        (LEAST + "1: 2\n", "1: Keys should be strings"),
        (LEAST + "finetune: {epochs: 1, lr: fast}\n", "finetune.lr: Input should be a valid number"),
        (LEAST + "finetune: fast\n", "finetune: Input should be a valid dictionary"),
        (LEAST + "threads: 1.5\n", "threads: Input should be a valid integer"),
        (LEAST + "method: 5\n", "method: Input should be a valid string, not '5'"),
        (LEAST + "budgets: 60%\n", "budgets: Input should be a list, not '60%'"),
        (LEAST + "rules: {pin: layer1}\n", "rules.pin: Input should be a list, not 'layer1'"),
        ("model: a:b\ndata: [1]\n", "data: Input should be a valid dictionary"),
        ("model: a:b\ndata: {source: x, held_out: some}\n", "data.held_out: Input should be a valid number"),
        (LEAST + "threads: 0\n", "threads: Input should be greater than or equal to 1, not '0'"),
        (LEAST + "finetune: {epochs: 0}\n", "finetune.epochs: Input should be greater than 0, not '0'"),
        (LEAST + "finetune: {epochs: 1, momentum: 1}\n", "finetune.momentum: Input should be less than 1, not '1'"),
        (LEAST + "finetune: {epochs: .inf}\n", "finetune.epochs: Input should be a finite number"),
        (LEAST + "finetune: {epochs: 1, optimizer: lion}\n", "finetune.optimizer: Input should be 'sgd', 'adam' or "),
        ("model: a:b\ndata: {source: x, crop_pct: 1.5}\n", "data.crop_pct: Input should be less than or equal to 1"),
        (
            "model: a:b\ndata: {source: x, seed: -1}\n",
            "data.seed: Input should be greater than or equal to 0, not '-1'",
        ),
        ("model: a:b\ndata: {source: x, workers: 100000}\n", "data.workers: Input should be less than or equal to 256"),
        ("model: a:b\ndata: {source: x, augment: blur}\n", "data.augment: Input should be 'none', 'flip', "),
        (LEAST + "objective: sum\n", "objective: Input should be 'exp' or 'delta'"),
        (LEAST + "label: a/b\n", "label: String should match pattern"),
        (LEAST + "executor: slurm\n", "executor: Input should be 'local' or 'ray'"),
        ("data: cifar10:x\n", "model: is missing; give it in the recipe or as --model"),
        ("model: a:b\n", "data: is missing; give it in the recipe or as --data"),
        ("model: a:b\ndata: {augment: flip}\n", "data.source: is missing; give it in the recipe or as --data"),
        (LEAST + "budgets: [60]\n", "budgets.0: cannot read the budget '60'; write a share"),
        (LEAST + "budgets: [50%, soon]\n", "budgets.1: cannot read the budget 'soon'"),
        (LEAST + 'budgets: ["6\\n0%"]\n', "budgets.0: cannot read the budget '6 0%'"),
        (LEAST + "budgets: [0%]\n", "budgets.0: the budget '0%' must be above zero"),
        (LEAST + "budgets: []\n", "budgets: "),
        (LEAST + "first_budget: most\n", "first_budget: cannot read the budget 'most'"),
        (LEAST + "rules: theirs\n", "rules: unknown rules 'theirs'; write ours, paper, or single rules"),
        (LEAST + "rules: {max_kernel: -1}\n", "max_kernel is -1; it must be at least 1"),
        (
            "model: a:b\ndata: {source: x, normalise: imagenette}\n",
            "data.normalise: unknown statistics 'imagenette'; write imagenet, cifar10, fashion-mnist, none, or mean",
        ),
        ("model: a:b\ndata: {source: x, normalise: {mean: [1], std: [0]}}\n", "must be one number per channel"),
        (LEAST + "finetune: {epochs: 1, steps: 2}\n", "finetune: give either epochs or steps"),
        (LEAST + "importance: {epochs: 1, steps: 2}\n", "importance: give either epochs or steps"),
        (LEAST + "finetune: {epochs: 1, momentum: 0}\n", "finetune: nesterov needs momentum; set nesterov: false"),
        ("model: [\n", "is no YAML: "),
        ("model: !!python/object/apply:os.system [ls]\n", "is no YAML: "),
        (LEAST + "label: 2024-13-45\n", "is no YAML: month must be in 1..12"),
        ("", "is no mapping of keys to values; begin with model: "),
        ("- model\n", "is no mapping of keys to values"),
        ("resnet34\n", "is no mapping of keys to values"),
    ],
)
def test_a_mistake_is_one_line_with_the_file_and_the_key(tmp_path: Path, text: str, message: str) -> None:
    path = written(tmp_path, text)
    line = refusal(path)
    assert line.startswith(f"recipe '{path}'")
    assert message in line


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    assert refusal(tmp_path / "absent.yaml") == (
        f"recipe '{tmp_path / 'absent.yaml'}' cannot be read: No such file or directory"
    )
    assert refusal(tmp_path) == f"recipe '{tmp_path}' cannot be read: Is a directory"
    (tmp_path / "latin.yaml").write_bytes("model: müll\n".encode("latin-1"))
    assert refusal(tmp_path / "latin.yaml").startswith(f"recipe '{tmp_path / 'latin.yaml'}' cannot be read: 'utf-8'")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"finetune.lrr": 1}, "finetune.lrr: there is no such key"),
        ({"finetune.lr.deep": 1}, "finetune.lr: Input should be a valid number"),
        ({"model.name": "x"}, "model.name: model is 'timm:resnet34', which has no keys of its own"),
        ({"": 1}, ": there is no such key"),
        ({"budgets": "60%"}, "budgets: Input should be a list"),
    ],
)
def test_mistakes_in_changes(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    assert message in refusal(written(tmp_path, LEAST + "finetune: {epochs: 1}\n"), changes)


def test_without_a_file_it_is_the_run_that_lacks_something() -> None:
    assert refusal(None, {"model": "timm:resnet34"}) == "the run: data: is missing; give it in the recipe or as --data"


def test_a_change_does_not_hide_a_part_that_is_wrong(tmp_path: Path) -> None:
    """A key below a part that is no mapping must not silently replace the part."""
    path = written(tmp_path, LEAST + "finetune: fast\n")
    assert refusal(path, {"finetune.epochs": 3}) == "finetune.epochs: finetune is 'fast', which has no keys of its own"
