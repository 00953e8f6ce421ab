"""The recovery curve: its rows, the files they are in, and what is shown meanwhile."""

from __future__ import annotations

import csv
import importlib
import json
import math
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from layermerge.errors import MissingPackage, TuningError
from layermerge.tasks.base import Network
from layermerge.tuning.loop import finetune, train_steps
from layermerge.tuning.recovery import Epoch, read_recovery
from tuning.toy_task import ToyTask, network, recipe, same


def score(net: nn.Module) -> float:
    with torch.no_grad():
        return ToyTask().evaluate(net.eval())


def test_rows_say_how_the_network_recovers(tmp_path: Path) -> None:
    seen: list[Epoch] = []
    net = network()
    tuned = finetune(net, ToyTask(), recipe(epochs=2.5), directory=tmp_path, show_progress=False, on_epoch=seen.append)
    assert tuned is net
    rows = read_recovery(tmp_path)
    assert rows == seen
    assert [(row.epoch, row.step) for row in rows] == [(0, 0), (1, 4), (2, 8), (2.5, 10)]
    assert [row.lr for row in rows] == pytest.approx(
        [0.0, *(0.05 * (1 + math.cos(math.pi * step / 10)) for step in (3, 7, 9))]
    )
    assert [rows[0].score, rows[-1].score] == pytest.approx([score(network()), score(tuned)])
    assert rows[2].score != rows[1].score
    assert rows[0].train_loss is None
    assert rows[3].train_loss < rows[1].train_loss  # type: ignore[operator]


def test_the_train_loss_is_the_mean_over_the_epoch(tmp_path: Path) -> None:
    losses: list[float] = []

    class Noted(ToyTask):
        def loss(self, *given: Any, **named: Any) -> torch.Tensor:
            value = super().loss(*given, **named)
            losses.append(value.item())
            return value

    finetune(network(), Noted(), recipe(epochs=2), directory=tmp_path, show_progress=False)
    rows = read_recovery(tmp_path)
    assert [rows[1].train_loss, rows[2].train_loss] == pytest.approx([sum(losses[:4]) / 4, sum(losses[4:]) / 4])


def test_files_hold_the_same_rows(tmp_path: Path) -> None:
    finetune(network(), ToyTask(), recipe(), directory=tmp_path, show_progress=False)
    lines = [json.loads(line) for line in (tmp_path / "recovery.jsonl").read_text().splitlines()]
    with (tmp_path / "recovery.csv").open() as file:
        table = list(csv.DictReader(file))
    assert list(table[0]) == list(lines[0]) == ["epoch", "step", "lr", "train_loss", "score", "seconds"]
    assert [[value and float(value) for value in row.values()] for row in table[1:]] == [
        list(row.values()) for row in lines[1:]
    ]


def test_the_average_is_what_is_scored(tmp_path: Path) -> None:
    tuned = finetune(network(), ToyTask(), recipe(ema=0.9), directory=tmp_path, show_progress=False)
    assert read_recovery(tmp_path)[-1].score == pytest.approx(score(tuned))


def test_with_and_without_logging_the_weights_are_the_same(tmp_path: Path) -> None:
    logged = finetune(network(), ToyTask(), recipe(ema=0.9), directory=tmp_path, show_progress=False)
    assert same(logged, train_steps(network(), ToyTask(), recipe(ema=0.9)))


def test_an_undefined_score_is_kept(tmp_path: Path) -> None:
    class Undefined(ToyTask):
        def evaluate(self, network: Network) -> float:
            return math.nan * super().evaluate(network)

    for _ in range(2):
        finetune(network(), Undefined(), recipe(), directory=tmp_path, show_progress=False)
    assert all(math.isnan(row.score) for row in read_recovery(tmp_path))


def test_one_line_per_epoch_or_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    finetune(network(), ToyTask(), recipe())
    output, shown = capfd.readouterr()
    assert output == ""
    assert [line.split(",")[0] for line in shown.splitlines()] == ["epoch 0", "epoch 1", "epoch 2"]
    epoch = Epoch(epoch=1, step=20, lr=0.1, train_loss=0.5, score=0.75, seconds=20.0)
    assert epoch.line(40) == "epoch 1, step 20 of 40: loss 0.5000, score 0.7500, 20 s"
    finetune(network(), ToyTask(), recipe(), show_progress=False)
    assert capfd.readouterr() == ("", "")


def test_tensorboard_gets_the_rows(tmp_path: Path) -> None:
    finetune(network(), ToyTask(), recipe(tensorboard=True), directory=tmp_path, show_progress=False)
    reader = importlib.import_module("tensorboard.backend.event_processing.event_accumulator")
    log = reader.EventAccumulator(str(tmp_path / "tensorboard"))
    log.Reload()
    rows = read_recovery(tmp_path)
    assert [event.step for event in log.Scalars("score")] == [row.step for row in rows]
    assert [event.value for event in log.Scalars("score")] == pytest.approx([row.score for row in rows])
    assert [event.step for event in log.Scalars("train_loss")] == [row.step for row in rows[1:]]


def test_tensorboard_that_cannot_be_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(TuningError, match="no directory; pass directory="):
        finetune(network(), ToyTask(), recipe(tensorboard=True), show_progress=False)
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    with pytest.raises(
        MissingPackage, match=r"needs tensorboard, .* not installed; try: pip install 'layermerge\[tens"
    ):
        finetune(network(), ToyTask(), recipe(tensorboard=True), directory=tmp_path, show_progress=False)


def test_a_curve_that_is_missing_or_bad_is_said(tmp_path: Path) -> None:
    with pytest.raises(TuningError, match="does not exist; fine-tune with directory="):
        read_recovery(tmp_path)
    (tmp_path / "recovery.jsonl").write_text('{"epoch": 1}\n')
    with pytest.raises(TuningError, match="has a bad line"):
        read_recovery(tmp_path)
