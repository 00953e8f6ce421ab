"""Random series-parallel networks: rewritten as an oracle does it by hand, merged exactly, unchanged where nothing is lost."""

from __future__ import annotations

import copy
import random
from collections.abc import Iterator, Sequence

import pytest
import torch
from hypothesis import given, note
from hypothesis import strategies as st
from torch import Tensor, nn

import layermerge as lm
from agreement import worst
from layermerge.surgery.rewrite import RewrittenModule
from layermerge.tracing.trace import Trace
from network_modules import SeriesParallel, inputs_of
from network_parts import Network
from random_networks import random_network
from rewrite_oracle import Range, expected
from solutions import random_solution, untouched_solution

EXACT = 1e-10

pytestmark = [
    pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel lengths"),
    # A shift whose activation bends all of it away, or a conv whose gate is dropped.
    pytest.mark.filterwarnings("ignore:not part of the traced network"),
]


class Subject:
    """A random network in float64, traced and planned, and what it computes in eval mode."""

    def __init__(self, network: Network) -> None:
        self.network = network
        self.model = SeriesParallel(network).double().eval()
        self.inputs = inputs_of(network)
        self.tensors = self.model.state_dict()
        self.outputs = self.of(self.model)
        self.trace: Trace = lm.trace(self.model, self.inputs)
        self.menu = lm.plan(self.trace)

    def of(self, module: nn.Module) -> list[Tensor]:
        with torch.no_grad():
            return list(module(*self.inputs))

    def by_hand(self, chosen: Sequence[lm.Candidate], *, add_activation: bool) -> list[Tensor]:
        ranges = [Range(frozenset(one.layers), frozenset(one.kept)) for one in chosen]
        return expected(self.network, ranges, add_activation=add_activation).run(self.tensors, *self.inputs)


def candidate_sets(menu: lm.Plan, rng: random.Random) -> Iterator[tuple[lm.Candidate, ...]]:
    """Whole solutions, a part of one, and every merge that loses nothing by itself."""
    yield from (random_solution(menu, rng) for _ in range(3))
    yield tuple(candidate for candidate in random_solution(menu, rng) if rng.randint(0, 1))
    yield from ((candidate,) for candidate in menu.candidates if candidate.free)


def assert_trains_as_before(subject: Subject, rewritten: RewrittenModule) -> None:
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
    subject = Subject(network)
    assert worst(subject.outputs, subject.by_hand((), add_activation=True)) <= EXACT, "the oracle reads it wrongly"
    assert worst(subject.outputs, subject.of(subject.trace.module)) <= EXACT
    for chosen in candidate_sets(subject.menu, rng):
        note(str([(candidate.key, candidate.kept) for candidate in chosen]))
        add_activation = rng.randint(0, 3) > 0
        rewritten = lm.rewrite(subject.trace, chosen, add_activation=add_activation).eval()
        outputs = subject.of(rewritten)
        assert worst(subject.by_hand(chosen, add_activation=add_activation), outputs) <= EXACT
        assert worst(outputs, subject.of(lm.merge(rewritten))) <= EXACT
        if not any(candidate.changes for candidate in chosen):
            assert worst(subject.outputs, outputs) <= EXACT
    untouched = lm.rewrite(subject.trace, untouched_solution(subject.menu)).eval()
    assert worst(subject.outputs, subject.of(untouched)) <= EXACT
    assert_trains_as_before(subject, untouched)
