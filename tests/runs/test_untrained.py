"""Runs without training: tables, choice, calibration, merge and export from images alone; and fine-tuning from there."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

import layermerge as lm
from layermerge.runs.directory import RunDirectory
from layermerge.runs.recipe import Settings
from layermerge.runs.records import Result
from layermerge.tuning.recipe import Distillation, Recipe
from tiny_runs import accuracy_of, arrays, contents, network, normalised, priced_runtimes, served_logits, task


@pytest.fixture(scope="module", autouse=True)
def _priced() -> Iterator[None]:
    with priced_runtimes():
        yield


def compress(place: Path, **changes: object) -> Result:
    given = {"runtime": "priced", "finetune": None, "calibrate": 100, "label": "untrained"} | changes
    return lm.compress(network(), task(), budget="60%", run_dir=place, settings=Settings.model_validate(given))


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("untrained")


@pytest.fixture(scope="module")
def result(place: Path) -> Result:
    return compress(place)


def test_nothing_is_trained_and_the_file_is_the_calibrated_network(place: Path, result: Result) -> None:
    report, data = result.report, arrays()
    assert (report.epochs, report.budget_kept) == (0, True)
    assert not (result.directory / "recovery.jsonl").exists()
    calibrated = lm.load(result.directory / "calibrated", network())
    assert calibrated.surgery.fits
    assert report.calibrated == task().evaluate(calibrated)
    served = served_logits(result.directory / "model.onnx", normalised(data["x_test"]))
    with torch.no_grad():
        expected = lm.merge(calibrated)(torch.from_numpy(normalised(data["x_test"]))).numpy()
    assert np.abs(served - expected).max() < 1e-4 * np.abs(expected).max()
    assert report.score.value == pytest.approx(accuracy_of(served, data["y_test"]))
    assert RunDirectory(place).choices()[0].objective == "delta"


def test_calibration_brings_back_what_surgery_took(result: Result) -> None:
    assert result.solution is not None
    cut = lm.rewrite(lm.trace(network(), task().example_inputs()), result.solution.candidates)
    assert result.report.held_out > task().evaluate(cut)


def test_a_second_time_nothing_is_done_again(place: Path, result: Result) -> None:
    before = contents(place)
    assert compress(place).report == result.report
    after = contents(place)
    assert {name for name in after if before.get(name) != after[name]} <= {"report.html"}


def test_fine_tuning_begins_with_the_calibrated_network(place: Path, result: Result) -> None:
    recipe = Recipe(epochs=1, batch_size=16, lr=0.01, distill=Distillation())
    tuned = compress(place, finetune=recipe, label="tuned")
    first = RunDirectory(place).variant("layermerge", "60%", "tuned").read_recovery()[0]
    assert first.score == pytest.approx(result.report.calibrated)
    assert tuned.report.epochs == 1


def test_without_calibration_the_network_stays_as_it_was_rewritten(place: Path, result: Result) -> None:
    plain = compress(place, calibrate=0, label="plain")
    assert plain.report.calibrated is None
    assert not (plain.directory / "calibrated").exists()
    assert plain.report.held_out < result.report.held_out
