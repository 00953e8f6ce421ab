"""A rewritten network is a module like any other: same names, trains, copies, moves; and what rewrite refuses."""

from __future__ import annotations

import copy
import random
import socket
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import layermerge as lm
import zoo
from agreement import call, differences, tensors, to_double, worst
from layermerge.errors import LayerMergeError, SurgeryError
from layermerge.surgery.rewrite import RewrittenModule
from solutions import random_solution, untouched_solution
from zoo_registry import conv

pytestmark = pytest.mark.filterwarnings("ignore:not part of the traced network")
SEEDS = range(2)
ROUNDED = 1e-5


def rewritten(name: str, seed: int) -> RewrittenModule:
    traced = zoo.traced(name)
    return lm.rewrite(traced, random_solution(lm.plan(traced), random.Random(seed)))


def loss_of(model: nn.Module, inputs: Any) -> Tensor:
    """Depends on every output, each element with its own sign and weight."""
    total = torch.zeros(())
    for output in tensors(call(model, inputs)):
        pattern = torch.linspace(-1, 1.5, output.numel()).reshape(output.shape)
        total = total + (output * pattern).sum() + 0.1 * (output**2).sum()
    return total


def gradients(model: nn.Module, inputs: Any, *, training: bool) -> dict[str, Tensor]:
    model = copy.deepcopy(model).train(training)
    torch.manual_seed(21)
    loss_of(model, inputs).backward()  # type: ignore[no-untyped-call]
    return {name: parameter.grad for name, parameter in model.named_parameters() if parameter.grad is not None}


# -- nothing chosen: nothing changed


@pytest.mark.parametrize("name", zoo.ZOO)
def test_the_identity_solution_is_the_network(name: str) -> None:
    """The same calls in the same order, of modules with the same settings and weights: so the same function and gradients."""
    traced = zoo.traced(name)
    alone = untouched_solution(lm.plan(traced))
    assert [candidate.layers for candidate in alone] == [(layer.name,) for layer in traced.layers]
    original = traced.module
    called = {str(node.target) for node in original.graph.nodes if node.op == "call_module"}
    for solution in ((), alone):
        net = lm.rewrite(traced, solution)
        assert net.code == original.code
        assert all(repr(net.get_submodule(path)) == repr(original.get_submodule(path)) for path in called)
        assert all(torch.equal(tensor, original.state_dict()[key]) for key, tensor in net.state_dict().items())
    inputs = zoo.ZOO[name].inputs(3)
    for training in (False, True):
        outputs = []
        for model in (copy.deepcopy(original), net):
            torch.manual_seed(17)
            outputs.append(call(model.train(training), inputs))
        assert worst(*outputs) <= ROUNDED
    expected, actual = (gradients(model, inputs, training=True) for model in (original, lm.rewrite(traced, ())))
    assert expected
    assert expected.keys() == actual.keys()
    assert max(worst(gradient, actual[key]) for key, gradient in expected.items()) <= ROUNDED


@pytest.mark.parametrize("name", ["plain", "basic", "bottleneck", "unet", "inverted"])
def test_the_identity_solution_equals_the_users_own_model(name: str) -> None:
    model = zoo.build(name)
    inputs = zoo.ZOO[name].inputs(2)
    net = lm.rewrite(zoo.traced(name), ())
    expected = gradients(model, inputs, training=False)
    actual = gradients(net, inputs, training=False)
    assert expected.keys() == actual.keys()
    assert max(worst(gradient, actual[key]) for key, gradient in expected.items()) <= 1e-5


# -- names


@pytest.mark.parametrize("name", zoo.ZOO)
def test_what_survives_keeps_its_name_and_what_is_removed_is_gone(name: str) -> None:
    traced = zoo.traced(name)
    before = {key: tensor.clone() for key, tensor in traced.module.state_dict().items()}
    code = traced.module.code
    menu = lm.plan(traced)
    for seed in SEEDS:
        solution = random_solution(menu, random.Random(seed))
        state = lm.rewrite(traced, solution).state_dict()
        assert all(torch.equal(tensor, before[key]) for key, tensor in state.items())
        for candidate in solution:
            for layer in candidate.layers:
                assert (f"{layer}.weight" in state) == (layer in candidate.kept), candidate.key
    assert traced.module.code == code
    assert all(torch.equal(tensor, before[key]) for key, tensor in traced.module.state_dict().items())


@pytest.mark.parametrize("name", ["basic", "inverted", "unet", "norms_of_every_kind"])
def test_copies_dtypes_and_state(name: str) -> None:
    inputs = zoo.ZOO[name].inputs(2)
    for seed in SEEDS:
        net = rewritten(name, seed).eval()
        expected = call(net, inputs)
        copied = copy.deepcopy(net)
        assert type(copied)._get_name(copied) == "RewrittenModule"
        assert all(torch.equal(tensor, net.state_dict()[key]) for key, tensor in copied.state_dict().items())
        assert worst(expected, call(copied, inputs)) <= ROUNDED
        with torch.no_grad():
            for parameter in copied.parameters():
                parameter.add_(0.1)
        assert worst(expected, call(net, inputs)) <= ROUNDED
        assert worst(expected, call(copied, inputs)) > ROUNDED
        copied.load_state_dict(net.state_dict())
        assert worst(expected, call(copied, inputs)) <= ROUNDED
        wide = copy.deepcopy(net).double()
        assert worst(call(wide, to_double(inputs)), expected) <= 1e-5
        assert max(differences(wide, lm.merge(wide), to_double(inputs)).values()) <= 1e-10


# -- training


@pytest.mark.parametrize("name", zoo.ZOO)
def test_training_reaches_every_parameter_that_survives(name: str) -> None:
    for seed in SEEDS:
        net = rewritten(name, seed).train()
        if not list(net.parameters()):
            continue
        loss_of(net, zoo.ZOO[name].inputs(3)).backward()  # type: ignore[no-untyped-call]
        for path, parameter in net.named_parameters():
            assert parameter.grad is not None, (seed, path)
            assert parameter.grad.isfinite().all()


@pytest.mark.parametrize("name", ["basic", "inverted", "unet", "grouped_chain", "even_same_residual", "in_place"])
def test_ten_steps_of_training_then_merge(name: str) -> None:
    inputs = zoo.ZOO[name].inputs(4)
    for seed in SEEDS:
        net = rewritten(name, seed).train()
        before = {key: parameter.detach().clone() for key, parameter in net.named_parameters()}
        if not before:
            continue
        optimizer = torch.optim.SGD(net.parameters(), lr=1e-4, momentum=0.9)
        for _ in range(10):
            optimizer.zero_grad()
            loss_of(net, inputs).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        assert all(not torch.equal(before[key], parameter) for key, parameter in net.named_parameters())
        wide = copy.deepcopy(net).double().eval()
        assert max(differences(wide, lm.merge(wide), to_double(inputs)).values()) <= 1e-10
        merged = lm.merge(net)
        assert max(differences(copy.deepcopy(net).eval(), merged, inputs).values()) <= 1e-5


# -- several processes


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


@pytest.fixture
def one_process_group() -> Iterator[None]:
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{_free_port()}", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("one_process_group")
@pytest.mark.parametrize("name", ["basic", "inverted", "unet"])
def test_distributed_data_parallel_gives_the_same_gradients(name: str) -> None:
    inputs = zoo.ZOO[name].inputs(4)
    net = rewritten(name, 1).train()
    plain = copy.deepcopy(net)
    for model in (DistributedDataParallel(net), plain):
        torch.manual_seed(8)
        loss_of(model, inputs).backward()  # type: ignore[no-untyped-call]
    for (path, expected), actual in zip(plain.named_parameters(), net.parameters(), strict=True):
        assert expected.grad is not None
        assert actual.grad is not None
        assert worst(expected.grad, actual.grad) <= ROUNDED, path
    assert max(differences(copy.deepcopy(net).eval(), lm.merge(net), inputs).values()) <= 1e-5


def _train_on_half(rank: int, port: int, results: Any) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    net = rewritten("basic", 1).eval()
    halves = zoo.ZOO["basic"].inputs(4).chunk(2)
    parallel = DistributedDataParallel(net)  # must outlive the backward pass: it holds what averages the gradients
    (parallel(halves[rank]) ** 2).mean().backward()
    if rank == 0:
        results.put({path: parameter.grad.numpy() for path, parameter in net.named_parameters()})  # type: ignore[union-attr]
    dist.barrier()
    dist.destroy_process_group()


@pytest.mark.slow
def test_two_processes_average_their_gradients() -> None:
    context = mp.get_context("spawn")
    results = context.Queue()
    port = _free_port()
    workers = [context.Process(target=_train_on_half, args=(rank, port, results)) for rank in range(2)]
    for worker in workers:
        worker.start()
    found = results.get(timeout=120)
    for worker in workers:
        worker.join(timeout=120)
        assert worker.exitcode == 0
    net = rewritten("basic", 1).eval()
    (net(zoo.ZOO["basic"].inputs(4)) ** 2).mean().backward()
    for path, parameter in net.named_parameters():
        assert parameter.grad is not None
        assert worst(parameter.grad, torch.from_numpy(found[path])) <= 1e-5, path


# -- what is refused


def refused(name: str, *candidates: lm.Candidate, match: str) -> None:
    with pytest.raises(SurgeryError, match=match) as caught:
        lm.rewrite(zoo.traced(name), candidates)
    assert isinstance(caught.value, LayerMergeError)
    assert "\n" not in str(caught.value)


def test_candidates_of_another_model() -> None:
    others = lm.plan(zoo.traced("plain"))
    refused("functional_relu", others["0-2:5x5g1"], match=r"covers '0'\.\. but this network has 'first'.*another model")
    refused(
        "dict_output", others["2-3:3x3g1"], match=r"lies outside the network's 2 layers; it belongs to another model"
    )
    other = others["0-1:3x3g1"]
    refused("plain", replace(other, end=0), match="another model")
    refused("plain", replace(other, start=-1), match="another model")


def test_layers_of_the_right_names_but_another_geometry() -> None:
    wide = nn.Sequential(conv(3, 6, 5), nn.BatchNorm2d(6), nn.ReLU(), conv(6, 6, 5))
    others = lm.plan(lm.trace(wide, torch.randn(2, 3, 16, 16)))
    refused("plain", others["0-2:9x9g1"], match=r"0-2:9x9g1 says .*, but its layers merge to .*; plan again")


def test_overlapping_ranges() -> None:
    menu = lm.plan(zoo.traced("plain"))
    message = r"^candidates 0-2:5x5g1 and 1-2:3x3g1 overlap at '3'; choose one of them$"
    refused("plain", menu["0-2:5x5g1"], menu["1-2:3x3g1"], match=message)
    refused("plain", menu["1-2:3x3g1"], menu["0-2:5x5g1"], match=message)
    refused("plain", menu["1-2:3x3g1"], menu["1-2:3x3g1"], match="overlap")


def test_a_range_that_crosses_a_block() -> None:
    spec = lm.plan(zoo.traced("basic"))["1-3:5x5g1"].spec
    made = lm.Candidate(0, 2, ("stem", "a.c1"), ("stem", "a.c1"), spec)
    refused(
        "basic", made, match=r"0-2:5x5g1 is not legal here: it holds only a part of block 'a' and reaches beyond it"
    )


def test_a_range_that_crosses_a_branching() -> None:
    names = tuple(layer.name for layer in zoo.traced("concat_branches").layers)
    made = lm.Candidate(0, 2, names[:2], names[:2], lm.ConvSpec(3, 4, (3, 3), padding=(1, 1, 1, 1)))
    refused("concat_branches", made, match="is not legal here")


def test_removing_a_conv_that_changes_the_shape() -> None:
    made = lm.Candidate(0, 1, ("0",), (), None)
    refused("plain", made, match=r"not legal here: '0' cannot be removed: it changes the shape of its input")


def test_a_kept_kernel_behind_a_stride() -> None:
    layers = ("sc", "c1", "c2")
    made = lm.Candidate(0, 3, layers, layers, lm.ConvSpec(4, 6, (7, 7), (2, 2), (3, 3, 3, 3)))
    refused("basic_strided", made, match="follows a strided one; only 1x1 convs may")


@pytest.mark.parametrize("change", [{"kernel": (7, 7)}, {"padding": (1, 1, 2, 2)}, {"groups": 3}, {"out_channels": 12}])
def test_a_geometry_that_does_not_fit(change: dict[str, Any]) -> None:
    right = lm.plan(zoo.traced("plain"))["0-2:5x5g1"]
    assert right.spec is not None
    refused(
        "plain", replace(right, spec=replace(right.spec, **change)), match="but its layers merge to 5x5; plan again"
    )


def test_a_geometry_where_nothing_is_kept_and_the_reverse() -> None:
    right = lm.plan(zoo.traced("plain"))["1-2:3x3g1"]
    refused("plain", replace(right, kept=()), match="plan again")
    refused("plain", replace(right, spec=None), match="plan again")


def test_kept_layers_that_are_not_covered() -> None:
    right = lm.plan(zoo.traced("plain"))["1-2:3x3g1"]
    refused("plain", replace(right, kept=("6",)), match=r"keeps layers that it does not cover: \('6',\)")


@pytest.mark.parametrize("name", ["reflect_padding", "shared_conv"])
def test_layers_that_do_not_merge(name: str) -> None:
    """Merging over a conv with reflected padding, or one whose weights are used twice, would not be exact."""
    traced = zoo.traced(name)
    layers = tuple(layer.name for layer in traced.layers)[:2]
    spec = lm.ConvSpec(3, 4, (5, 5), padding=(2, 2, 2, 2))
    refused(name, lm.Candidate(0, 2, layers, layers, spec), match="is not legal here")


def test_a_range_that_begins_with_reflected_padding() -> None:
    layers = tuple(layer.name for layer in zoo.traced("reflect_padding").layers)[1:]
    made = lm.Candidate(1, 3, layers, layers, lm.ConvSpec(4, 4, (5, 5), padding=(1, 1, 1, 1)))
    refused("reflect_padding", made, match="is not legal here")


def test_a_group_norm_that_would_not_fit_behind_the_range() -> None:
    model = nn.Sequential(conv(4, 8), nn.GroupNorm(4, 8), nn.SiLU(), conv(8, 6))
    traced = lm.trace(model, torch.randn(2, 4, 8, 8))
    made = lm.Candidate(0, 2, ("0", "3"), ("0", "3"), lm.ConvSpec(4, 6, (5, 5), padding=(2, 2, 2, 2)))
    with pytest.raises(SurgeryError, match=r"is not legal here: .*6 channels, not 8"):
        lm.rewrite(traced, [made])
