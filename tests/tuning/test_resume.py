"""Fine-tuning that was interrupted ends with the bits of one that was not; what does not fit is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import nn

from layermerge.errors import ArtifactError, LayerMergeError, TuningError
from layermerge.files import exclusive
from layermerge.tuning.loop import LOCK, finetune
from layermerge.tuning.recovery import Epoch, read_recovery
from tuning.toy_task import ToyTask, network, recipe, run_script, same

FILE = "checkpoint.safetensors"
WAYS: dict[str, dict[str, Any]] = {
    "sgd": {},
    "plain_sgd": {"momentum": 0.0, "nesterov": False},
    "adamw_channels_last_average": {"optimizer": "adamw", "lr": 0.01, "channels_last": True, "ema": 0.9},
    "clipped_channels_last": {"channels_last": True, "clip_norm": 0.2, "warmup_epochs": 0.5},
    "float16": {"precision": "float16", "clip_norm": 1.0},
    "distilled": {"distill": {"temperature": 3.0, "weight": 0.5}},
}


def run(directory: Path | None, task: ToyTask | None = None, net: nn.Module | None = None, **changes: Any) -> nn.Module:
    given = recipe(**{"epochs": 2.5, "checkpoint_steps": 3} | changes)
    return finetune(
        net or network(),
        task or ToyTask(),
        given,
        directory=directory,
        teacher=network(seed=8) if given.distill else None,
        show_progress=False,
    )


@pytest.mark.parametrize("way", WAYS)
def test_interrupted_anywhere_it_ends_with_the_same_bits(tmp_path: Path, way: str) -> None:
    undisturbed = run(None, **WAYS[way])
    for break_at in (0, 3, 5, 9) if way == "adamw_channels_last_average" else (5,):
        directory = tmp_path / str(break_at)
        with pytest.raises(KeyboardInterrupt):
            run(directory, ToyTask(break_at=break_at), **WAYS[way])
        task = ToyTask()
        assert same(undisturbed, run(directory, task, **WAYS[way]))
        known = max(step for step in (0, 3, 4, 6, 8, 9, 10) if step <= break_at)
        assert task.given == 10 - known


def test_what_it_logs_is_the_same_too(tmp_path: Path) -> None:
    run(tmp_path / "a")
    for break_at in (2, 5, 1):
        with pytest.raises(KeyboardInterrupt):
            run(tmp_path / "b", ToyTask(break_at=break_at))
    run(tmp_path / "b")
    one, other = ([epoch.model_dump(exclude={"seconds"}) for epoch in read_recovery(tmp_path / d)] for d in "ab")
    assert one == [
        pytest.approx(epoch) for epoch in other
    ]  # losses and scores are outputs, which may be rounded otherwise
    seconds = [epoch.seconds for epoch in read_recovery(tmp_path / "b")]
    assert seconds == sorted(seconds)


def test_a_finished_run_returns_at_once(tmp_path: Path) -> None:
    first = run(tmp_path, ema=0.9)
    files = {path: path.read_bytes() for path in tmp_path.iterdir()}
    task = ToyTask()
    assert same(first, run(tmp_path, task, ema=0.9))
    assert (task.given, task.evaluations) == (0, 0)
    assert files == {path: path.read_bytes() for path in tmp_path.iterdir()}


def test_shared_and_odd_tensors_survive(tmp_path: Path) -> None:
    def tied() -> nn.Module:
        torch.manual_seed(0)
        net = nn.Sequential(
            nn.Conv2d(3, 3, 3, padding=1), nn.Conv2d(3, 3, 3, padding=1), nn.Flatten(), nn.Linear(192, 5)
        )
        net[1].weight = net[0].weight
        net.register_parameter("scale", nn.Parameter(torch.tensor(2.0)))
        net.register_buffer("none", torch.zeros(0))
        return net

    undisturbed = run(None, net=tied(), optimizer="adam", lr=0.01)
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, ToyTask(break_at=7), tied(), optimizer="adam", lr=0.01)
    resumed = run(tmp_path, net=tied(), optimizer="adam", lr=0.01)
    assert same(undisturbed, resumed)


def test_killed_at_random_moments_it_ends_with_the_same_bits(tmp_path: Path) -> None:
    """The kills come from outside, with SIGKILL, also in the midst of writing."""
    done = run_script("killed_runs.py", tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["killed", "6", "same", "True"]
    assert {path.name for path in tmp_path.iterdir()} == {FILE, "recovery.jsonl", "recovery.csv", LOCK}


# -- refusals


def refusal(directory: Path, **more: Any) -> str:
    before = {path: path.read_bytes() for path in directory.iterdir()}
    with pytest.raises(LayerMergeError) as caught:
        run(directory, **more)
    assert "\n" not in str(caught.value)
    assert before == {path: path.read_bytes() for path in directory.iterdir()}
    return str(caught.value)


def test_a_checkpoint_of_another_run_is_refused_with_the_difference(tmp_path: Path) -> None:
    run(tmp_path, epochs=1)
    assert "(lr: 0.1 there, 0.2 now); give another directory or remove it" in refusal(tmp_path, epochs=1, lr=0.2)
    shown = refusal(tmp_path, epochs=3, seed=1)
    assert "epochs: 1.0 there, 3.0 now; seed: 0 there, 1 now" in shown
    assert "task examples: 64 there, 70 now" in refusal(tmp_path, epochs=1, task=ToyTask(70))
    assert "(initial_weights: " in refusal(tmp_path, epochs=1, net=network(seed=4))
    assert "(network: " in refusal(tmp_path, epochs=1, net=network(norm=False))


def test_another_teacher_is_another_run(tmp_path: Path) -> None:
    for seed, problem in ((1, None), (2, r"\(teacher: \w+ there, \w+ now\)")):
        given = recipe(steps=1, distill={})
        teacher = network(seed=seed)
        if problem is None:
            finetune(network(), ToyTask(), given, teacher=teacher, directory=tmp_path, show_progress=False)
        else:
            with pytest.raises(TuningError, match=problem):
                finetune(network(), ToyTask(), given, teacher=teacher, directory=tmp_path, show_progress=False)


def test_how_often_to_save_may_change(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, ToyTask(break_at=5), checkpoint_steps=1)
    assert same(run(tmp_path, checkpoint_steps=100), run(None))


def test_a_truncated_checkpoint_is_refused(tmp_path: Path) -> None:
    run(tmp_path)
    path = tmp_path / FILE
    whole = path.read_bytes()
    for part in (b"", whole[:7], whole[: len(whole) // 2], whole[:-1], b"x" * 100):
        path.write_bytes(part)
        assert "is truncated or not a checkpoint" in refusal(tmp_path)
    save_file({"a": torch.zeros(1)}, path)
    assert "is truncated or not a checkpoint" in refusal(tmp_path)


def test_a_checkpoint_without_its_tensors_is_refused(tmp_path: Path) -> None:
    run(tmp_path)
    path = tmp_path / FILE
    with safe_open(path, framework="pt") as file:
        header = file.metadata()
    tensors = load_file(path)
    del tensors["model.0.weight"]
    save_file(tensors, path, metadata=header)
    assert "lacks what it should hold" in refusal(tmp_path)


def test_a_directory_that_is_a_file_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(LayerMergeError, match="cannot be written: there is a file where a directory should be"):
        run(tmp_path / "file")


def test_a_checkpoint_of_an_earlier_format_is_refused(tmp_path: Path) -> None:
    run(tmp_path)
    path = tmp_path / FILE
    with safe_open(path, framework="pt") as file:
        header = json.loads(file.metadata()["layermerge"])
    tensors = load_file(path)
    for version, message in ((1, "has an earlier format (1, now 2)"), ("new", "has no schema_version")):
        save_file(tensors, path, metadata={"layermerge": json.dumps(header | {"schema_version": version})})
        assert message in refusal(tmp_path)
    save_file(tensors, path, metadata={"layermerge": json.dumps(header | {"step": "many"})})
    assert "(step: Input should be a valid integer" in refusal(tmp_path)


def test_one_process_at_a_time_trains_into_a_directory(tmp_path: Path) -> None:
    """Also before there is a checkpoint; a run that was interrupted lets go of it."""
    with exclusive(tmp_path / LOCK, "it"), pytest.raises(ArtifactError, match="is being written by another process"):
        run(tmp_path)
    task = ToyTask()

    def second(_: Epoch) -> None:
        assert "is being written by another process; wait for it or stop it" in refusal(tmp_path)

    finetune(network(), task, recipe(steps=2), directory=tmp_path, show_progress=False, on_epoch=second)
    assert task.given == 2
