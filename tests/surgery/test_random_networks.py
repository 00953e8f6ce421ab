"""Random series-parallel networks: rewritten as an oracle does it by hand, merged exactly, unchanged where nothing is lost."""

from __future__ import annotations

import copy
import random
from collections.abc import Iterator
from typing import get_args

import pytest
import torch
from hypothesis import given, note
from hypothesis import strategies as st

import layermerge as lm
from agreement import worst
from layermerge.surgery.rewrite import RewrittenModule
from network_modules import FUNCTIONS, MODULES
from network_parts import Activation, Conv, Part, every_part
from random_networks import random_network
from solutions import random_solution, untouched_solution
from traced_networks import EXACT, TracedNetwork

pytestmark = pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel lengths")


def candidate_sets(menu: lm.Plan, rng: random.Random) -> Iterator[tuple[lm.Candidate, ...]]:
    """Whole solutions, a part of one, every merge that loses nothing by itself, and a few that replace by themselves."""
    yield from (random_solution(menu, rng) for _ in range(3))
    yield tuple(candidate for candidate in random_solution(menu, rng) if rng.randint(0, 1))
    yield from ((candidate,) for candidate in menu.candidates if candidate.free and not candidate.replaced)
    replacing = [candidate for candidate in menu.candidates if candidate.replaced]
    yield from ((rng.choice(replacing),) for _ in range(2) if replacing)


def assert_trains_as_before(subject: TracedNetwork, rewritten: RewrittenModule) -> None:
    """Outputs, gradients of all parameters and statistics of a step in train mode."""
    model = copy.deepcopy(subject.model)
    outputs = []
    for network in (model, rewritten):
        torch.manual_seed(0)
        outputs.append(network.train()(*subject.inputs))
        sum(output.square().sum() for output in outputs[-1]).backward()
    assert worst(*outputs) <= EXACT
    found = dict(rewritten.named_parameters())
    for name, parameter in model.named_parameters():
        assert (parameter.grad is None) == (found[name].grad is None), name
        if parameter.grad is not None:
            torch.testing.assert_close(found[name].grad, parameter.grad, rtol=1e-9, atol=1e-9)
    for name, buffer in model.named_buffers():
        torch.testing.assert_close(rewritten.get_buffer(name), buffer, rtol=1e-9, atol=1e-9)


@given(rng=st.randoms(use_true_random=False))
def test_random_networks_are_rewritten_as_by_hand_and_merged_exactly(rng: random.Random) -> None:
    network = random_network(rng)
    note(str(network))
    rules = lm.Rules(replace=("activations", "gates")) if rng.randint(0, 1) else lm.Rules()
    subject = TracedNetwork(network, rules)
    assert worst(subject.outputs, subject.by_hand((), add_activation=True)) <= EXACT, "the oracle reads it wrongly"
    assert worst(subject.outputs, subject.of(subject.trace.module)) <= EXACT
    plain = tuple(candidate for candidate in subject.menu.candidates if not candidate.replaced)
    assert plain == lm.plan(subject.trace).candidates
    for chosen in candidate_sets(subject.menu, rng):
        note(str([(candidate.key, candidate.kept) for candidate in chosen]))
        subject.assert_exact(chosen, add_activation=rng.randint(0, 3) > 0)
    assert_trains_as_before(subject, subject.assert_exact(untouched_solution(subject.menu)))


def test_every_kind_of_part_is_drawn() -> None:
    drawn = [part for seed in range(200) for part in every_part(random_network(random.Random(seed)).path)]
    assert {type(part) for part in drawn} == set(get_args(Part))
    assert {part.kind for part in drawn if isinstance(part, Activation)} == {*MODULES, *FUNCTIONS}
    convs = [part for part in drawn if isinstance(part, Conv)]
    assert any(conv.stride != (1, 1) for conv in convs)
    assert any(conv.dilation != (1, 1) for conv in convs)
    assert any(1 < conv.groups < conv.ins for conv in convs)
    assert any(conv.own == "same" for conv in convs)
    assert any(conv.padding[0] != conv.padding[1] for conv in convs)
