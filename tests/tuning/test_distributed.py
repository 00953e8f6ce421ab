"""Two processes that act as one: they end with the same weights, which are those of a single process."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from layermerge.errors import TuningError
from layermerge.tuning.distributed import join_processes
from layermerge.tuning.loop import train_steps
from layermerge.tuning.recovery import read_recovery
from tuning.toy_task import ToyTask, network, run_script, weights
from tuning.two_processes import FULL, PLAIN, plain


def require_same(one: dict[str, Tensor], other: dict[str, Tensor]) -> None:
    """By name and to the bit."""
    torch.testing.assert_close(one, other, rtol=0, atol=0)


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("two")
    done = run_script("two_processes.py", directory)
    assert done.returncode == 0, done.stderr
    # Only the first process prints: one line for each of three epochs.
    assert sum(line.startswith("epoch ") for line in done.stderr.splitlines()) == 3
    return directory


@pytest.mark.parametrize("name", ["plain", "full", "alone"])
def test_both_end_with_the_same_weights(results: Path, name: str) -> None:
    require_same(load_file(results / f"{name}0.safetensors"), load_file(results / f"{name}1.safetensors"))


def test_they_are_those_of_a_single_process(results: Path) -> None:
    expected = weights(plain(PLAIN))
    torch.testing.assert_close(load_file(results / "plain0.safetensors"), expected, rtol=1e-10, atol=1e-12)


def test_a_resumed_pair_ends_like_an_undisturbed_one(results: Path) -> None:
    one, other = (load_file(results / place / "checkpoint.safetensors") for place in ("undisturbed", "resumed"))
    require_same(one, other)
    averages = {name.removeprefix("average."): value for name, value in one.items() if name.startswith("average.")}
    require_same(averages, load_file(results / "full0.safetensors"))
    assert len(read_recovery(results / "resumed")) == 4


def test_few_steps_are_taken_alone(results: Path) -> None:
    """A table's entries are measured by processes that do not wait for each other."""
    require_same(load_file(results / "alone0.safetensors"), weights(train_steps(network(), ToyTask(), FULL)))


def test_a_batch_that_cannot_be_split_is_refused(results: Path) -> None:
    for rank in (0, 1):
        text = (results / f"refusal{rank}.txt").read_text()
        assert text == "batch_size 15 cannot be split evenly over 2 processes; make it a multiple of 2"


def test_processes_that_cannot_meet_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    for name in ("RANK", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(TuningError, match=r"WORLD_SIZE is 2 but the processes cannot meet \(.*\); start with torchrun"):
        join_processes(torch.device("cpu"))
