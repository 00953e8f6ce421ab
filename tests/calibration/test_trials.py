"""Trials: divergences are those of the networks as they come out, whatever is held from one to the next."""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import cache

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import layermerge as lm
import zoo
from agreement import call, tensors
from layermerge.calibration.places import unchanged
from layermerge.calibration.sample import Sample
from layermerge.calibration.trials import Trials, near_changes
from layermerge.planning.candidate import Candidate
from layermerge.tasks.base import relative_error
from layermerge.tracing.inputs import Inputs
from layermerge.tracing.trace import Trace
from zoo_registry import random_tensor

NETWORKS = [
    "plain",
    "basic_strided",
    "inverted",
    "concat_branches",
    "pre_activation_after_stem",
    "time_shifted_block",
    "squeeze_excite",
    "norms_of_every_kind",
    "unet",
]


@cache
def images(name: str, count: int, first: int) -> Inputs:
    """As the network takes them, so many from the `first`-th on."""
    given = Inputs.of(zoo.ZOO[name].inputs(first + count))
    cut = [
        leaf[first:] if isinstance(leaf, Tensor) and leaf.ndim and len(leaf) == first + count else leaf
        for leaf in given.args
    ]
    return Inputs(tuple(cut), {})


def trials(name: str, traced: Trace) -> tuple[Trials, list[Inputs]]:
    fitted, held_out = (images(name, 8, 0), images(name, 8, 8)), (images(name, 4, 16),)
    scored = [images(name, 3, 20), images(name, 2, 23)]
    return Trials(traced.module.eval(), Sample(fitted, held_out, 20), scored, relative_error), scored


def error_by_hand(net: nn.Module, original: nn.Module, batches: Sequence[Inputs]) -> list[float]:
    found = []
    for batch in batches:
        with torch.no_grad():
            mine, theirs = (
                [one.double().numpy() for one in tensors(call(each.eval(), batch.args)) if one.is_floating_point()]
                for each in (net, original)
            )
        rows = [((a - b) ** 2).reshape(len(a), -1).mean(1) / (b**2).mean() for a, b in zip(mine, theirs, strict=True)]
        found += np.mean(rows, axis=0).tolist()
    return found


def some_of(name: str, traced: Trace, count: int) -> list[Candidate]:
    changing = [entry for entry in lm.plan(traced).entries if entry.changes]
    chosen = random.Random(name).sample(changing, min(count, len(changing)))
    return sorted(chosen, key=lambda candidate: candidate.start)


@pytest.mark.parametrize("name", NETWORKS)
def test_a_divergence_is_that_of_the_network_as_it_comes_out(name: str) -> None:
    traced = zoo.traced(name)
    shared, scored = trials(name, traced)
    for candidate in some_of(name, traced, 6):
        net = lm.rewrite(traced, [candidate])
        found = shared.divergence(net)
        expected = error_by_hand(net, traced.module, scored)
        assert found.tolist() == pytest.approx(expected, rel=1e-3, abs=1e-9), candidate.key
        lm.merge(net)  # which compares it, region by region


@pytest.mark.parametrize("name", ["inverted", "concat_branches", "unet"])
def test_what_is_held_from_one_trial_to_the_next_changes_nothing(name: str) -> None:
    traced = zoo.traced(name)
    chosen = some_of(name, traced, 6)
    shared, _ = trials(name, traced)
    in_order = [shared.divergence(lm.rewrite(traced, [one])) for one in chosen]
    backwards = [shared.divergence(lm.rewrite(traced, [one])) for one in chosen[::-1]][::-1]
    alone = [trials(name, traced)[0].divergence(lm.rewrite(traced, [one])) for one in chosen]
    for first, second, third in zip(in_order, backwards, alone, strict=True):
        assert torch.equal(first, second)
        assert torch.equal(first, third)


def test_nothing_changed_is_no_divergence() -> None:
    traced = zoo.traced("inverted")
    found = trials("inverted", traced)[0].divergence(lm.rewrite(traced, []))
    assert found.tolist() == [0.0] * 5


def test_an_activation_that_never_clips_costs_nothing() -> None:
    """Inside one kernel there is no border, so a merge of such a range computes what the layers did."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 8, 1), nn.ReLU(), nn.Conv2d(8, 4, 1), nn.ReLU(), nn.Conv2d(4, 4, 3)).eval()
    with torch.no_grad():
        model[0].get_parameter("bias").add_(100.0)
    traced = lm.trace(model, random_tensor(2, 3, 8, 8))
    batches = [Inputs.of(random_tensor(10, 3, 8, 8, seed=seed)) for seed in range(4)]
    tried = Trials(traced.module.eval(), Sample(tuple(batches[:2]), (batches[2],), 30), batches[3:], relative_error)
    assert float(tried.divergence(lm.rewrite(traced, [lm.plan(traced)["0-2:1x1g1"]])).max()) < 1e-10


def test_what_reads_a_change_is_fitted_and_what_lies_behind_is_not() -> None:
    torch.manual_seed(0)
    convs = [part for _ in range(4) for part in (nn.Conv2d(3, 3, 3, padding=1), nn.ReLU())]
    traced = lm.trace(nn.Sequential(*convs), random_tensor(2, 3, 8, 8))
    net = lm.rewrite(traced, [lm.plan(traced)["1-2:identity"]])
    same = unchanged(net, traced.module)
    near = {net.surgery.regions[number].candidate.layers for number in near_changes(net, same)}
    assert near == {("4",)}
    net = lm.rewrite(traced, [lm.plan(traced)["0-2:5x5g1"]])
    near = {net.surgery.regions[number].candidate.layers for number in near_changes(net, unchanged(net, traced.module))}
    assert near == {("0", "2"), ("4",)}


class LinearBottlenecks(nn.Module):
    """Convs with norms and no activation between some of them, which merge and lose nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            *(nn.Conv2d(3, 6, 1, bias=False), nn.BatchNorm2d(6), nn.Conv2d(6, 6, 1, bias=False), nn.BatchNorm2d(6)),
            *(nn.ReLU(), nn.Conv2d(6, 6, 3, padding=1), nn.BatchNorm2d(6), nn.ReLU()),
            *(nn.Conv2d(6, 6, 3, padding=1), nn.BatchNorm2d(6), nn.ReLU(), nn.Conv2d(6, 4, 1)),
        )

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.layers(x)
        return out


@pytest.mark.parametrize("everything", [False, True])
def test_whole_choices_with_merges_that_lose_nothing_are_what_comes_out(everything: bool) -> None:
    """Norms inside a merge that comes before the first change keep their statistics."""
    torch.manual_seed(0)
    model = LinearBottlenecks()
    for _ in range(20):
        model(random_tensor(8, 3, 8, 8) * 3 + 1)
    traced = lm.trace(model.eval(), random_tensor(2, 3, 8, 8))
    menu = lm.plan(traced)
    free = next(entry for entry in menu.candidates if entry.free and entry.layers == ("layers.0", "layers.2"))
    changed = next(entry for entry in menu.candidates if entry.changes and entry.start == 2 and entry.kept)
    batches = [Inputs.of(random_tensor(10, 3, 8, 8, seed=seed)) for seed in range(4)]
    tried = Trials(traced.module.eval(), Sample(tuple(batches[:2]), (batches[2],), 30), batches[3:], relative_error)
    net = lm.rewrite(traced, [free, changed])
    found = tried.divergence(net, everything=everything)
    assert found.tolist() == pytest.approx(error_by_hand(net, traced.module, batches[3:]), rel=1e-3, abs=1e-9)
