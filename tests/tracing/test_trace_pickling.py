"""A trace that was sent to another process is the same trace: names, weights to the bit, outputs, plan, surgery."""

from __future__ import annotations

import subprocess
import sys
from functools import cache

import pytest
import torch
from torch import Tensor, nn

import layermerge as lm
import zoo
from agreement import same_bits, tensors, worst
from layermerge.tracing.fingerprint import fingerprint
from layermerge.tracing.trace import Trace

cloudpickle = pytest.importorskip("cloudpickle")

# torch's own: reading the calling convention of a graph makes a LeafSpec, which it warns of.
pytestmark = pytest.mark.filterwarnings("ignore:.*LeafSpec.* is deprecated:FutureWarning")

NETWORKS = [
    "basic_strided",
    "norms_of_every_kind",
    "stochastic_depth",
    "functional_dropout",
    "time_shifted_block",
    "in_place",
    "nested_inputs",
    "dataclass_output",
    *(
        pytest.param(name, marks=pytest.mark.slow)
        for name in (
            *("plain", "inverted", "depthwise_chain", "squeeze_excite", "even_same_residual"),
            *("inputs_by_name", "dict_output", "namedtuple_output", "unet"),
        )
    ),
]


@cache
def sent(name: str) -> Trace:
    trace = cloudpickle.loads(cloudpickle.dumps(zoo.traced(name)))
    assert isinstance(trace, Trace)
    return trace


def outputs(module: nn.Module, trace: Trace, *, train: bool) -> list[Tensor]:
    """Of a copy, as norms and dropout change what they are run with."""
    module = lm.rewrite(trace, []) if module is trace.module else module
    module.train(train)
    torch.manual_seed(5)
    with torch.no_grad():
        found = tensors(module(*trace.inputs.args, **trace.inputs.kwargs))
    module.eval()
    assert found
    return found


def agree(one: list[Tensor], other: list[Tensor]) -> bool:
    """Weights are the same bits, but kernels depend on where they lie: sums in another order are allowed."""
    return worst(one, other) <= 1e-5


@pytest.mark.parametrize("name", NETWORKS)
def test_it_is_the_same_network(name: str) -> None:
    here, there = zoo.traced(name), sent(name)
    assert fingerprint(there.structure) == fingerprint(here.structure)
    ours, theirs = here.module.state_dict(), there.module.state_dict()
    assert list(ours) == list(theirs)
    for key, tensor in ours.items():
        assert theirs[key].dtype == tensor.dtype
        assert torch.equal(theirs[key], tensor), key
    frozen = [{key for key, p in t.module.named_parameters() if not p.requires_grad} for t in (here, there)]
    assert frozen[0] == frozen[1]
    modes = [{key: module.training for key, module in t.module.named_modules()} for t in (here, there)]
    assert modes[0] == modes[1]
    for train in (False, True):
        assert agree(outputs(here.module, here, train=train), outputs(there.module, there, train=train))


@pytest.mark.parametrize("name", NETWORKS)
def test_it_offers_the_same_menu_and_operates_alike(name: str) -> None:
    here, there = zoo.traced(name), sent(name)
    menus = [lm.plan(trace) for trace in (here, there)]
    assert menus[0].candidates == menus[1].candidates
    # Their reasons may name a block otherwise: that name comes from the module tree of the model itself.
    assert [(r.start, r.end) for r in menus[0].rejections] == [(r.start, r.end) for r in menus[1].rejections]
    touched = [candidate for candidate in menus[0].candidates if not candidate.untouched]
    for candidate in [touched[0], touched[len(touched) // 2], touched[-1]] if touched else []:
        ours, theirs = (lm.rewrite(trace, [candidate]) for trace in (here, there))
        merged = [lm.merge(net) for net in (ours, theirs)]
        assert same_bits(*(net.state_dict() for net in merged)), candidate.key
        assert agree(outputs(ours, here, train=True), outputs(theirs, there, train=True)), candidate.key
        assert agree(outputs(ours, here, train=False), outputs(theirs, there, train=False)), candidate.key
        assert agree(outputs(merged[0], here, train=False), outputs(merged[1], there, train=False)), candidate.key


def test_it_may_be_sent_on() -> None:
    again = cloudpickle.loads(cloudpickle.dumps(sent("basic_strided")))
    assert fingerprint(again.structure) == fingerprint(zoo.traced("basic_strided").structure)
    assert lm.plan(again).candidates == lm.plan(zoo.traced("basic_strided")).candidates


@pytest.mark.parametrize("training", [True, False])
def test_what_is_frozen_and_the_mode_survive(training: bool) -> None:
    net = zoo.build("plain").train(training)
    net[0].weight.requires_grad_(False)  # type: ignore[index]
    here = lm.trace(net, zoo.ZOO["plain"].inputs(2))
    there = cloudpickle.loads(cloudpickle.dumps(here))
    assert there.module.training == here.module.training == training
    assert not there.module.get_parameter("0.weight").requires_grad
    assert [p.requires_grad for p in there.module.parameters()] == [p.requires_grad for p in here.module.parameters()]


READER = """
import sys
import cloudpickle
from layermerge.tracing.fingerprint import fingerprint
import layermerge as lm
trace = cloudpickle.loads(sys.stdin.buffer.read())
print(fingerprint(trace.structure), *(candidate.key for candidate in lm.plan(trace).candidates))
"""


def test_another_process_reads_it_without_the_code_of_the_model() -> None:
    """What is sent is the lifted network; the zoo is on no path of the process that reads it."""
    here = zoo.traced("basic_strided")
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", READER],
        input=cloudpickle.dumps(here),
        capture_output=True,
        timeout=120,
        cwd="/",
    )
    assert done.returncode == 0, done.stderr.decode()
    assert done.stdout.decode().split() == [fingerprint(here.structure), *(c.key for c in lm.plan(here).candidates)]
