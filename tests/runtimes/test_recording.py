"""Recordings of real runtimes: every conv of a network is named, and what is told adds up to a pass."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import layermerge as lm
import zoo
from layermerge.conv import ConvSpec
from layermerge.runtimes.base import RuntimeSettings
from layermerge.runtimes.recording import Operator
from layermerge.runtimes.registry import make_runtime
from layermerge.tables.workloads import ADD, Follower, Sandwich, Workload

TELLING = ["torch", "onnxruntime", "openvino"]


@pytest.mark.parametrize("runtime", TELLING)
@pytest.mark.parametrize("name", ["basic_strided", "time_shifted_block"])
def test_every_layer_is_named(runtime: str, name: str) -> None:
    trace = zoo.traced(name)
    recording = make_runtime(runtime).record(lm.merge(lm.rewrite(trace, [])), trace.inputs.resized(2))
    assert recording is not None
    for _ in range(3):
        recording()
    passes = recording.passes()
    assert len(passes) == 3
    for operators in passes:
        assert {layer.name for layer in trace.layers} <= {one.owner for one in operators if one.is_conv}
        assert all(one.ms >= 0 for one in operators)


@pytest.mark.parametrize("runtime", TELLING)
@pytest.mark.parametrize(
    "workload",
    [
        Workload(ConvSpec(8, 6, (3, 3), padding=(1, 1, 1, 1)), (8, 12, 12), (Follower("ReLU"),)),
        Workload(ConvSpec(6, 6, (3, 3), padding=(0, 1, 1, 0), groups=6), (6, 12, 12), (ADD,)),
        Workload(ConvSpec(3, 8, (3, 3), (2, 2), (1, 1, 1, 1)), (3, 12, 12)),
        Workload(None, (8, 12, 12), (Follower("SiLU"),)),
    ],
    ids=["dense", "grouped", "image", "identity"],
)
def test_a_sandwich_is_told_apart_from_its_neighbours(runtime: str, workload: Workload) -> None:
    chosen = make_runtime(runtime)
    sandwich = Sandwich(workload, told=True, fuses=chosen.fuses)
    recording = chosen.record(sandwich, sandwich.inputs(2), small=True)
    assert recording is not None
    for _ in range(2):
        recording()
    for operators in recording.passes():
        named = {one.owner for one in operators if one.is_conv}
        assert "after" in named
        assert ("conv" in named) == (workload.spec is not None)
        own = sandwich.own_ms(operators)
        convs = sum(one.ms for one in operators if one.is_conv and one.owner in ("before", "beside", "after"))
        assert 0 <= own <= sum(one.ms for one in operators) - convs + 1e-9


def test_what_belongs_to_a_sandwich() -> None:
    """Changes of layout are its own, but for those that its neighbours need, and for the last one, back into the user's."""
    sandwich = Sandwich(Workload(ConvSpec(8, 8, (1, 1)), (8, 4, 4), (ADD,)), told=True)
    operators = [
        Operator(None, False, 16.0),  # out of the user's layout
        Operator("before", True, 1.0),
        Operator(None, False, 32.0),  # the same for the other side of the add
        Operator("beside", True, 2.0),
        Operator(None, False, 0.1),
        Operator("conv", True, 4.0),
        Operator("conv", False, 0.2),
        Operator(None, False, 0.05),
        Operator("after", True, 8.0),
        Operator(None, False, 0.4),
    ]
    assert sandwich.own_ms(operators) == pytest.approx(4.35)


def test_what_an_image_needs_before_its_conv_is_nobodys() -> None:
    """So it is in a network, where it is part of the fixed cost."""
    sandwich = Sandwich(Workload(ConvSpec(3, 8, (3, 3)), (3, 8, 8)), told=True)
    operators = [Operator(None, False, 16.0), Operator("conv", True, 4.0), Operator("after", True, 8.0)]
    assert sandwich.own_ms(operators) == 4.0


@pytest.mark.parametrize("runtime", ["torch-compile"])
def test_some_do_not_tell(runtime: str) -> None:
    assert make_runtime(runtime).record(nn.Conv2d(3, 3, 1), zoo.traced("plain").inputs) is None


def test_a_recorded_pass_computes_the_same_network() -> None:
    """Its operators are the graph's, in order."""
    trace = zoo.traced("basic")
    merged = lm.merge(lm.rewrite(trace, []))
    recording = make_runtime("torch", RuntimeSettings()).record(merged, trace.inputs)
    assert recording is not None
    recording()
    (operators,) = recording.passes()
    calls = [node for node in merged.graph.nodes if node.op.startswith("call")]
    assert len(operators) == len(calls)
    assert torch.get_num_threads() >= 1
