"""Classification: losses and intervals against their formulas; batches that skipping and sharing do not change."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from layermerge.errors import DataError
from layermerge.tasks import Classification, Draw, Preparation, Score
from layermerge.tasks.classification import wilson_interval

CLASSES = 5
PREPARATION = Preparation(augment="crop_flip", pad=1)


def arrays(count: int, seed: int = 0) -> tuple[Any, Any]:
    generator = np.random.default_rng(seed)
    pixels = generator.integers(0, 256, (count, 4, 4, 3), dtype=np.uint8)
    return pixels, generator.integers(0, CLASSES, count)


def task(**options: Any) -> Classification:
    return Classification(arrays(203), arrays(60, 1), **{"preparation": PREPARATION, **options})


def network() -> nn.Sequential:
    return nn.Sequential(nn.Flatten(), nn.BatchNorm1d(48), nn.Linear(48, CLASSES))


def batches(draw: Draw, **options: Any) -> list[tuple[Tensor, ...]]:
    return list(task(**options).train_batches(draw))


def same(first: list[tuple[Tensor, ...]], second: list[tuple[Tensor, ...]]) -> bool:
    return len(first) == len(second) and all(
        torch.equal(a, b) for one, other in zip(first, second, strict=True) for a, b in zip(one, other, strict=True)
    )


# -- draws


def test_the_same_draw_gives_the_same_batches_and_another_does_not() -> None:
    draw = Draw(seed=3, batch_size=16, epoch=1)
    torch.manual_seed(1)
    before = torch.get_rng_state()
    assert same(batches(draw), batches(draw))
    assert torch.equal(torch.get_rng_state(), before)
    assert not same(batches(draw), batches(Draw(seed=3, batch_size=16, epoch=2)))
    assert not same(batches(draw), batches(Draw(seed=4, batch_size=16, epoch=1)))


def test_skipping_leaves_the_rest_as_it_is() -> None:
    assert same(batches(Draw(3, 16, first=4)), batches(Draw(3, 16))[4:])
    assert batches(Draw(3, 16, first=99)) == []


def test_shares_are_slices_of_each_batch() -> None:
    whole = batches(Draw(3, 16))
    shares = [batches(Draw(3, 16, share=(rank, 3))) for rank in range(3)]
    for rank, share in enumerate(shares):
        assert same(share, [tuple(tensor[rank::3] for tensor in batch) for batch in whole])
    with pytest.raises(DataError, match="a batch of 2 cannot be shared among 3 processes; take a larger batch_size"):
        batches(Draw(3, 2, share=(0, 3)))


def test_an_epoch_holds_every_training_image_once_and_drops_the_incomplete_batch() -> None:
    plain = task(preparation=Preparation(), held_out=20)
    count = int(str(plain.describe()["train_count"]))
    assert count + int(str(plain.describe()["held_out_count"])) == 203
    drawn = list(plain.train_batches(Draw(0, 16)))
    assert len(drawn) == plain.steps_per_epoch(16) == count // 16
    assert {len(labels) for _, labels in drawn} == {16}
    images = torch.cat([images for images, _ in drawn]).flatten(1)
    assert len({tuple(image.tolist()) for image in images}) == 16 * len(drawn)
    (only,) = plain.train_batches(Draw(0, 1000))
    assert len(only[0]) == count
    assert plain.steps_per_epoch(1000) == 1


def test_a_subset_is_the_same_in_every_epoch_and_in_proportion() -> None:
    def drawn(seed: int, epoch: int) -> list[float]:
        plain = task(preparation=Preparation())
        ((images, labels),) = plain.train_batches(Draw(seed, 50, epoch=epoch, subset=50))
        everything = torch.cat([labels for _, labels in plain.train_batches(Draw(0, 1000))])
        expected = everything.bincount() * 50 / len(everything)
        assert bool(((labels.bincount() - expected).abs() < 1).all())
        return sorted(images.flatten(1).double().mul(torch.arange(1, 49)).sum(1).tolist())

    assert drawn(0, 0) == drawn(0, 5)
    assert drawn(0, 0) != drawn(1, 0)
    assert task().steps_per_epoch(16, subset=50) == 3


def test_nothing_held_out_is_trained_on() -> None:
    plain = task(preparation=Preparation(), held_out=40)
    seen: list[Tensor] = []

    def keep(images: Tensor) -> Tensor:
        seen.append(images)
        return torch.zeros(len(images), CLASSES)

    plain.evaluate(keep)
    held = {tuple(image.tolist()) for image in torch.cat(seen).flatten(1)}
    ((trained, _),) = plain.train_batches(Draw(0, 1000))
    assert len(held) + len(trained) == 203
    assert not held & {tuple(image.tolist()) for image in trained.flatten(1)}


def test_the_tail_is_held_out() -> None:
    described = task(held_out_from=150).describe()
    assert (described["train_count"], described["held_out_count"]) == (150, 53)
    with pytest.raises(DataError, match="leave out the held-out set"):
        task(held_out=arrays(5), held_out_from=150)


# -- scores


def test_accuracy_counts_right_answers() -> None:
    pixels, labels = arrays(60, 1)

    def answers(images: Tensor) -> Tensor:
        given = images.mean((1, 2, 3)).mul(1e4).long() % CLASSES
        return nn.functional.one_hot(given, CLASSES).float()

    prepared = torch.from_numpy(pixels).permute(0, 3, 1, 2).float().div(255)
    right = int((answers(prepared).argmax(1) == torch.from_numpy(labels)).sum())
    score = task(eval_batch_size=7).test(answers)
    assert (score.value, score.count) == (right / 60, 60)
    assert (score.low, score.high) == wilson_interval(right, 60)
    own = task(held_out=(pixels, labels)).evaluate(answers)
    assert own == right / 60


@pytest.mark.parametrize(("correct", "count"), [(0, 10), (10, 10), (1, 3), (812, 1500)])
def test_the_interval_ends_where_the_score_is_1_96_deviations_away(correct: int, count: int) -> None:
    """Wilson's definition: what was seen is just not surprising, by the deviation that the end itself implies."""
    low, high = wilson_interval(correct, count)
    assert 0 <= low < high <= 1
    for end in (low, high):
        deviation = (end * (1 - end) / count) ** 0.5
        assert abs(correct / count - end) == pytest.approx(1.959964 * deviation, abs=1e-6)


def test_the_interval_by_scipy() -> None:
    # scipy.stats.binomtest(812, 1500).proportion_ci(0.95, method="wilson")
    assert wilson_interval(812, 1500) == pytest.approx((0.5160433358723321, 0.5664121645214663), abs=1e-12)


def test_modes_are_put_back_and_evaluation_changes_nothing() -> None:
    model = network()
    model.train()
    model[1].eval()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    scores = {task().evaluate(model), task().evaluate(model), task(eval_batch_size=3).evaluate(model)}
    assert len(scores) == 1
    assert [module.training for module in model.modules()] == [True, True, False, True]
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


@pytest.mark.parametrize("wrap", [lambda y: (y, None), lambda y: [y], lambda y: SimpleNamespace(logits=y), lambda y: y])
def test_logits_are_found(wrap: Any) -> None:
    model = network().eval()
    assert task().evaluate(lambda images: wrap(model(images))) == task().evaluate(model)


@pytest.mark.parametrize(
    ("output", "message"),
    [
        ("text", "the network gives a str, not images x classes; wrap it so that it returns its logits"),
        (torch.zeros(3, 5, 2, 2), r"the network gives a tensor of shape \(3, 5, 2, 2\), not images x classes"),
        (
            torch.zeros(3, 4),
            "the train arrays has label 4, but the network has 4 outputs; it belongs to another data set",
        ),
    ],
)
def test_outputs_that_are_refused(output: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        task().test(lambda _: output)


def test_a_network_of_more_outputs_than_classes_is_a_warning_once() -> None:
    pixels, labels = arrays(40)
    mine = Classification((pixels, labels * 0), (pixels, labels * 0))
    message = "the train arrays has images of 1 of the network's 2 classes; scores say nothing about the others"
    with pytest.warns(UserWarning, match=message) as warned:
        mine.evaluate(lambda images: torch.eye(2)[[0] * len(images)])
    assert len(warned) == 1
    assert "layermerge" in Path(warned[0].filename).parts  # so the command line shows it
    assert mine.test(lambda images: torch.eye(2)[[0] * len(images)]).value == 1.0  # without another


def test_scores_have_a_title_and_a_scale() -> None:
    share, loss = Score("accuracy", 0.5, 10), Score("noise loss", 0.5, 10, kind="loss")
    assert (share.title, share.scale, loss.title, loss.scale) == ("accuracy (%)", 100.0, "noise loss", 1.0)


# -- losses


def test_loss_is_smoothed_cross_entropy() -> None:
    logits, labels = torch.randn(6, CLASSES, dtype=torch.float64), torch.tensor([0, 1, 2, 3, 4, 0])
    smoothed = torch.full((6, CLASSES), 0.1 / CLASSES, dtype=torch.float64)
    smoothed[torch.arange(6), labels] += 0.9
    expected = -(smoothed * (logits.exp() / logits.exp().sum(1, keepdim=True)).log()).sum(1).mean()
    assert task().loss(logits, (torch.zeros(6), labels), label_smoothing=0.1).item() == pytest.approx(expected.item())
    with pytest.raises(DataError, match="the train arrays has label 4, but the network has 2 outputs"):
        task().loss(logits[:, :2], (torch.zeros(6), labels))


def test_distance_is_hintons() -> None:
    student, teacher = torch.randn(2, 6, CLASSES, dtype=torch.float64)
    temperature = 3.0
    p = (teacher / temperature).exp() / (teacher / temperature).exp().sum(1, keepdim=True)
    q = (student / temperature).exp() / (student / temperature).exp().sum(1, keepdim=True)
    expected = temperature**2 * (p * (p / q).log()).sum(1).mean()
    assert task().distance(student, (teacher,), temperature).item() == pytest.approx(expected.item())
    assert task().distance(student, student, 2.0).item() == pytest.approx(0, abs=1e-12)


# -- provenance


def test_the_description_is_plain_and_names_what_matters() -> None:
    described = task().describe()
    assert all(value is None or isinstance(value, (str, int, float, bool)) for value in described.values())
    assert described == task(workers=2, eval_batch_size=9).describe()
    fingerprint = described["data_fingerprint"]
    assert isinstance(fingerprint, str)
    assert len(fingerprint) == 32
    changed = arrays(203)
    changed[0][5, 0, 0, 0] ^= 1
    others = [task(seed=1), task(held_out=0.2), Classification(changed, arrays(60, 1), preparation=PREPARATION)]
    assert len({fingerprint, *(other.describe()["data_fingerprint"] for other in others)}) == 4
    assert task(preparation=Preparation()).describe() != described
