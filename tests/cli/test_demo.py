"""The demo: what ships with it is what it says, and the verb goes all the way, on a smaller recipe than the shipped one."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml

import tiny_runs
from command_line import Run, one_line
from layermerge.data.preparation import STATISTICS
from layermerge.models import demo, load_model
from layermerge.runs.recipe import read_recipe
from tiny_runs import contents

EMBEDDED = Path(demo.__file__).parents[2] / "data" / "embedded"
PINNED = [f"features.{number}.*" for number in range(2, 11)]


@pytest.fixture(scope="module", autouse=True)
def _runtimes() -> Iterator[None]:
    with tiny_runs.priced_runtimes():
        yield


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The shipped recipe with most layers pinned, a few steps instead of epochs and few images to calibrate with."""
    recipe = yaml.safe_load(demo.RECIPE.read_text(encoding="utf-8"))
    recipe["rules"] = {"max_kernel": 3, "pin": PINNED}
    recipe["finetune"] = {"steps": 2, "batch_size": 32, "lr": 0.001}
    recipe["data"] |= {"held_out": 100}
    recipe |= {"workers": 1, "calibrate": 64}
    (tmp_path / "small.yaml").write_text(yaml.safe_dump(recipe), encoding="utf-8")
    monkeypatch.setattr(demo, "RECIPE", tmp_path / "small.yaml")


# -- what ships


def test_what_ships_is_small_and_has_its_licence() -> None:
    assert demo.WEIGHTS.stat().st_size <= 2_000_000
    assert sum(path.stat().st_size for path in EMBEDDED.iterdir()) <= 5_000_000
    assert "MIT" in (EMBEDDED / "LICENSE").read_text(encoding="utf-8")


def test_the_shipped_network_tells_clothes_apart() -> None:
    """Counted here with nothing of ours but the network and its weights."""
    with np.load(EMBEDDED / "fashion_mnist.npz") as images:
        pixels, labels = images["x_test"], torch.from_numpy(images["y_test"].astype(np.int64))
    statistics = STATISTICS["fashion-mnist"]
    assert statistics is not None
    x = (torch.from_numpy(pixels).reshape(-1, 1, 28, 28) / 255 - statistics.mean[0]) / statistics.std[0]
    with torch.no_grad():
        right = (load_model("demo:clothes").module.eval()(x).argmax(1) == labels).double().mean()
    assert right > 0.89


def test_the_shipped_recipe_says_all_that_the_demo_needs() -> None:
    recipe = read_recipe(demo.RECIPE)
    assert (recipe.model, recipe.require_data().source, recipe.budgets) == ("demo:clothes", "embedded", ("60%",))


# -- the verb


@pytest.mark.usefixtures("small")
def test_the_demo_goes_all_the_way_a_second_time_does_nothing_and_other_methods_go_on(run: Run) -> None:
    first = run("demo", "--runtime", "priced", "--budget", "99%")
    assert first.code == 0, first.err
    result = json.loads(Path("runs/demo-priced/layermerge/99pct/plain/result.json").read_text(encoding="utf-8"))
    for shown in (f"{result['original_ms']:.3f}", f"{result['measured_ms']:.3f}", str(result["convs_after"])):
        assert shown in first.out
    assert f"{100 * result['score']['value']:.1f}" in first.out
    assert "runs/demo-priced/report.html" in first.out
    assert Path("runs/demo-priced/report.html").is_file()
    before = contents(Path("runs/demo-priced"))
    second = run("demo", "--runtime", "priced", "--budget", "99%")
    assert second.out == first.out
    assert contents(Path("runs/demo-priced")) == before
    (suggested,) = [line for line in first.out.splitlines() if line.startswith("layermerge demo ")]
    command = shlex.split(suggested.split("   ")[0].replace("50%", "99%"))  # a budget that is there already
    assert run(*command[1:]).out == first.out
    # Another method takes up the tables; --json prints its facts.
    said = run("demo", "--runtime", "priced", "--budget", "99%", "--method", "layeronly", "--json")
    assert said.code == 0, said.err
    facts = json.loads(said.out)
    assert (facts["method"], facts["budget"], facts["runtime"]) == ("layeronly", "99%", "priced")
    assert facts["measured_ms"] <= facts["budget_ms"]
    assert Path(facts["page"]).is_file()
    assert (Path(facts["directory"]) / "model.onnx").is_file()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--budget", "fast"), "budget"),
        (("--budget", "0%"), "budget"),
        (("--method", "magic"), "unknown method 'magic'"),
        (("--runtime", "warp"), "warp"),
        (("--run-dir", "tiny.py"), "tiny.py"),
    ],
)
@pytest.mark.usefixtures("small")
def test_wrong_calls(run: Run, arguments: tuple[str, ...], says: str) -> None:
    before = contents(Path())
    assert says in one_line(run("demo", *arguments))
    assert contents(Path()) == before
