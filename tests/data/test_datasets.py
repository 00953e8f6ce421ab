"""A user's Dataset or DataLoader: split and drawn like arrays; streams are read in order; one line for what does not fit."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from layermerge.errors import DataError
from layermerge.tasks import Classification, Draw, Preparation

TEST = (torch.randn(4, 1, 2, 2), torch.tensor([0, 1, 2, 1]))


class Numbers(Dataset[Any]):
    """Example k is an image full of k; with noise, drawn from every global generator."""

    def __init__(self, count: int = 30, noise: float = 0.0) -> None:
        self.count, self.noise = count, noise

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Any:
        drawn = torch.rand(1, 2, 2) + float(np.random.random())
        return torch.full((1, 2, 2), float(index)) + self.noise * drawn, index % 3


class Flow(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        return ((torch.full((1, 2, 2), float(index)), index % 3) for index in range(30))


def firsts(batches: Any) -> list[list[int]]:
    return [images[:, 0, 0, 0].int().tolist() for images, _ in batches]


def right(images: Tensor) -> Tensor:
    return torch.eye(3)[images[:, 0, 0, 0].long() % 3]


@pytest.mark.parametrize(
    "train",
    [
        Numbers(),
        DataLoader(Numbers(), batch_size=7),
        TensorDataset(
            torch.arange(30.0).view(-1, 1, 1, 1).expand(-1, 1, 2, 2), torch.arange(30, dtype=torch.int32) % 3
        ),
    ],
    ids=["dataset", "loader", "tensors"],
)
def test_datasets_are_split_and_drawn(train: Any) -> None:
    task = Classification(train, TEST, held_out=6)
    assert task.evaluate(right) == 1.0
    drawn = list(task.train_batches(Draw(0, 8)))
    assert [len(labels) for _, labels in drawn] == [8, 8, 8]
    seen = [number for batch in firsts(drawn) for number in batch]
    assert len(set(seen)) == 24
    assert torch.cat([labels for _, labels in drawn]).tolist() == [number % 3 for number in seen]
    assert drawn[0][1].dtype == torch.int64
    assert firsts(task.train_batches(Draw(0, 8, first=1, share=(1, 2)))) == [batch[1::2] for batch in firsts(drawn)[1:]]
    arrays = Classification((torch.zeros(30, 1, 2, 2), torch.arange(30) % 3), TEST, held_out=6)
    assert [labels.tolist() for _, labels in arrays.train_batches(Draw(0, 8))] == [b[1].tolist() for b in drawn]


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_datasets_own_randomness_is_seeded() -> None:
    def drawn(seed: int, workers: int) -> Tensor:
        task = Classification(DataLoader(Numbers(noise=0.5), num_workers=workers), TEST, held_out=6)
        return torch.cat([images for images, _ in task.train_batches(Draw(seed, 8))])

    before = torch.get_rng_state()
    assert torch.equal(drawn(0, 0), drawn(0, 2))
    assert torch.equal(torch.get_rng_state(), before)
    assert not torch.equal(drawn(0, 0).sort(0).values, drawn(1, 0).sort(0).values)


def test_a_loaders_collate_is_kept() -> None:
    def collate(examples: list[Any]) -> Any:
        return torch.stack([image + 100 for image, _ in examples]), torch.tensor([label for _, label in examples])

    task = Classification(DataLoader(Numbers(), collate_fn=collate), TEST, held_out=6)
    assert min(min(batch) for batch in firsts(task.train_batches(Draw(0, 8)))) >= 100


class Cached(Numbers):
    """Keeps what it has read."""

    def __init__(self) -> None:
        super().__init__()
        self.kept: dict[int, Any] = {}

    def __getitem__(self, index: int) -> Any:
        return self.kept.setdefault(index, super().__getitem__(index))


def test_evaluation_leaves_a_datasets_cache_fit_for_training() -> None:
    data = Cached()
    data.targets = [index % 3 for index in range(30)]  # type: ignore[attr-defined]
    Classification(data, data, held_out=6).test(right)
    assert len(data.kept) == 30
    assert not any(image.is_inference() for image, _ in data.kept.values())


def test_streams_are_cut_into_batches_in_order() -> None:
    task = Classification(DataLoader(Flow(), batch_size=7), TEST, held_out=DataLoader(Flow(), batch_size=4))
    assert task.steps_per_epoch(8) == 3
    assert firsts(task.train_batches(Draw(0, 8))) == [list(range(start, start + 8)) for start in (0, 8, 16)]
    assert firsts(task.train_batches(Draw(0, 8, first=2, share=(1, 2)))) == [[17, 19, 21, 23]]
    assert firsts(task.train_batches(Draw(0, 4, subset=9))) == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert firsts(task.train_batches(Draw(0, 64))) == [list(range(30))]
    assert task.evaluate(right) == 1.0
    assert task.describe()["held_out_count"] == 30
    with pytest.raises(DataError, match="the train loader has label 2, but the network has 2 outputs"):
        task.loss(torch.zeros(3, 2), (torch.zeros(3), torch.tensor([0, 1, 0])))


class Length(Flow):
    """Says how long it is, whether or not so many examples come."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count


@pytest.mark.parametrize("count", [20, 40])
@pytest.mark.filterwarnings("ignore:Length of IterableDataset:UserWarning")
def test_a_stream_is_as_long_as_it_says_or_ends_before(count: int) -> None:
    task = Classification(DataLoader(Length(count), batch_size=7), TEST, held_out=Flow())
    assert task.steps_per_epoch(10) == count // 10
    assert firsts(task.train_batches(Draw(0, 10))) == [
        list(range(start, start + 10)) for start in range(0, min(count, 30), 10)
    ]


def test_streams_prepare_their_images_themselves() -> None:
    task = Classification(Flow(), TEST, held_out=Flow(), preparation=Preparation(augment="flip"))
    with pytest.raises(DataError, match="the train dataset prepares its images itself; put augmentation"):
        next(iter(task.train_batches(Draw(0, 4))))


class Broken(Numbers):
    targets = list(range(30))

    def __getitem__(self, index: int) -> Any:
        if index == 11:
            raise KeyError("no such thing\nat all")
        return super().__getitem__(index)


class Triples(Numbers):
    def __getitem__(self, index: int) -> Any:
        return index, index, index


@pytest.mark.parametrize(
    ("train", "message"),
    [
        (
            DataLoader(Flow()),
            "the train loader cannot be split, as it is iterable only; give held_out=a loader of its own",
        ),
        (Flow(), "the train dataset cannot be split"),
        (7, r"train data is a int; give images, a pair \(images, labels\), a map-style Dataset or a DataLoader"),
        (Triples(), "example 0 of the train dataset is a tuple, not a pair of image and label"),
        (Broken(), "example 11 of the train dataset cannot be read: "),
    ],
)
def test_data_that_is_refused(train: Any, message: str) -> None:
    with pytest.raises(DataError, match=message) as raised:
        list(Classification(train, TEST, held_out=3).train_batches(Draw(0, 27)))
    assert "\n" not in str(raised.value)
