"""What a branch takes besides its convs: charged to whatever keeps the branch, on a runtime whose passes take a known time."""

from __future__ import annotations

from functools import cache, partial
from pathlib import Path

import pytest
import torch
from torch import fx, nn

import layermerge as lm
from fake_runtime import FakeRuntime, milliseconds
from gated import GatedNetwork, gated_input
from layermerge.runtimes.base import Pass
from layermerge.surgery.merge import MergedModule
from layermerge.tables.branches import Branch, branch_maker, branches_of
from layermerge.tables.latency import LatencyTable
from layermerge.tables.measuring import LatencyJob
from layermerge.tables.workloads import workloads_of
from layermerge.tracing.inputs import Inputs
from layermerge.tracing.operators import operator_name

GATE_MS, RELU_MS = 0.030, 0.003
"""A mean and a product; an activation."""
REST_MS = {"first": GATE_MS, "second": GATE_MS - RELU_MS, "second.inner": GATE_MS}
"""Behind `second` stands an activation, which is timed with the last conv of that branch."""


class GateRuntime(FakeRuntime):
    """As its parent, and 10 microseconds for each mean, 20 for each product of a graph."""

    def prepare(self, module: nn.Module, inputs: Inputs, *, small: bool = False) -> Pass:
        del small, inputs
        calls = (
            [operator_name(node.target) for node in module.graph.nodes] if isinstance(module, fx.GraphModule) else []
        )
        return self.lasting(milliseconds(module) + (10 * calls.count("mean") + 20 * calls.count("mul")) / 1000)


@cache
def traced() -> lm.Trace:
    torch.manual_seed(4)
    return lm.trace(GatedNetwork().eval(), gated_input())


@cache
def untouched() -> MergedModule:
    return lm.merge(lm.rewrite(traced(), []))


def measured(path: Path, plan: lm.Plan, whole_ms: float = 50.0) -> LatencyTable:
    runtime = GateRuntime()

    def branch(one: Branch) -> Pass:
        return runtime.prepare(branch_maker(traced(), untouched)(one), one.inputs(1))

    whole = partial(runtime.lasting, whole_ms)
    job = LatencyJob(plan, workloads_of(traced(), plan), "gated", whole, branches_of(traced(), plan.rules), branch)
    return job.run(runtime, 1, path / "latency.jsonl")


def test_branches_of_the_same_work_share_a_measurement() -> None:
    first, second, inner = branches_of(traced())
    assert first.key == inner.key != second.key
    assert [(each.start, each.end) for each in (first, second, inner)] == [
        (block.start, block.end) for block in traced().blocks
    ]


def test_a_branch_cut_out_computes_what_the_network_does_there() -> None:
    """With neighbours that change nothing, against the user's own module."""
    model = GatedNetwork().eval()
    own = lm.trace(model, gated_input())
    network = lm.merge(lm.rewrite(own, []))
    for branch, part in zip(branches_of(own), (model.first, model.second, model.second.inner), strict=True):
        cut = branch_maker(own, lambda: network)(branch)
        for neighbour in (cut.get_submodule("before"), cut.get_submodule("after")):
            assert isinstance(neighbour, nn.Conv2d)
            nn.init.ones_(neighbour.weight)
            assert neighbour.bias is not None
            nn.init.zeros_(neighbour.bias)
        (given,) = branch.inputs(3).args
        assert part is not None
        torch.testing.assert_close(cut(given), part(given))


def test_the_rest_of_a_branch_is_charged_to_what_keeps_it(tmp_path: Path) -> None:
    plan = lm.plan(traced())
    table = measured(tmp_path, plan)
    starts = [block.start for block in traced().blocks]
    for candidate in plan.candidates:
        workload = table.workloads[candidate.key]
        own = 0.0 if workload is None else table.table[workload.key].value or 0.0
        kept = [
            block
            for block in traced().blocks
            if candidate.start <= block.start < candidate.end
            and not (not candidate.kept and candidate.start <= block.start and block.end <= candidate.end)
        ]
        found = table.of(candidate)
        assert found is not None
        assert found == pytest.approx(own + sum(REST_MS[block.name] for block in kept), abs=1e-9)
    dropped = plan[f"{starts[0]}-{traced().blocks[0].end}:identity"]
    assert table.of(dropped) == 0.0
    singles = sum(table.of(one) or 0.0 for one in plan.candidates if one.untouched)
    assert table.fixed_ms + singles == pytest.approx(table.original_ms)


def test_a_dropped_branch_saves_all_of_its_time(tmp_path: Path) -> None:
    """The sum of the rest is what the network without the branch takes."""
    runtime = GateRuntime()
    whole_ms = _price(runtime, untouched())
    plan = lm.plan(traced())
    table = measured(tmp_path, plan, whole_ms)
    block = traced().blocks[0]
    drop = plan[f"{block.start}-{block.end}:identity"]
    without = _price(runtime, lm.merge(lm.rewrite(traced(), [drop])))
    others = [one for one in plan.candidates if one.untouched and not block.start <= one.start < block.end]
    assert table.fixed_ms + sum(table.of(one) or 0.0 for one in others) == pytest.approx(without)


def test_a_replaced_gate_saves_all_of_its_time(tmp_path: Path) -> None:
    """The sum of the rest is what the network with the gate's mean takes: its product is folded."""
    runtime = GateRuntime()
    plan = lm.plan(traced(), lm.Rules(replace=("gates",)))
    table = measured(tmp_path, plan, _price(runtime, untouched()))
    gates = [one for one in plan.candidates if one.replaced]
    assert len(gates) == 3
    for gate in gates:
        assert table.of(gate) == 0.0
        without = _price(runtime, lm.merge(lm.rewrite(traced(), [gate])))
        others = [one for one in plan.candidates if one.untouched and not gate.start <= one.start < gate.end]
        assert table.fixed_ms + sum(table.of(one) or 0.0 for one in others) == pytest.approx(without)
    singles = sum(table.of(one) or 0.0 for one in plan.candidates if one.untouched)
    assert table.fixed_ms + singles == pytest.approx(table.original_ms)
    first = traced().blocks[0]
    assert table.of(plan[f"{first.start}-{first.end}:identity"]) == 0.0


def test_a_gate_cut_out_computes_what_the_network_does_there() -> None:
    model = GatedNetwork().eval()
    own = lm.trace(model, gated_input())
    network = lm.merge(lm.rewrite(own, []))
    gates = [branch for branch in branches_of(own, lm.Rules(replace=("gates",))) if branch.gate]
    parts = {"first": model.first, "second": model.second, "second.inner": model.second.inner}
    for branch in gates:
        cut = branch_maker(own, lambda: network)(branch)
        for neighbour in (cut.get_submodule("before"), cut.get_submodule("after")):
            assert isinstance(neighbour, nn.Conv2d)
            nn.init.ones_(neighbour.weight)
            assert neighbour.bias is not None
            nn.init.zeros_(neighbour.bias)
        part = parts[own.layers[branch.start].name.removesuffix(".reduce")]
        assert part is not None
        (given,) = branch.inputs(3).args
        value = torch.sigmoid(part.grow(torch.relu(part.reduce(given.mean((2, 3), keepdim=True)))))
        torch.testing.assert_close(cut(given), given * value)
    assert len(gates) == 3


def _price(runtime: GateRuntime, module: nn.Module) -> float:
    taken = runtime.prepare(module, Inputs((), {}))()
    assert isinstance(taken, float)
    return taken


def test_one_that_cannot_be_built_stays_in_the_fixed_cost(tmp_path: Path) -> None:
    plan = lm.plan(traced())
    runtime = GateRuntime()

    def broken(_branch: Branch) -> Pass:
        raise RuntimeError("operator not known here")

    whole = partial(runtime.lasting, 50.0)
    job = LatencyJob(plan, workloads_of(traced(), plan), "gated", whole, branches_of(traced()), broken)
    table = job.run(runtime, 1, tmp_path / "latency.jsonl")
    priced = measured(tmp_path / "priced", plan)
    assert table.fixed_ms == pytest.approx(priced.fixed_ms + sum(REST_MS.values()))
