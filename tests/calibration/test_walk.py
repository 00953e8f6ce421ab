"""Networks run piece by piece give what they give in one piece, however much is held."""

from __future__ import annotations

import random

import pytest
import torch

import layermerge as lm
import zoo
from agreement import tensors
from layermerge.calibration.walk import Walk, region_order
from layermerge.tracing.inputs import Inputs
from solutions import random_solution


@pytest.mark.parametrize("most_bytes", [0, 40_000, 1 << 30])
@pytest.mark.parametrize("name", ["inverted", "concat_branches"])
def test_values_are_those_of_the_whole_network(name: str, most_bytes: int) -> None:
    traced = zoo.traced(name)
    net = lm.rewrite(traced, random_solution(lm.plan(traced), random.Random(3))).eval()
    batches = [Inputs.of(batch) for batch in torch.split(zoo.ZOO[name].inputs(6), 2)]
    walk, forgetful = Walk(net, batches, most_bytes), Walk(net, batches, 0)
    nodes = [node for node in walk.order if node.op not in ("placeholder", "output")]
    for node in nodes[::3]:
        for _ in range(2):
            for (held,), (fresh,) in zip(walk.each([node]), forgetful.each([node]), strict=True):
                torch.testing.assert_close(held, fresh)
    with torch.no_grad():
        for given, outputs in zip(batches, walk.outputs(), strict=True):
            torch.testing.assert_close(outputs, tensors(net(*given.args)))
    assert sum(held.size for held in walk._held.values()) <= most_bytes


def test_what_has_been_passed_is_computed_again_when_asked_for() -> None:
    net = zoo.traced("plain").module.eval()
    walk = Walk(net, [Inputs.of(zoo.ZOO["plain"].inputs(2))], 1 << 30)
    nodes = [node for node in walk.order if node.op == "call_module"]
    (first,) = next(walk.each([nodes[0]]))
    list(walk.outputs())
    torch.testing.assert_close(next(walk.each([nodes[0]]))[0], first)


def test_the_nodes_of_a_region_stand_together_and_after_all_that_they_read() -> None:
    traced = zoo.traced("basic")
    graph = lm.rewrite(traced, random_solution(lm.plan(traced), random.Random(1))).graph
    order = region_order(graph)
    assert set(order) == set(graph.nodes)
    place = {node: number for number, node in enumerate(order)}
    assert all(place[source] < place[node] for node in order for source in node.all_input_nodes)
    regions = [node.meta.get("region") for node in order]
    numbers = [
        number for number, before in zip(regions, [None, *regions], strict=False) if number not in (None, before)
    ]
    assert len(numbers) == len(set(numbers))
