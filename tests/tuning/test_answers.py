"""A teacher's answers: kept once, then read, and never believed where the teacher would say something else."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from layermerge.tuning import answers
from layermerge.tuning.loop import finetune
from layermerge.tuning.recipe import Recipe
from tuning.toy_task import ToyTask, network, recipe, same

DISTILLED = {"temperature": 2.0, "weight": 0.5}


class Counting(nn.Module):
    """Notes how often it is asked."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner, self.asked = inner, 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.asked += 1
        return self.inner(x)  # type: ignore[no-any-return]


def teacher() -> Counting:
    return Counting(network(seed=11)).eval()


def train(folder: Path | None, taught: nn.Module, how: Recipe | None = None, task: ToyTask | None = None) -> nn.Module:
    given = how or recipe(distill=DISTILLED)
    return finetune(network(), task or ToyTask(), given, teacher=taught, answers=folder, show_progress=False)


def test_kept_answers_train_as_asked_ones_do(tmp_path: Path) -> None:
    expected = train(None, teacher())
    first, second = teacher(), teacher()
    assert same(expected, train(tmp_path, first))
    assert same(expected, train(tmp_path, second))
    assert first.asked == 8  # two epochs of four batches
    assert second.asked == 2  # once an epoch, to see that it would still say the same
    assert len(list(tmp_path.glob("*.safetensors"))) == 2


def test_a_longer_training_continues_where_a_shorter_one_ended(tmp_path: Path) -> None:
    train(tmp_path, teacher())
    longer = teacher()
    train(tmp_path, longer, recipe(epochs=3, distill=DISTILLED))
    assert longer.asked == 1 + 1 + 4


@pytest.mark.parametrize("change", [{"seed": 1}, {"batch_size": 32}, {"subset": 32}, {"precision": "bfloat16"}])
def test_other_batches_are_asked_about(tmp_path: Path, change: dict[str, object]) -> None:
    train(tmp_path, teacher())
    other, asked = teacher(), teacher()
    how = recipe(distill=DISTILLED, **change)
    assert same(train(tmp_path, other, how), train(None, asked, how))
    assert other.asked == asked.asked


def test_another_teacher_is_asked(tmp_path: Path) -> None:
    train(tmp_path, teacher())
    other = Counting(network(seed=12)).eval()
    train(tmp_path, other)
    assert other.asked == 8


def test_a_file_that_the_teacher_contradicts_is_replaced(tmp_path: Path) -> None:
    expected = train(tmp_path, teacher())
    for file in tmp_path.iterdir():
        save_file({name: value + 1 for name, value in load_file(file).items()}, file)
    asked = teacher()
    assert same(expected, train(tmp_path, asked))
    assert asked.asked == 8
    again = teacher()
    train(tmp_path, again)
    assert again.asked == 2


@pytest.mark.parametrize("content", [b"", b"\x08\0\0\0\0\0\0\0{}      ", b"nonsense" * 9])
def test_a_damaged_file_is_replaced(tmp_path: Path, content: bytes) -> None:
    expected = train(tmp_path, teacher())
    for file in tmp_path.iterdir():
        file.write_bytes(content)
    assert same(expected, train(tmp_path, teacher()))
    assert all(len(load_file(file)["answers"]) == 4 for file in tmp_path.iterdir())


def test_an_epoch_that_is_resumed_is_not_kept_in_part(tmp_path: Path) -> None:
    folder, place, how = tmp_path / "answers", tmp_path / "run", recipe(distill=DISTILLED, checkpoint_steps=1)
    with pytest.raises(KeyboardInterrupt):
        finetune(
            network(), ToyTask(break_at=2), how, teacher=teacher(), answers=folder, directory=place, show_progress=False
        )
    resumed = finetune(
        network(), ToyTask(), how, teacher=teacher(), answers=folder, directory=place, show_progress=False
    )
    assert same(resumed, train(None, teacher()))
    assert [file.stem.rsplit("-")[-1] for file in folder.iterdir()] == ["1"]


def test_what_another_training_writes_meanwhile_is_taken_up(tmp_path: Path) -> None:
    class Late(Counting):
        """The other training ends while this one is in its first epoch."""

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if self.asked == 2:
                train(tmp_path, teacher())
            return super().forward(x)

    late = Late(network(seed=11)).eval()
    assert same(train(tmp_path, late), train(None, teacher()))
    assert late.asked == 3 + 1


def test_too_many_to_keep_are_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answers, "LARGEST", 4 * 16 * 5 * 4 - 1)  # batches, images, classes, bytes
    train(tmp_path, teacher())
    assert not list(tmp_path.iterdir())
