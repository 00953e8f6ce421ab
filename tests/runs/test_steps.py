"""A whole run, checked from outside: the exported file in a session of its own, scores counted again, every file's bytes."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import nn

import layermerge as lm
import tiny_runs
from layermerge.errors import InfeasibleBudget
from layermerge.runs.records import Result
from layermerge.surgery.merge import MergedModule
from layermerge.tuning.recipe import Recipe
from tiny_runs import accuracy_of, arrays, contents, network, normalised, same_weights, served_logits, settings, task

TESTS = Path(__file__).resolve().parents[1]
BUDGET, PLACE = "70%", Path("layermerge") / "70pct" / "plain"
TABLES = ("latency.jsonl", "importance.jsonl")


@pytest.fixture(scope="module", autouse=True)
def _runtimes() -> Iterator[None]:
    with tiny_runs.priced_runtimes():
        yield


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Result]:
    """A run that ended well; tests look at it, or change a copy."""
    directory = tmp_path_factory.mktemp("finished") / "run"
    return directory, lm.compress(network(), task(), budget=BUDGET, run_dir=directory, settings=settings())


@pytest.fixture
def copied(finished: tuple[Path, Result], tmp_path: Path) -> Path:
    return Path(shutil.copytree(finished[0], tmp_path / "run"))


def refusal(directory: Path, model: nn.Module, kind: type[Exception] = lm.LayerMergeError, **changes: object) -> str:
    before = contents(directory)
    with pytest.raises(kind) as caught:
        lm.compress(model, task(), budget=BUDGET, run_dir=directory, settings=settings(**changes))
    assert "\n" not in str(caught.value)
    assert contents(directory) == before
    return str(caught.value)


def kept(directory: Path) -> dict[str, bytes]:
    """All files but the page and the model cards, which tell of everything that was done, and where."""
    told = ("report.html", "README.md")
    return {name: content for name, content in contents(directory).items() if Path(name).name not in told}


# -- what comes out


def test_the_network_is_merged_and_equals_the_file(finished: tuple[Path, Result]) -> None:
    _, result = finished
    assert isinstance(result.module, MergedModule)
    assert not any(isinstance(part, nn.BatchNorm2d) for part in result.module.modules())
    convs = [part for part in result.module.modules() if isinstance(part, nn.Conv2d)]
    assert len(convs) == result.report.convs_after < result.report.convs_before == 5
    images = normalised(arrays()["x_test"])
    with torch.no_grad():
        ours = result.module.eval()(torch.from_numpy(images)).numpy()
    theirs = served_logits(result.directory / "model.onnx", images)
    assert np.abs(ours - theirs).max() <= 1e-4 * np.abs(theirs).max()


def test_what_was_saved_is_the_network(finished: tuple[Path, Result]) -> None:
    _, result = finished
    assert same_weights(lm.load(result.directory, tiny_runs.TinyNet()), result.module)


def test_scores_are_what_the_file_and_the_original_score_on_raw_images(finished: tuple[Path, Result]) -> None:
    _, result = finished
    data = arrays()
    images, labels = normalised(data["x_test"]), data["y_test"]
    report = result.report
    assert report.score.value == accuracy_of(served_logits(result.directory / "model.onnx", images), labels)
    with torch.no_grad():
        original = network()(torch.from_numpy(images)).numpy()
    assert report.original_score.value == accuracy_of(original, labels)
    assert report.score.count == report.original_score.count == len(labels)
    assert 0.5 < report.original_score.value < 1  # else these tests could not tell one network from another


def test_latencies_are_the_known_prices(finished: tuple[Path, Result]) -> None:
    _, result = finished
    report = result.report
    # Convs 3 -> 8 and four times 8 -> 8, all 3x3: a millisecond each, one per 500 weights, a quarter for the call.
    assert report.original_ms == pytest.approx(0.25 + 5 + (216 + 4 * 576) / 500)
    assert report.budget_ms == pytest.approx(0.7 * report.original_ms)
    sizes = [part.weight.numel() for part in result.module.modules() if isinstance(part, nn.Conv2d)]
    assert report.measured_ms == pytest.approx(0.25 + sum(1 + size / 500 for size in sizes))
    assert report.measured_ms <= report.budget_ms
    assert report.chosen_ms == pytest.approx(report.measured_ms)
    assert report.predicted_ms == pytest.approx(report.measured_ms)
    assert report.speed_up == pytest.approx(report.original_ms / report.measured_ms)


def test_the_report_says_how_it_came_about(finished: tuple[Path, Result]) -> None:
    _, result = finished
    report = result.report
    assert (report.method, report.budget, report.label, report.epochs) == ("layermerge", BUDGET, "plain", 2)
    assert (report.runtime, report.threads, report.batch_size) == ("priced", 1, 1)
    menu = lm.plan(lm.trace(network(), task().example_inputs()))
    assert report.cost.entries == len(menu.entries)
    untouched = sum(entry.untouched for entry in menu.entries)
    assert report.cost.scored + report.cost.ruled_out + report.cost.failed == report.cost.entries - untouched
    assert str(report).startswith("layermerge at 70%: 10.290 -> ")
    assert "\n" not in str(report)


def test_every_file_is_where_it_is_said_to_be(finished: tuple[Path, Result]) -> None:
    directory, result = finished
    assert result.directory == directory / PLACE
    saved = ["plan.json", "solution.json", "model.safetensors"]
    own = [
        ".finetune.lock",
        "variant.json",
        "checkpoint.safetensors",
        "recovery.csv",
        "recovery.jsonl",
        "model.onnx",
        "result.json",
        "README.md",
    ]
    expected = {str(PLACE / name) for name in [*own, *saved, *(f"unmerged/{name}" for name in saved)]}
    expected |= {str(PLACE.parent / "choice.json"), "recipe.yaml", "report.html", *TABLES}
    expected |= {"plan.json", "original.onnx", "original.json"}
    assert set(contents(directory)) == expected


def test_a_runtime_that_reads_no_files_serves_the_module_and_the_users_network_stays_as_it_is(
    tmp_path: Path, finished: tuple[Path, Result]
) -> None:
    model = network().train()
    result = lm.compress(model, task(), budget=BUDGET, runtime="priced-modules", run_dir=tmp_path, settings=settings())
    assert result.report.runtime == "priced-modules"
    assert not (result.directory / "model.onnx").exists()
    assert same_weights(result.module, finished[1].module)
    assert result.report.score == finished[1].report.score
    assert same_weights(model, network())
    assert all(part.training for part in model.modules())
    assert all(parameter.grad is None and parameter.requires_grad for parameter in model.parameters())


# -- again


def test_a_second_call_does_nothing_and_says_the_same(finished: tuple[Path, Result]) -> None:
    directory, first = finished
    before, watched = contents(directory), task()
    again = lm.compress(network(), watched, budget=BUDGET, run_dir=directory, settings=settings())
    assert contents(directory) == before
    assert (watched.drawn, watched.scored) == (1, 0)  # one batch to trace the network with
    assert again.report == first.report
    assert again.solution == first.solution
    assert same_weights(again.module, first.module)


def test_another_budget_shares_the_tables(copied: Path) -> None:
    before = kept(copied)
    other = lm.compress(network(), task(), budget="1.25x", run_dir=copied, settings=settings())
    after = kept(copied)
    # What was learned on the way is added to the latency table; nothing is measured twice.
    assert after["latency.jsonl"].startswith(before.pop("latency.jsonl"))
    assert before.items() <= after.items()
    after.pop("latency.jsonl")
    assert {Path(name).parts[:2] for name in after.keys() - before.keys()} == {("layermerge", "1.25x")}
    assert other.report.budget_ms == pytest.approx(other.report.original_ms / 1.25)
    assert other.report.measured_ms <= other.report.budget_ms


@pytest.mark.parametrize("name", ["result.json", "model.onnx", "model.safetensors", "solution.json"])
def test_a_file_that_is_gone_is_made_again(copied: Path, finished: tuple[Path, Result], name: str) -> None:
    before, watched = kept(copied), task()
    (copied / PLACE / name).unlink()
    again = lm.compress(network(), watched, budget=BUDGET, run_dir=copied, settings=settings())
    assert watched.drawn == 1
    assert again.report == finished[1].report
    assert same_weights(again.module, finished[1].module)
    after = kept(copied)
    assert after.keys() == before.keys()
    # An exporter may name things otherwise; a result, compared above, says when it was measured.
    unchanged = before.keys() - {str(PLACE / "model.onnx"), str(PLACE / "result.json")}
    assert {key: after[key] for key in unchanged} == {key: before[key] for key in unchanged}


def test_another_recipe_under_the_same_label_is_refused(copied: Path) -> None:
    changed = tiny_runs.FINETUNE.model_copy(update={"lr": 0.5})
    line = refusal(copied, network(), finetune=changed)
    assert "lr: 0.02 there, 0.5 now" in line


def test_another_label_shares_tables_and_choice(copied: Path, finished: tuple[Path, Result]) -> None:
    before = kept(copied)
    changed = settings(finetune=Recipe(steps=3, batch_size=16), label="short")
    other = lm.compress(network(), task(), budget=BUDGET, run_dir=copied, settings=changed)
    after = kept(copied)
    # What was learned on the way is added to the latency table; nothing is measured twice.
    assert after["latency.jsonl"].startswith(before.pop("latency.jsonl"))
    assert before.items() <= after.items()
    after.pop("latency.jsonl")
    assert {Path(name).parts[:3] for name in after.keys() - before.keys()} == {("layermerge", "70pct", "short")}
    assert other.solution == finished[1].solution
    assert not same_weights(other.module, finished[1].module)


def test_another_network_in_the_same_directory_is_refused(copied: Path) -> None:
    line = refusal(copied, network(width=6))
    assert line == f"'{copied}' holds the run of another network than this TinyNet; give another run directory"


def test_other_weights_other_data_and_other_copies_are_refused(copied: Path) -> None:
    torch.manual_seed(1)
    assert "weights: " in refusal(copied, tiny_runs.TinyNet())
    assert "recipe.lr: 0.01 there, 0.1 now" in refusal(
        copied, network(), importance=Recipe(steps=2, batch_size=16, lr=0.1)
    )
    assert "batch: 1 there, 4 now" in refusal(copied, network(), batch_size=4)
    with pytest.raises(lm.LayerMergeError, match=r"task\.data_fingerprint: "):
        lm.compress(network(), task(seed=6), budget=BUDGET, run_dir=copied, settings=settings())


def test_the_same_in_another_directory_gives_the_same_bits(tmp_path: Path, finished: tuple[Path, Result]) -> None:
    again = lm.compress(network(), task(), budget=BUDGET, run_dir=tmp_path, settings=settings(workers=2))
    assert again.solution == finished[1].solution
    assert same_weights(again.module, finished[1].module)
    mine, theirs = (load_file(place / "model.safetensors") for place in (again.directory, finished[1].directory))
    assert all(torch.equal(mine[name], theirs[name]) for name in mine.keys() | theirs.keys())
    assert again.report.score == finished[1].report.score


def test_a_budget_out_of_reach_is_said_and_leaves_tables_only(copied: Path) -> None:
    before = contents(copied)
    with pytest.raises(InfeasibleBudget, match=r"the smallest reachable latency is \d+\.\d+ ms") as caught:
        lm.compress(network(), task(), budget="5%", run_dir=copied, settings=settings())
    after = contents(copied)
    assert after.pop("latency.jsonl").startswith(before.pop("latency.jsonl"))
    assert after == before
    smallest = f"{caught.value.smallest_ms * 1.0001:.4f}ms"  # what it names can be asked for
    reached = lm.compress(network(), task(), budget=smallest, run_dir=copied, settings=settings())
    assert reached.report.measured_ms == pytest.approx(caught.value.smallest_ms)


def test_a_failure_that_passes_does_not_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The untouched network could not be scored once, say for lack of memory; the next call tries again."""
    chosen = settings(runtime="priced-modules", method="layeronly")
    with monkeypatch.context() as patch:
        patch.setattr(tiny_runs.CountingTask, "evaluate", lambda *_: 1 / 0)
        with pytest.raises(lm.LayerMergeError, match="'untouched network' could not be measured: "):
            lm.compress(network(), task(), budget=BUDGET, run_dir=tmp_path, settings=chosen)
    assert lm.compress(network(), task(), budget=BUDGET, run_dir=tmp_path, settings=chosen).report.convs_after == 3


def test_killed_at_random_moments_it_ends_with_the_same_bits(tmp_path: Path) -> None:
    """The kills come from outside, with SIGKILL: twice while importance is measured, twice in fine-tuning."""
    environment = os.environ | {"PYTHONPATH": str(TESTS), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, str(TESTS / "killed_compress.py"), str(tmp_path)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["killed", "4"]
    undisturbed, resumed = (contents(tmp_path / name) for name in ("undisturbed", "killed"))
    assert undisturbed.keys() == resumed.keys()
    for name in (str(PLACE / "model.safetensors"), str(PLACE / "solution.json")):
        assert undisturbed[name] == resumed[name]
