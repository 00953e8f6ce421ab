"""Recipes: those we ship are valid and say what the paper says; every mistake in one is a line with the file and the key."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

import layermerge as lm
from layermerge.data.preparation import Statistics
from layermerge.errors import LayerMergeError, RecipeError
from layermerge.runs.data_recipe import DataRecipe
from layermerge.runs.recipe import RunRecipe, Settings, read_recipe, read_value
from layermerge.tables.estimators.calibrated import Calibrated
from layermerge.tables.estimators.trained import Trained
from layermerge.tables.executors import LocalProcesses, in_this_process
from layermerge.tables.ray_cluster import RayCluster
from layermerge.tasks import NoiseSchedule
from layermerge.tuning.recipe import Distillation, Recipe

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
    assert recipe.require_data().source.startswith("imagefolder:")
    assert recipe.importance is not None
    assert (recipe.objective, recipe.importance.momentum) == ("exp", 0.9)


def test_the_papers_training_of_a_plain_network() -> None:
    recipe = shipped("resnet34_imagenet")
    tuning = recipe.finetune
    assert tuning is not None
    assert (recipe.calibrate, tuning.distill) == (0, None)
    assert recipe.model == "timm:resnet34"
    assert (tuning.optimizer, tuning.epochs, tuning.batch_size, tuning.lr) == ("sgd", 90, 1024, 1.024)
    assert (tuning.momentum, tuning.nesterov, tuning.weight_decay) == (0.875, False, 3.05e-5)
    assert (tuning.warmup_epochs, tuning.schedule, tuning.label_smoothing) == (8, "cosine", 0.1)
    assert recipe.require_data().augment == "imagenet"


@pytest.mark.parametrize(("width", "lr", "augment"), [("100", 0.05, "imagenet"), ("140", 0.1, "randaugment")])
def test_the_papers_training_of_inverted_blocks(width: str, lr: float, augment: str) -> None:
    recipe = shipped(f"mobilenetv2_{width}_imagenet")
    tuning = recipe.finetune
    assert tuning is not None
    assert (recipe.calibrate, tuning.distill) == (0, None)
    assert recipe.model == f"timm:mobilenetv2_{width}"
    assert (tuning.optimizer, tuning.epochs, tuning.batch_size, tuning.lr) == ("sgd", 180, 256, lr)
    assert (tuning.momentum, tuning.nesterov, tuning.weight_decay, tuning.schedule) == (0.9, True, 1e-5, "cosine")
    assert recipe.require_data().augment == augment


def test_the_papers_training_of_a_denoising_network() -> None:
    recipe = shipped("ddpm_cifar10")
    assert list(recipe.budgets) == [f"{round(100 * point / 65.7)}%" for point in (48, 46, 38)]
    assert (recipe.rules, recipe.batch_size) == (lm.Rules.paper(), 128)
    assert (recipe.require_data().task, recipe.require_data().held_out, recipe.require_data().augment) == (
        "diffusion",
        500,
        "flip",
    )
    assert (
        recipe.require_data().noise.schedule().fingerprint() == NoiseSchedule.from_betas(1000, 1e-4, 0.02).fingerprint()
    )
    short, tuning = recipe.importance, recipe.finetune
    assert short is not None
    assert tuning is not None
    assert (recipe.calibrate, tuning.distill) == (0, None)
    assert (short.optimizer, short.lr, short.epochs, short.subset, short.batch_size) == ("adam", 2e-4, 50, 500, 256)
    assert (tuning.optimizer, tuning.lr, tuning.steps, tuning.batch_size) == ("adam", 4e-4, 100_000, 128)
    assert (tuning.clip_norm, tuning.ema, tuning.schedule, tuning.weight_decay) == (1.0, 0.9999, "constant", 0)


# -- what can be written


def test_the_least_recipe_and_its_short_form(tmp_path: Path) -> None:
    recipe = read_recipe(written(tmp_path, LEAST))
    assert recipe == RunRecipe(model="timm:resnet34", data=DataRecipe(source="cifar10:somewhere"))
    assert recipe.settings == Settings()
    assert recipe.budgets == ("60%",)


def taught(**changes: Any) -> Recipe:
    """What is trained learns from the original, unless it is said not to."""
    return Recipe(
        **{"channels_last": True, "clip_norm": 1.0, "distill": Distillation(temperature=4.0, weight=0.7), **changes}
    )


def test_how_importance_is_measured(tmp_path: Path) -> None:
    plain = read_recipe(written(tmp_path, LEAST))
    assert (plain.importance, plain.estimator, plain.objective) == (None, Calibrated(), "delta")
    trained = read_recipe(written(tmp_path, LEAST), {"importance": "trained"})
    assert (trained.estimator, trained.objective) == (Trained(Recipe(steps=100, batch_size=64, lr=0.01)), "exp")
    other = read_recipe(written(tmp_path, LEAST), {"importance": "calibrated", "objective": "exp"})
    assert (other.estimator, other.objective, other.objective_is_usual) == (Calibrated(), "exp", False)
    # Tables do not depend on what the chosen network is calibrated on.
    assert read_recipe(written(tmp_path, LEAST), {"calibrate": 100}).estimator == Calibrated()


def test_no_fine_tuning(tmp_path: Path) -> None:
    assert read_recipe(written(tmp_path, LEAST), {"finetune": "none"}).finetune is None
    assert read_recipe(written(tmp_path, LEAST + "finetune: none\n")).finetune is None
    assert "finetune" in refusal(written(tmp_path, LEAST), {"finetune": "some"})


def test_naming_one_key_of_a_part_leaves_the_others(tmp_path: Path) -> None:
    few = read_recipe(written(tmp_path, LEAST), {"importance.steps": 7})
    assert few.importance == Recipe(steps=7, batch_size=64, lr=0.01)
    assert read_recipe(written(tmp_path, LEAST), {"importance.lr": 0.5}).importance == Recipe(
        steps=100, batch_size=64, lr=0.5
    )
    longer = read_recipe(written(tmp_path, LEAST + "importance: {epochs: 2}\n"))
    assert longer.importance == Recipe(epochs=2, batch_size=64, lr=0.01)
    assert read_recipe(written(tmp_path, LEAST), {"finetune.lr": 0.5}).finetune == taught(epochs=10, lr=0.5)
    assert read_recipe(written(tmp_path, LEAST), {"finetune.steps": 5}).finetune == taught(steps=5)
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
    assert read_recipe(written(tmp_path, LEAST + "rules: {replace: [gates]}\n")).rules == lm.Rules(replace=("gates",))
    given = read_recipe(None, {"model": "a:b", "data": {"source": "npz:x", "normalise": {"mean": [0.5], "std": [2]}}})
    assert given.require_data().normalise == Statistics((0.5,), (2.0,))


def test_changes_go_before_the_file_and_reach_parts(tmp_path: Path) -> None:
    path = written(tmp_path, LEAST + "finetune: {epochs: 3, lr: 0.5}\nruntime: torch\n")
    changes = {"finetune.lr": 0.01, "data.pad": 2, "importance.steps": 7, "runtime": "openvino", "budgets": ["2x"]}
    recipe = read_recipe(path, changes)
    assert recipe.finetune == taught(epochs=3, lr=0.01)
    assert recipe.data == DataRecipe(source="cifar10:somewhere", pad=2)
    assert recipe.importance == Recipe(steps=7, batch_size=64, lr=0.01)
    assert (recipe.runtime, recipe.budgets) == ("openvino", ("2x",))


def test_no_file_is_needed() -> None:
    assert read_recipe(None, {"model": "timm:resnet34", "data.source": "embedded"}).require_data().source == "embedded"


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
        (
            LEAST + "rules: {replace: [norms]}\n",
            "rules.replace.0: Input should be 'activations' or 'gates', not 'norms'",
        ),
        (LEAST + "rules: {pin: layer1}\n", "rules.pin: Input should be a list, not 'layer1'"),
        ("model: a:b\ndata: [1]\n", "data: Input should be a valid dictionary"),
        ("model: a:b\ndata: {source: x, held_out: some}\n", "data.held_out: Input should be a valid number"),
        (LEAST + "device: tpu\n", "device: there is no device 'tpu'; write cpu, cuda, cuda:1 or auto"),
        (LEAST + "device: cuda:-1\n", "device: there is no device 'cuda:-1'"),
        (LEAST + "runtime_device: gpu\n", "runtime_device: there is no device 'gpu'"),
        (LEAST + "runtime: tflite\n", "runtime: unknown runtime 'tflite'; choose one of torch"),
        (LEAST + "threads: 1000000\n", "threads: Input should be less than or equal to 1024, not '1000000'"),
        (LEAST + "workers: 100000\n", "workers: Input should be less than or equal to 256, not '100000'"),
        (LEAST + "batch_size: 100000000\n", "batch_size: Input should be less than or equal to 65536"),
        (LEAST + "gpus_per_worker: .inf\n", "gpus_per_worker: Input should be a finite number"),
        (LEAST + "input: ³x32x32\n", "input: input shape '³x32x32' is not of the form 3x224x224"),
        (LEAST + "input: 3x999999x999999\n", "input: input shape 3x999999x999999 has 3e+12 values"),
        ("model: a:b\ndata: {source: x, noise: {steps: 1000000000000}}\n", "data.noise.steps: Input should be less"),
        (LEAST + f"threads: {'9' * 5000}\n", "is not valid YAML: Exceeds the limit"),
        (LEAST + f"threads: 0x{'f' * 5000}\n", "has a number of more than 18 digits"),
        (LEAST + f"budgets: ['{'9' * 5000}%']\n", "budgets.0: write a budget such as 60%, 1.8x or 12ms"),
        (
            LEAST + "budgets: [[60%]]\n",
            "budgets.0: cannot read the budget '['60%']'; write a share of the original latency",
        ),
        (LEAST + f"label: {'a' * 5000}\n", "label: String should have at most 100 characters"),
        (f"model: {'a' * 5000}\n", "model: String should have at most 1000 characters"),
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
        ("model: a:b\ndata: {augment: flip}\n", "data.source: is missing"),
        (LEAST + "budgets: [60]\n", "budgets.0: cannot read the budget '60'; write a share"),
        (LEAST + "budgets: [50%, soon]\n", "budgets.1: cannot read the budget 'soon'"),
        (LEAST + 'budgets: ["6\\n0%"]\n', "budgets.0: cannot read the budget '6 0%'"),
        (LEAST + "budgets: [0%]\n", "budgets.0: the budget '0%' must be above zero"),
        (LEAST + "budgets: []\n", "budgets: "),
        (LEAST + "first_budget: most\n", "first_budget: cannot read the budget 'most'"),
        (LEAST + "rules: theirs\n", "rules: unknown rules 'theirs'; write ours, paper, or single rules"),
        (
            LEAST + "rules: {max_kernel: -1}\n",
            "max_kernel is -1; give a whole number of at least 1, or None for no bound",
        ),
        (
            "model: a:b\ndata: {source: x, normalise: imagenette}\n",
            "data.normalise: unknown statistics 'imagenette'; write imagenet, cifar10, fashion-mnist, none, bytes, or mean",
        ),
        ("model: a:b\ndata: {source: x, normalise: {mean: [1], std: [0]}}\n", "must be one number per channel"),
        (LEAST + "finetune: {epochs: 1, steps: 2}\n", "finetune: give either epochs or steps"),
        (LEAST + "importance: fast\n", "importance is 'fast'; write calibrated, trained, or how copies are trained"),
        (LEAST + "calibrate: 10\n", "10 images are too few to calibrate with; give at least 20, or 0 to leave it out"),
        (LEAST + "importance: {epochs: 1, steps: 2}\n", "importance: give either epochs or steps"),
        (LEAST + "finetune: {epochs: 1, momentum: 0}\n", "finetune: nesterov needs momentum; set nesterov: false"),
        ("model: [\n", "is not valid YAML: "),
        ("model: !!python/object/apply:os.system [ls]\n", "is not valid YAML: "),
        (LEAST + "label: 2024-13-45\n", "is not valid YAML: month must be in 1..12"),
        ("", "is not a mapping of keys to values; begin with model: "),
        ("- model\n", "is not a mapping of keys to values"),
        ("resnet34\n", "is not a mapping of keys to values"),
    ],
)
def test_a_mistake_is_one_line_with_the_file_and_the_key(tmp_path: Path, text: str, message: str) -> None:
    path = written(tmp_path, text)
    line = refusal(path)
    assert line.startswith(f"recipe '{path}'")
    assert message in line


def bomb(levels: int = 9, times: int = 9) -> str:
    """A list of lists of lists ..., which stands for times ** levels values."""
    lines = ["a0: &a0 [x, x]"]
    for level in range(1, levels + 1):
        lines.append(f"a{level}: &a{level} [{', '.join([f'*a{level - 1}'] * times)}]")
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (LEAST + bomb(), "has more than 8 aliases (*name); write the values out"),
        (bomb() + "finetune: *a9\n", "has more than 8 aliases"),
        (LEAST + "rules: &r {pin: *r}\n", "rules.pin"),
        (LEAST + "rules: &r [*r]\n", "rules: Input should be a dictionary or an instance of Rules, not a list"),
        (LEAST + "pin: " + "[" * 100_000, "is longer than 65,536 characters"),
        (LEAST + "pin: " + "[" * 20_000, "is nested more than 20 levels deep"),
        (LEAST + "pin: " + "{a: " * 15_000, "is nested more than 20 levels deep"),
        (LEAST + "".join(f"{' ' * level}a:\n" for level in range(40)), "is nested more than 20 levels deep"),
        (LEAST + f"# {'x' * 100_000}\n", "is longer than 65,536 characters"),
    ],
    ids=lambda value: value[-30:] if len(value) < 60 else value[:8],
)
def test_a_recipe_that_stands_for_more_than_memory_holds(tmp_path: Path, text: str, message: str) -> None:
    path = written(tmp_path, text)
    line = refusal(path)
    assert message in line
    assert len(line) < 300 + len(str(path))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{" + bomb(3).replace("\n", ", ") + "}", "has more than 8 aliases"),
        ("[" * 5000, "is nested more than 20 levels deep"),
        ("[", "is not valid YAML: "),
        ("2024-13-45", "is not valid YAML: month must be in 1..12"),
        ("9" * 5000, "is not valid YAML: Exceeds the limit"),
    ],
)
def test_values_of_settings_have_the_same_bounds(text: str, message: str) -> None:
    with pytest.raises(RecipeError) as caught:
        read_value(text, "--set finetune.lr")
    assert str(caught.value).startswith("--set finetune.lr: '")
    assert message in str(caught.value)
    assert len(str(caught.value)) < 350
    assert read_value("0.01", "--set finetune.lr") == 0.01


def test_a_part_may_be_written_once_for_two(tmp_path: Path) -> None:
    path = written(tmp_path, LEAST + "importance: &short {steps: 5, lr: 0.5}\nfinetune: *short\n")
    recipe = read_recipe(path, {"finetune.lr": 0.25})
    rates = [part and part.lr for part in (recipe.finetune, recipe.importance)]
    assert rates == [0.25, 0.5], "a change of one part reached the other"


def test_a_change_of_how_long_replaces_the_files(tmp_path: Path) -> None:
    in_epochs = written(tmp_path, LEAST + "finetune: {epochs: 3, lr: 0.5}\nimportance: {steps: 9}\n")
    recipe = read_recipe(in_epochs, {"finetune.steps": 3, "importance.epochs": 1})
    assert recipe.finetune == taught(steps=3, lr=0.5)
    assert recipe.importance == Recipe(epochs=1, batch_size=64, lr=0.01)
    assert "give either epochs or steps" in refusal(in_epochs, {"finetune.steps": 3, "finetune.epochs": 3})


@pytest.mark.parametrize("device", ["cuda", "cuda:9", "xpu", "mps"])
def test_a_device_that_is_not_there_is_noticed_before_any_work(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A recipe may name it: its run directory can be read anywhere."""
    settings = Settings(device=device, runtime="torch")
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(LayerMergeError, match=f"device '{device}'.*set device: cpu"):
        settings.require_machine()
    Settings(device="auto", runtime="torch").require_machine()
    with pytest.raises(LayerMergeError, match="tensorrt"):
        Settings(runtime="tensorrt").require_machine()


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    assert refusal(tmp_path / "absent.yaml") == (
        f"recipe '{tmp_path / 'absent.yaml'}' cannot be read: No such file or directory"
    )
    assert refusal(tmp_path) == f"recipe '{tmp_path}' cannot be read: Is a directory"
    (tmp_path / "latin.yaml").write_bytes("model: müll\n".encode("latin-1"))
    assert refusal(tmp_path / "latin.yaml") == f"recipe '{tmp_path / 'latin.yaml'}' is not a text file in UTF-8"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"finetune.lrr": 1}, "finetune.lrr: there is no such key"),
        ({"finetune.lr.deep": 1}, "finetune.lr: Input should be a valid number"),
        ({"model.name": "x"}, "model.name: model is not a mapping, so it has no key name"),
        ({"": 1}, ": there is no such key"),
        ({"budgets": "60%"}, "budgets: Input should be a list"),
    ],
)
def test_mistakes_in_changes(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    assert message in refusal(written(tmp_path, LEAST + "finetune: {epochs: 1}\n"), changes)


def test_a_run_that_names_no_model_or_data_says_so_where_they_are_needed() -> None:
    nothing = read_recipe(None)
    with pytest.raises(RecipeError, match="model: is missing; give it in the recipe or as --model"):
        nothing.require_model()
    with pytest.raises(RecipeError, match="data: is missing; give it in the recipe or as --data"):
        nothing.require_data()


def test_a_change_does_not_hide_a_part_that_is_wrong(tmp_path: Path) -> None:
    """A key below a part that is no mapping must not silently replace the part."""
    path = written(tmp_path, LEAST + "finetune: fast\n")
    assert (
        refusal(path, {"finetune.epochs": 3}) == "finetune.epochs: finetune is not a mapping, so it has no key epochs"
    )
