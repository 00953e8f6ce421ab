"""Imitation: the distance against numpy, inputs and outputs of any structure, what is held of the original, what is refused."""

from __future__ import annotations

import copy
import math
import pickle
from collections import namedtuple
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import layermerge as lm
import tiny_detector
from layermerge.errors import DataError
from layermerge.tasks import Draw, Imitation, Task, imitation
from layermerge.tasks.answers import floating_tensors
from layermerge.tasks.calling import Call

Pair = namedtuple("Pair", "left right")


@dataclass
class Plain:
    """Outputs of a user's own class, which torch knows nothing of."""

    score: Tensor
    other: Any = None


class Scaled(nn.Module):
    """Says two things of an image: large numbers, and small ones that hardly differ between images."""

    def __init__(self, gain: float = 1.0, shift: float = 0.0) -> None:
        super().__init__()
        self.gain, self.shift = nn.Parameter(torch.tensor(gain)), nn.Parameter(torch.tensor(shift))

    def forward(self, x: Tensor) -> dict[str, Any]:
        large = 1000 * x.flatten(2).mean(2) + 7
        small = 0.01 * x.flatten(1)[:, :5] + 1
        return {"large": large * self.gain, "rest": [small + self.shift, x.argmax(1)]}


def photos(count: int = 60, seed: int = 0) -> Tensor:
    return torch.from_numpy(np.random.default_rng(seed).random((count, 3, 4, 4), dtype=np.float32))


def in_numpy(network: nn.Module, batch: Tensor) -> list[Any]:
    """What the network says of each image: the oracle reads structures by hand."""
    with torch.no_grad():
        said = copy.deepcopy(network).eval()(batch)
    return [said["large"].double().numpy(), said["rest"][0].double().numpy()]


def held_out(task: Imitation) -> Tensor:
    """The images that it evaluates on, seen by a network that it is given."""
    seen: list[Tensor] = []

    class Watching(Scaled):
        def forward(self, x: Tensor) -> dict[str, Any]:
            seen.append(x.clone())
            return super().forward(x)

    task.evaluate(Watching())
    return torch.cat(seen)


# -- the distance


def test_the_score_is_the_squared_error_in_units_of_the_variance_over_the_images() -> None:
    original, other = Scaled(), Scaled(1.1, 0.002)
    task = Imitation(photos(), photos(40, 1), teacher=original, held_out=20, eval_batch_size=7)
    images = held_out(task)
    assert len(images) == 20
    units = [said.var(0, ddof=1).mean() for said in in_numpy(original, images)]

    def relative(batch: Tensor) -> Any:
        pairs = zip(in_numpy(original, batch), in_numpy(other, batch), units, strict=True)
        return np.stack([((mine - theirs) ** 2).mean(1) / unit for theirs, mine, unit in pairs], 1)

    found = relative(images).mean(0)
    assert min(found) > 0.01, "both outputs count, however small their numbers"
    assert task.evaluate(other) == pytest.approx(-(found / (1 + found)).mean(), rel=1e-5)
    each = relative(photos(40, 1)).mean(1)
    half = 1.96 * each.std(ddof=1) / math.sqrt(40)
    score = task.test(other)
    assert (score.name, score.kind, score.count) == ("distance to the original", "loss", 40)
    assert (score.value, score.low, score.high) == pytest.approx(
        (each.mean(), each.mean() - half, each.mean() + half), rel=1e-5
    )

    batch = (photos(9, 2),)
    expected = np.log1p(relative(batch[0]).mean(0)).mean()
    assert task.loss(other(batch[0]), batch).item() == pytest.approx(expected, rel=1e-5)
    assert task.distance(other(batch[0]), original(batch[0]), 4.0).item() == pytest.approx(expected, rel=1e-5)


def test_the_original_scores_0_and_one_that_says_the_mean_about_a_half() -> None:
    task = Imitation(photos(400), photos(100, 1), teacher=Scaled(), held_out=200)
    assert task.evaluate(Scaled()) == 0.0
    score = task.test(Scaled())
    assert (score.value, score.low, score.high) == (0.0, 0.0, 0.0)
    mean = [torch.from_numpy(said.mean(0)).float() for said in in_numpy(Scaled(), held_out(task))]

    class Mean(nn.Module):
        def forward(self, x: Tensor) -> Any:
            return [said.expand(len(x), -1) for said in mean]

    assert task.test(Mean()).value == pytest.approx(1.0, abs=0.1)
    assert task.evaluate(Mean()) == pytest.approx(-0.5, abs=0.01)
    assert task.evaluate(Scaled(1e6)) >= -1.0, "no network scores less, so that bounds on gains hold"
    assert task.ceiling == 0.0


def test_outputs_that_all_images_share_or_that_never_change() -> None:
    class Anchored(Scaled):
        def __init__(self, anchor: float = 2.0, nothing: float = 0.0) -> None:
            super().__init__()
            self.anchor, self.nothing = anchor, nothing

        def forward(self, x: Tensor) -> Any:
            grid = torch.full((6, 4), self.anchor)
            return x, grid, torch.full((len(x), 2), 5.0), torch.full((len(x), 1), self.nothing), x.transpose(0, 1)

    task = Imitation(photos(), teacher=Anchored())
    assert task.evaluate(Anchored()) == 0.0
    # The error of the grid is ((3 - 2) / 2)^2 of its mean square, that of what was 0 is absolute; five tensors in all.
    assert task.test(Anchored(3.0)).value == pytest.approx(0.25 / 5, rel=1e-5)
    assert task.test(Anchored(nothing=0.5)).value == pytest.approx(0.25 / 5, rel=1e-5)


def test_gradients_lead_to_the_original() -> None:
    task, net = Imitation(photos(), teacher=Scaled()), Scaled(2.0, 0.01)
    before = task.evaluate(net)
    lm.finetune(net, task, lm.Recipe(steps=120, batch_size=16, lr=0.03, optimizer="adam"), show_progress=False)
    assert task.evaluate(net) > before / 100
    assert net.gain.item() == pytest.approx(1.0, abs=0.01)


@pytest.mark.parametrize(
    ("outputs", "count"),
    [
        (torch.zeros(1), 1),
        (torch.zeros(1, dtype=torch.int64), 0),
        ((torch.zeros(1), [torch.zeros(2), {"a": torch.zeros(3)}]), 3),
        (Pair(torch.zeros(1), torch.zeros(2)), 2),
        (Plain(torch.zeros(1), (torch.zeros(2), None)), 2),
        ({"a": None, "b": 3, "c": "text", "d": Plain}, 0),
    ],
)
def test_tensors_are_found_in_any_structure(outputs: Any, count: int) -> None:
    found = list(floating_tensors(outputs))
    assert [len(tensor) for tensor in found] == list(range(1, count + 1))


def test_outputs_of_diffusers_are_read() -> None:
    from layermerge.models import import_diffusers

    import_diffusers()
    from diffusers.models.unets.unet_2d import UNet2DOutput

    (sample,) = floating_tensors(UNet2DOutput(sample=torch.ones(2)))
    assert torch.equal(sample, torch.ones(2))


# -- images


def same(first: list[tuple[Tensor, ...]], second: list[tuple[Tensor, ...]]) -> bool:
    return len(first) == len(second) and all(
        torch.equal(a, b) for one, other in zip(first, second, strict=True) for a, b in zip(one, other, strict=True)
    )


def test_draws_are_addressed() -> None:
    mine, twin = (Imitation(photos(103), teacher=Scaled()) for _ in range(2))
    whole = list(mine.train_batches(Draw(3, 16)))
    assert same(whole, list(twin.train_batches(Draw(3, 16))))
    assert same(whole[2:], list(mine.train_batches(Draw(3, 16, first=2))))
    for rank in range(3):
        share = list(mine.train_batches(Draw(3, 16, share=(rank, 3))))
        assert same(share, [tuple(tensor[rank::3] for tensor in batch) for batch in whole])


def test_what_is_trained_on_held_out_and_set_aside_is_disjoint() -> None:
    numbered = torch.arange(100.0)[:, None, None, None].expand(100, 3, 4, 4)
    task = Imitation(numbered, teacher=Scaled())
    seen: list[float] = []

    class Watching(Scaled):
        def forward(self, x: Tensor) -> dict[str, Any]:
            seen.extend(x[:, 0, 0, 0].tolist())
            return super().forward(x)

    trained = {number for (x,) in task.train_batches(Draw(0, 1)) for number in x[:, 0, 0, 0].tolist()}
    task.evaluate(Watching())
    held, seen = set(seen), []
    task.test(Watching())
    aside = set(seen)
    assert (len(trained), len(held), len(aside)) == (81, 9, 10)
    assert trained | held | aside == set(range(100))


def test_every_form_of_images_gives_the_same_task(tmp_path: Path) -> None:
    pixels, labels = photos(40), torch.arange(40) % 3
    forms: list[Any] = [
        pixels,
        pixels.numpy(),
        (pixels, labels),
        TensorDataset(pixels, labels),
        DataLoader(TensorDataset(pixels, labels), batch_size=7, shuffle=True),
        list(torch.split(pixels, 9)),
        [(batch, labels[:9]) for batch in torch.split(pixels, 9)][:4] + [(pixels[36:], labels[:4])],
        ({"x": pixels[at : at + 8], "labels": labels[:8]} for at in range(0, 40, 8)),
        {"x": pixels},
    ]
    tasks = [Imitation(form, teacher=Scaled()) for form in forms]
    scores = [task.evaluate(Scaled(1.2)) for task in tasks]
    assert scores == [scores[0]] * len(forms)
    assert {task.describe()["train_count"] for task in tasks} == {32}
    tiny_detector.write_folder(tmp_path / "photos")
    folder = Imitation(tmp_path / "photos", preparation=lm.tasks.Preparation(size=12, crop_pct=1.0), teacher=Scaled())
    (batch,) = next(iter(folder.train_batches(Draw(0, 54))))
    wanted = {image.numpy().tobytes() for image in tiny_detector.images()}
    assert {image.numpy().tobytes() for image in batch} <= wanted


class TwoInputs(nn.Module):
    """Takes an image and a time, and perhaps labels, with which it would compute a loss."""

    def forward(self, x: Tensor, t: Tensor, labels: Tensor | None = None) -> Any:
        assert labels is None
        return Plain(x * t.view(-1, 1, 1, 1), t.float())


def test_networks_of_several_inputs_get_them_by_place_or_by_name() -> None:
    x, t, labels = photos(40), torch.arange(40), torch.arange(40) % 3
    by_place = Imitation((x, t, labels), teacher=TwoInputs())
    by_name = Imitation({"t": t, "labels": labels, "x": x}, teacher=TwoInputs())
    assert [tuple(tensor.shape) for tensor in by_place.example_inputs()] == [(2, 3, 4, 4), (2,)]
    assert {name: tuple(tensor.shape) for name, tensor in by_name.example_inputs().items()} == {
        "x": (2, 3, 4, 4),
        "t": (2,),
    }
    for task in (by_place, by_name):
        assert task.evaluate(TwoInputs()) == 0.0
    from layermerge.calibration.sample import Sample
    from layermerge.tracing.inputs import Inputs

    sample = Sample.of(by_name, Inputs.of(by_name.example_inputs()), 30, 8)
    assert sample.fitted[0].kwargs.keys() == {"x", "t"}


def test_calls_follow_the_signature() -> None:
    class Free(nn.Module):
        def forward(self, *images: Tensor, **more: Tensor) -> None: ...

    assert Call.of(Free(), torch.zeros(2, 1)) == Call()
    assert Call.of(Free(), {"a": 1, "label": 2}) == Call(("a",))
    assert Call.of(TwoInputs(), ()) == Call(count=2)


# -- the original


def test_the_original_stays_while_the_network_is_trained() -> None:
    network = Scaled()
    task = Imitation(photos(), teacher=network)
    with torch.no_grad():
        network.gain.fill_(2.0)
    assert task.evaluate(Scaled()) == 0.0
    assert task.evaluate(network) < -0.1


def test_a_run_brings_the_original_along() -> None:
    open_task = Imitation(photos())
    bound = open_task.for_original(Scaled())
    assert bound.evaluate(Scaled()) == 0.0
    assert bound.for_original(Scaled(3.0)) is bound, "a later stage still imitates the first network"
    with pytest.raises(DataError, match=r"has no network to imitate; give it one: Imitation\(images, teacher=model\)"):
        open_task.evaluate(Scaled())
    other: Task = lm.tasks.Classification((np.zeros((9, 4, 4, 3), np.uint8), np.arange(9) % 2), tiny_pair())
    assert other.for_original(Scaled()) is other


def tiny_pair() -> tuple[Any, Any]:
    return np.zeros((4, 4, 4, 3), np.uint8), np.arange(4) % 2


def test_outputs_are_computed_once_as_far_as_they_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []

    class Counted(Scaled):
        def forward(self, x: Tensor) -> dict[str, Any]:
            calls.append(len(x))
            return super().forward(x)

    def calls_of(most: int) -> tuple[list[int], float]:
        monkeypatch.setattr(imitation, "MOST_BYTES", most)
        task = Imitation(photos(), photos(40, 1), teacher=Counted(), held_out=20, eval_batch_size=10)
        found = [task.evaluate(Scaled(1.1)), task.test(Scaled(1.1)).value]
        calls.clear()
        assert [task.evaluate(Scaled(1.1)), task.test(Scaled(1.1)).value] == found
        return list(calls), found[0]

    row = 4 * (3 + 5)  # bytes of an image's answers
    assert calls_of(60 * row)[0] == []
    assert calls_of(25 * row)[0] == [10] * 4, "two batches are held"
    assert calls_of(0)[0] == [10] * 6
    assert len({calls_of(most)[1] for most in (0, 25 * row, 60 * row)}) == 1


def test_it_goes_to_other_processes_without_what_it_holds() -> None:
    task = Imitation(photos(200), teacher=Scaled(), held_out=100)
    fresh = len(pickle.dumps(task))
    score = task.evaluate(Scaled(1.1))
    there = pickle.loads(pickle.dumps(task))
    assert there.evaluate(Scaled(1.1)) == score
    assert len(pickle.dumps(task)) < fresh + 1000


def test_what_scores_depend_on_is_described() -> None:
    described = [
        Imitation(photos(), teacher=Scaled()).describe(),
        Imitation(photos(seed=1), teacher=Scaled()).describe(),
        Imitation(photos(), teacher=Scaled(1.5)).describe(),
        Imitation(photos(), teacher=Scaled(), seed=1).describe(),
        Imitation(photos(), photos(), teacher=Scaled()).describe(),
        Imitation(TensorDataset(photos()), teacher=Scaled()).describe(),
        Imitation(TensorDataset(photos(seed=1)), teacher=Scaled()).describe(),
    ]
    assert described[0] == Imitation(photos(), teacher=Scaled()).describe()
    assert all(one != other for place, one in enumerate(described) for other in described[:place])


# -- what does not fit


class Changing(Scaled):
    """As many boxes as it finds."""

    def forward(self, x: Tensor) -> Any:
        return [row for row in x if float(row.mean()) > 0.5], x


class Growing(Scaled):
    def forward(self, x: Tensor) -> Any:
        return x.new_zeros(len(x) ** 2 + 1)


class Worded(Scaled):
    def forward(self, x: Tensor) -> Any:
        return {"classes": x.argmax(1)}


class Shaky(Scaled):
    """Of another shape for another number of images than it was tried with."""

    def forward(self, x: Tensor) -> Any:
        return x[:, : 1 + len(x) // 5]


class Infinite(Scaled):
    def forward(self, x: Tensor) -> Any:
        return x / 0


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (
            lambda: Imitation(photos(19)),
            "19 images are too few to imitate with; give at least 20, better a few hundred",
        ),
        (lambda: Imitation(cast("Any", 3)), "images are a int; give a folder, a tensor"),
        (lambda: Imitation([]), "the images hold nothing"),
        (lambda: Imitation([1, 2]), "a batch of the images is a int; give tensors"),
        (lambda: Imitation([(photos(3), 1)]), "hold something that is not a tensor"),
        (lambda: Imitation([photos(3), photos(3)[:, :2]]), "are not of one shape"),
        (lambda: Imitation((photos(3), "a")), "hold Tensor and str; give tensors or arrays"),
        (lambda: Imitation((photos(30), photos(20))), "hold 20 and 30 examples; give one row per example"),
        (lambda: Imitation(torch.tensor(1.0)), "is a single number"),
        (lambda: Imitation("nowhere"), "'nowhere' does not exist; give a folder of images"),
        (lambda: Imitation(__file__), "is not a folder"),
        (lambda: Imitation(Path(__file__).parent), "has no images, and neither do the folders in it; they end in .bmp"),
        (lambda: Imitation(photos(), held_out_from=30), "held_out_from counts images of which a part is set aside"),
        (lambda: Imitation(photos(), teacher=nn.Conv2d(1, 1, 1)), "Conv2d cannot take images of 3 x 4 x 4: .*made for"),
        (
            lambda: Imitation(photos(), teacher=Worded()),
            "a dict without any floating-point tensor, so there is nothing to im",
        ),
        (
            lambda: Imitation(photos(), teacher=Growing()),
            r"returns \(2,\) for one image and \(5,\) for two; imitation needs",
        ),
        (lambda: Imitation(photos(), teacher=TwoInputs()), "takes 2 inputs, but a batch holds 1; give tuples of all"),
        (
            lambda: Imitation({"a": photos()}, teacher=Scaled()),
            "Scaled takes x, but a batch is a dict of a; name the inputs",
        ),
        (lambda: Imitation({"x": photos()}, teacher=TwoInputs()), "TwoInputs takes t, but a batch is a dict of x"),
        (lambda: Imitation(photos(), teacher=Infinite()).evaluate(Infinite()), "outputs are not finite"),
        (
            lambda: Imitation(photos(), teacher=Shaky()).evaluate(Shaky()),
            r"returns \(5, 2, 4, 4\) for 5 images where the or",
        ),
        (
            lambda: Imitation(photos(), teacher=Scaled()).evaluate(nn.Identity()),
            "returns 1 floating-point tensors where",
        ),
        (lambda: Imitation(photos(), photos(4)[:, :2], teacher=Scaled()), "give one shape"),
        (lambda: Imitation([Plain(photos())]), "a batch of the images is a Plain"),
        (lambda: smoothed(), "no labels to smooth"),
    ],
)
def test_what_does_not_fit_is_one_line(make: Any, words: str) -> None:
    with pytest.raises(DataError, match=words) as caught:
        make()
    assert "\n" not in str(caught.value)


def smoothed() -> None:
    task, x = Imitation(photos(), teacher=Scaled()), photos(2)
    task.loss(Scaled()(x), (x,), label_smoothing=0.1)


def test_outputs_that_differ_between_images_are_refused() -> None:
    bright = photos(60)
    bright[::2] += 1
    with pytest.raises(DataError, match=r"structure does not depend on the images|for one image and"):
        Imitation(bright, teacher=Changing()).evaluate(Changing())


def test_batches_that_do_not_fit_into_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    from layermerge.data import unlabelled

    monkeypatch.setattr(unlabelled, "MOST_HELD_BYTES", 1000)
    with pytest.raises(DataError, match="can only be read in their own order; give a map-style Dataset, or fewer"):
        Imitation(list(torch.split(photos(), 9)))
