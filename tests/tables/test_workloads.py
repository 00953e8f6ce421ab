"""Workloads: which candidates share one, what follows the conv, and that what is timed computes what it should."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from pydantic import TypeAdapter
from torch import Tensor, fx, nn

import layermerge as lm
import zoo
from agreement import worst
from layermerge.conv import ConvSpec
from layermerge.surgery.merge import merged_shell
from layermerge.tables.workloads import (
    ADD,
    Follower,
    Sandwich,
    Workload,
    empty,
    needs_other,
    workloads_of,
)
from layermerge.tracing.operators import Role
from zoo_registry import conv


def workloads(name: str) -> dict[str, Workload | None]:
    return workloads_of(zoo.traced(name), lm.plan(zoo.traced(name)))


def follow(name: str, key: str) -> tuple[str, ...]:
    workload = workloads(name)[key]
    assert workload is not None
    return tuple(map(str, workload.follow))


RELU, RELU6, SILU = Follower("ReLU"), Follower("ReLU6"), Follower("SiLU")


# -- which workloads there are


def test_candidates_that_need_the_same_share_one_workload() -> None:
    found = workloads("plain")
    third, second = found["2-3:3x3g1"], found["1-2:3x3g1"]
    assert third is not None
    assert third == second == found["1-3:3x3g1"]
    assert third.key == second.key
    # 13 candidates: 3x3, 5x5, 7x7 on three channels, 3x3, 5x5 on six, and 3 identities, which leave an activation behind.
    assert len(found) == 13
    assert len({workload.key for workload in found.values() if workload}) == 6


def test_a_workload_is_the_merged_conv_on_the_map_that_enters_the_range() -> None:
    assert workloads("explicit_same_padding")["0-2:5x5g1"] == Workload(
        ConvSpec(3, 4, (5, 5), (2, 2), (1, 2, 1, 2)), (3, 16, 16), (RELU,)
    )
    assert workloads("explicit_same_padding")["2-3:5x3g1"] == Workload(
        ConvSpec(4, 4, (5, 3), padding=(2, 2, 1, 1)), (4, 8, 8)
    )


@pytest.mark.parametrize("name", ["plain", "basic", "depthwise_chain", "time_shifted_block"])
def test_identities_have_a_workload_only_where_they_leave_something_behind(name: str) -> None:
    plan = lm.plan(zoo.traced(name))
    found = workloads_of(zoo.traced(name), plan)
    assert list(found) == [candidate.key for candidate in plan.candidates]
    for candidate in plan.candidates:
        workload = found[candidate.key]
        assert candidate.kept or workload is None or (workload.spec is None and workload.follow)
        assert not candidate.kept or (workload is not None and workload.spec == candidate.spec)


@pytest.mark.parametrize(
    ("name", "key", "expected"),
    [
        ("plain", "1-2:identity", ("ReLU",)),
        ("basic", "1-2:identity", ("ReLU",)),  # the body's first conv goes, its activation stays
        ("basic", "2-3:identity", ("add", "ReLU")),
        ("basic", "1-3:identity", ("ReLU",)),  # the emptied body takes its add along; the activation after it stays
        ("inverted", "0-3:identity", ()),  # nothing stands behind this block's add
        ("inverted", "3-6:identity", ()),
    ],
)
def test_what_a_dropped_conv_leaves_behind(name: str, key: str, expected: tuple[str, ...]) -> None:
    workload = workloads(name).get(key)
    assert (tuple(map(str, workload.follow)) if workload else ()) == expected


@pytest.mark.filterwarnings("ignore:not part of the traced network")
@pytest.mark.parametrize("name", sorted(zoo.ZOO))
def test_every_workload_of_the_zoo_can_be_built_and_has_the_shape_it_says(name: str) -> None:
    traced = zoo.traced(name)
    plan = lm.plan(traced)
    shapes = {layer.name: layer.output_shape for layer in traced.layers}
    distinct: dict[str, Workload] = {}
    for key, workload in workloads_of(traced, plan).items():
        if workload is not None:
            if plan[key].kept:
                assert workload.input_shape == traced.layers[plan[key].start].input_shape
            assert workload.output_shape == shapes[plan[key].layers[-1]]
            distinct[workload.key] = workload
    for workload in distinct.values():
        with torch.no_grad():
            assert Sandwich(workload)(*Sandwich(workload).inputs(2).args).shape == (2, *workload.output_shape)


# -- what follows


@pytest.mark.parametrize(
    ("name", "key", "expected"),
    [
        ("plain", "0-1:3x3g1", ("ReLU",)),  # behind a norm that folds
        ("plain", "0-3:7x7g1", ("ReLU",)),  # activations inside the range are gone, the one behind it stays
        ("functional_relu", "1-2:3x3g1", ("ReLU",)),
        ("functional_relu", "2-3:3x3g1", ()),
        ("depthwise_chain", "2-3:1x1g4", ("Hardswish",)),
        ("basic", "0-1:3x3g1", ()),  # a block begins, no activation between
        ("basic", "1-2:3x3g1", ("ReLU",)),
        ("basic", "2-3:3x3g1", ("add", "ReLU")),
        ("basic", "1-3:5x5g1", ("ReLU",)),  # fused: no add is left
        ("basic", "0-5:11x11g1", ("ReLU",)),
        ("basic_strided", "0-1:1x1g1", ()),  # the shortcut
        ("basic_strided", "1-3:3x3g1", ("add", "ReLU")),
        ("basic_strided", "0-3:3x3g1", ("ReLU",)),
        ("inverted", "2-3:1x1g1", ("add",)),
        ("inverted", "1-3:3x3g1", ("add", "ReLU6")),
        ("inverted", "5-6:1x1g1", ("add",)),
        ("pre_activation", "0-1:3x3g1", ("ReLU",)),
        ("pre_activation", "0-2:5x5g1", ("add",)),
        ("pre_activation_conv_shortcut", "0-1:1x1g1", ()),
        ("time_shifted_block", "0-1:3x3g1", ("GroupNorm4", "SiLU")),
        ("time_shifted_block", "0-2:5x5g1", ("GroupNorm4", "add")),  # moved behind the range, before the add
        ("time_shifted_block", "1-2:3x3g1", ("add",)),
        ("norms_of_every_kind", "2-3:3x3g1", ("GroupNorm2", "LeakyReLU")),
        ("rep_branches", "2-3:3x3g1", ("add", "add", "ReLU")),
        ("rep_branches", "1-3:3x3g1", ("ReLU",)),
    ],
)
def test_what_follows_the_conv(name: str, key: str, expected: tuple[str, ...]) -> None:
    assert follow(name, key) == expected


def ran(traced: lm.Trace, candidate: lm.Candidate) -> tuple[str, ...]:
    """The oracle: what stands behind the merged conv, up to the next, in the network with only this candidate.

    An add of two maps that are not a residual block's body and shortcut is part of the fixed cost, with what follows it.
    """
    adds = {block.add for block in traced.blocks}
    merged = merged_shell(lm.rewrite(traced, [candidate]))
    (node,) = [node for node in merged.graph.nodes if node.meta.get("region") == 0]
    found = []
    while len(node.users) == 1:
        node = next(iter(node.users))
        role = node.meta["role"]
        module = merged.get_submodule(str(node.target)) if node.op == "call_module" else None
        if role in (Role.CONV, Role.BARRIER) or (role is Role.ADD and node.name not in adds):
            break
        if role is Role.ADD:
            found.append("add")
        if role is Role.ACTIVATION:
            # The zoo's only activation that torch.nn lacks is a clamp.
            found.append("ReLU6" if isinstance(module, fx.GraphModule) else type(module).__name__)
        if role is Role.STAT_NORM:
            found.append(f"GroupNorm{module.num_groups if isinstance(module, nn.GroupNorm) else 1}")
    return tuple(found)


def differing(traced: lm.Trace) -> dict[str, tuple[tuple[str, ...], tuple[str, ...]]]:
    """Candidates whose workload says otherwise than what runs; the add that reads a shortcut conv counts with the body."""
    shortcuts = {block.shortcut for block in traced.blocks}
    plan = lm.plan(traced)
    found = workloads_of(traced, plan)
    said = {key: tuple(map(str, workload.follow)) for key, workload in found.items() if workload and workload.spec}
    return {
        key: (follow, actual)
        for key, follow in said.items()
        if not (plan[key].untouched and plan[key].start in shortcuts)
        if follow != (actual := ran(traced, plan[key]))
    }


@pytest.mark.filterwarnings("ignore:not part of the traced network")
@pytest.mark.parametrize("name", zoo.ZOO)
def test_what_follows_is_what_will_run(name: str) -> None:
    assert differing(zoo.traced(name)) == {}


class Linear(nn.Module):
    """A block without an activation behind its add."""

    def __init__(self, *body: nn.Module) -> None:
        super().__init__()
        self.body = nn.Sequential(*body)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.body(x)  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("network", "key", "expected"),
    [
        # The activation comes back ahead of a norm that the range does not hold.
        ([conv(4, 4), nn.SiLU(), conv(4, 4), nn.GroupNorm(2, 4), conv(4, 4)], "0-2:5x5g1", ("SiLU", "GroupNorm2")),
        # The next conv stands behind a barrier.
        ([conv(4, 4), nn.ReLU(), conv(4, 4), nn.MaxPool2d(2), conv(4, 4)], "0-2:5x5g1", ("ReLU",)),
        # What an emptied body held is not lost by the range.
        ([conv(4, 6), nn.Conv2d(6, 4, 1), Linear(conv(4, 4), nn.ReLU(), conv(4, 4)), conv(4, 4)], "0-4:3x3g1", ()),
        # Nor does what has weights for other channels fit behind it.
        ([conv(4, 6), nn.PReLU(6), conv(6, 4), conv(4, 4)], "0-2:5x5g1", ()),
        ([conv(4, 4), nn.PReLU(4), conv(4, 4), conv(4, 4)], "0-2:5x5g1", ("PReLU",)),
    ],
)
def test_an_activation_follows_where_rewrite_puts_it_back(
    network: list[nn.Module], key: str, expected: tuple[str, ...]
) -> None:
    traced = lm.trace(nn.Sequential(*network), torch.randn(2, 4, 8, 8))
    workload = workloads_of(traced, lm.plan(traced))[key]
    assert workload is not None
    assert tuple(map(str, workload.follow)) == expected
    assert differing(traced) == {}


# -- keys and records

SPEC = ConvSpec(4, 8, (3, 5), (1, 2), (1, 0, 2, 1), (2, 1), 2)
PLAIN = Workload(SPEC, (4, 9, 12), (ADD, RELU))


@pytest.mark.parametrize(
    "other",
    [
        replace(PLAIN, follow=()),
        replace(PLAIN, follow=(RELU, ADD)),
        replace(PLAIN, follow=(ADD, RELU6)),
        replace(PLAIN, input_shape=(4, 12, 9)),
        replace(PLAIN, spec=replace(SPEC, out_channels=4)),
        replace(PLAIN, spec=replace(SPEC, in_channels=8), input_shape=(8, 9, 12)),
        replace(PLAIN, spec=replace(SPEC, kernel=(5, 3))),
        replace(PLAIN, spec=replace(SPEC, stride=(2, 1))),
        replace(PLAIN, spec=replace(SPEC, padding=(0, 1, 2, 1))),
        replace(PLAIN, spec=replace(SPEC, padding=(1, 0, 1, 2))),
        replace(PLAIN, spec=replace(SPEC, dilation=(1, 2))),
        replace(PLAIN, spec=replace(SPEC, groups=4)),
    ],
)
def test_workloads_that_differ_have_different_keys(other: Workload) -> None:
    assert other != PLAIN
    assert other.key != PLAIN.key


def test_the_key_is_readable() -> None:
    assert PLAIN.key == "4>8 g2 k3.5s1.2p1.0.2.1d2.1 on 9x12 add+ReLU"
    assert replace(PLAIN, follow=()).key.endswith(" on 9x12")


NORMED = replace(PLAIN, follow=(Follower("GroupNorm", 4), SILU, ADD))


@pytest.mark.parametrize("workload", [PLAIN, NORMED, replace(PLAIN, follow=()), Workload(None, (3, 4, 5), (RELU,))])
def test_a_record_comes_back_as_the_same_workload(workload: Workload) -> None:
    adapter = TypeAdapter(Workload)
    text = adapter.dump_json(workload)
    assert adapter.validate_json(text) == workload


def test_a_record_says_the_groups_of_a_norm_in_a_field() -> None:
    assert NORMED.key.endswith("GroupNorm4+SiLU+add")
    assert json.loads(TypeAdapter(Workload).dump_json(NORMED))["follow"][0] == {"kind": "GroupNorm", "groups": 4}


@pytest.mark.parametrize(("kind", "groups"), [("GroupNorm", 0), ("add", 2), ("Conv2d", 0), ("eval", 0), ("", 0)])
def test_what_cannot_be_timed_is_refused(kind: str, groups: int) -> None:
    with pytest.raises(ValueError, match="is not an operator that can be timed"):
        Follower(kind, groups)


# -- what is timed


def depthwise(conv: nn.Conv2d, x: Tensor) -> Tensor:
    """1x1 depthwise by hand."""
    assert conv.bias is not None
    return x * conv.weight.reshape(1, -1, 1, 1) + conv.bias.reshape(1, -1, 1, 1)


def by_hand(sandwich: Sandwich, spec: ConvSpec | None, x: Tensor) -> tuple[Tensor, Tensor]:
    """What the first neighbour gives, and the conv of it with all padding applied ahead; weights that differ, for once."""
    conv = sandwich.conv
    assert spec is not None
    assert sandwich.before is not None
    assert conv is not None
    nn.init.uniform_(conv.weight, -0.3, 0.3)
    top, bottom, left, right = spec.padding
    entered = depthwise(sandwich.before, x)
    padded = F.pad(entered, (left, right, top, bottom))
    return entered, F.conv2d(padded, conv.weight, conv.bias, spec.stride, 0, spec.dilation, spec.groups)


SPECS = {
    "symmetric": ConvSpec(4, 4, (3, 5), padding=(1, 1, 2, 2)),
    "asymmetric": ConvSpec(4, 6, (4, 2), (2, 1), (1, 2, 0, 1)),
    "dilated": ConvSpec(4, 8, (3, 3), padding=(2, 2, 2, 2), dilation=(2, 2), groups=2),
    "depthwise": ConvSpec(4, 4, (3, 3), padding=(0, 1, 1, 0), groups=4),
}


@pytest.mark.parametrize("name", SPECS)
def test_a_sandwich_is_the_conv_between_two_neighbours(name: str) -> None:
    spec = SPECS[name]
    workload = Workload(spec, (4, 8, 9), (RELU,))
    sandwich = Sandwich(workload)
    (x,) = sandwich.inputs(2).args
    _, out = by_hand(sandwich, spec, x)
    assert worst(depthwise(sandwich.after, out.clamp_min(0)), sandwich(x)) <= 1e-6
    assert sandwich.conv is not None
    assert sandwich.conv.bias is not None


def test_a_residual_add_of_the_same_shape_reads_what_entered() -> None:
    workload = Workload(SPECS["symmetric"], (4, 8, 8), (ADD, RELU6))
    assert not needs_other(workload)
    sandwich = Sandwich(workload)
    inputs = sandwich.inputs(2).args
    assert len(inputs) == 1
    entered, out = by_hand(sandwich, workload.spec, inputs[0])
    assert worst(depthwise(sandwich.after, (out + entered).clamp(0, 6)), sandwich(*inputs)) <= 1e-6


def test_a_residual_add_of_another_shape_has_an_input_of_its_own() -> None:
    workload = Workload(SPECS["asymmetric"], (4, 8, 8), (ADD,))
    assert needs_other(workload)
    sandwich = Sandwich(workload)
    x, y = sandwich.inputs(3).args
    assert y.shape == (3, *workload.output_shape)
    _, out = by_hand(sandwich, workload.spec, x)
    assert sandwich.beside is not None
    assert worst(depthwise(sandwich.after, out + depthwise(sandwich.beside, y)), sandwich(x, y)) <= 1e-6


def test_group_norm_stands_where_it_is_told() -> None:
    workload = Workload(ConvSpec(4, 4, (1, 1)), (4, 6, 6), (Follower("GroupNorm", 2), SILU, ADD))
    sandwich = Sandwich(workload)
    (x,) = sandwich.inputs(2).args
    entered, out = by_hand(sandwich, workload.spec, x)
    groups = out.reshape(2, 2, -1)
    normal = (groups - groups.mean(-1, keepdim=True)) / (groups.var(-1, unbiased=False, keepdim=True) + 1e-5).sqrt()
    normal = normal.reshape(out.shape)
    expected = depthwise(sandwich.after, normal * torch.sigmoid(normal) + entered)
    assert worst(expected, sandwich(x)) <= 1e-5


def test_neighbours_of_a_runtime_that_tells_lead_from_and_to_few_channels() -> None:
    workload = Workload(ConvSpec(6, 10, (3, 3), padding=(1, 1, 1, 1)), (6, 8, 8), (ADD, RELU))
    sandwich = Sandwich(workload, told=True)
    x, y = sandwich.inputs(2).args
    assert (x.shape, y.shape) == ((2, 3, 8, 8), (2, 3, 8, 8))
    assert sandwich(x, y).shape == (2, 1, 8, 8)
    image = Sandwich(Workload(ConvSpec(3, 8, (3, 3)), (3, 8, 8)), told=True)
    assert image.before is None
    assert image(*image.inputs(2).args).shape == (2, 1, 6, 6)


def test_what_a_dropped_conv_leaves_is_timed_behind_another_activation_where_that_would_swallow_it() -> None:
    workload = Workload(None, (6, 8, 8), (RELU6,))
    assert workload.key == "6 on 8x8 ReLU6"
    for fuses in (True, False):
        sandwich = Sandwich(workload, told=True, fuses=fuses)
        assert (sandwich.lead is not None) == fuses
        assert sandwich(*sandwich.inputs(1).args).shape == (1, 1, 8, 8)


def test_an_empty_graph_is_two_neighbours() -> None:
    module, x = empty(3), torch.randn(2, 3, 4, 5)
    first, second = module.children()
    assert isinstance(first, nn.Conv2d)
    assert isinstance(second, nn.Conv2d)
    assert worst(depthwise(second, depthwise(first, x)), module(x)) <= 1e-6


def test_inputs_are_the_same_each_time() -> None:
    workload = Workload(SPECS["asymmetric"], (4, 8, 8), (ADD,))
    first, second = (Sandwich(workload).inputs(2).args for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
    assert first[0].shape == (2, 4, 8, 8)
