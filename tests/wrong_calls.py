"""Calls of the public functions that must not pass, each with words that its refusal says.

`Given` is what a user has at hand: a network, its trace, plan and tables, and the same of another network.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

import layermerge
from layermerge.runtimes.base import RuntimeSettings
from layermerge.runtimes.clock import ClockSettings
from layermerge.tables.executors import LocalProcesses
from layermerge.tables.latency import LatencyTable
from layermerge.tables.table import Row, Scalar, Table
from layermerge.tables.workload_clock import WHOLE
from layermerge.tables.workloads import workloads_of

SIDE, CLASSES = 6, 3


def network(width: int) -> nn.Sequential:
    convs = [nn.Conv2d(3, width, 3, padding=1), nn.ReLU(), nn.Conv2d(width, width, 3, padding=1), nn.ReLU()]
    return nn.Sequential(*convs, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, CLASSES))


def images(count: int = 30, side: int = SIDE, channels: int = 3) -> tuple[Any, Any]:
    return np.zeros((count, side, side, channels), np.uint8), np.arange(count) % CLASSES


def tensors(count: int = 30, side: int = SIDE) -> TensorDataset:
    return TensorDataset(torch.zeros(count, 3, side, side), torch.arange(count) % CLASSES)


class Streamed(IterableDataset[Any]):
    """Images that come one after another."""

    def __init__(self, side: int) -> None:
        self.side = side

    def __iter__(self) -> Iterator[tuple[Tensor, int]]:
        return iter([(torch.zeros(3, self.side, self.side), 0)] * 4)


class Uneven(Dataset[Any]):
    """Images of ever another size, none of which a batch can be made of."""

    targets = [0, 1, 2] * 10

    def __len__(self) -> int:
        return len(self.targets)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return torch.zeros(3, SIDE + index, SIDE), self.targets[index]


class Nothing(layermerge.tasks.Classification):
    """A task that never has a batch."""

    def train_batches(self, draw: Any) -> Iterator[Any]:  # noqa: ARG002
        return iter(())


class Wordy(layermerge.tasks.Classification):
    """A task that scores in words."""

    def evaluate(self, network: Any) -> Any:  # noqa: ARG002
        return "good"


@dataclass(frozen=True)
class Given:
    """What a user has made of one network."""

    width: int = 4

    @cached_property
    def model(self) -> nn.Sequential:
        return network(self.width).eval()

    @cached_property
    def inputs(self) -> Tensor:
        return torch.zeros(2, 3, SIDE, SIDE)

    @cached_property
    def trace(self) -> layermerge.Trace:
        return layermerge.trace(self.model, self.inputs)

    @cached_property
    def plan(self) -> layermerge.Plan:
        return layermerge.plan(self.trace)

    @cached_property
    def latency(self) -> LatencyTable:
        """As if it had been measured: a millisecond for every workload."""
        workloads = workloads_of(self.trace, self.plan)
        keys = {workload.key for workload in workloads.values() if workload is not None}
        rows = [Row(key=WHOLE, value=10.0), *(Row(key=key, value=1.0) for key in sorted(keys))]
        provenance: dict[str, Scalar] = {
            "kind": "latency",
            "network": self.plan.network,
            "runtime": "torch",
            "threads": 1,
            "batch": 1,
        }
        return LatencyTable(self.plan, workloads, Table(provenance, rows))

    @cached_property
    def scores(self) -> dict[str, float]:
        return {candidate.key: 0.0 if candidate.untouched else -0.5 for candidate in self.plan.candidates}

    @cached_property
    def importance(self) -> Table:
        provenance = {"kind": "importance", "network": self.plan.network}
        return Table(provenance, [Row(key=key, value=value) for key, value in self.scores.items()])

    @cached_property
    def frontier(self) -> layermerge.Frontier:
        return layermerge.solve(self.plan, self.latency, self.scores)

    @cached_property
    def rewritten(self) -> Any:
        return layermerge.rewrite(self.trace, [self.plan["0-2:5x5g1"]])

    @cached_property
    def merged(self) -> Any:
        return layermerge.merge(self.rewritten)

    @cached_property
    def task(self) -> layermerge.tasks.Classification:
        return layermerge.tasks.Classification(images(), images())

    @cached_property
    def other(self) -> Given:
        """Another network."""
        return Given(self.width + 1)


# Type checkers would refuse most of these calls by themselves.
lm: Any = layermerge
clock_settings: Any = ClockSettings
runtime_settings: Any = RuntimeSettings
local_processes: Any = LocalProcesses
Call = Callable[[Any], object]

TRACING: list[tuple[Call, str]] = [
    (lambda _: lm.trace("x"), "missing a required argument: 'example_inputs'"),
    (lambda g: lm.trace("x", g.inputs), "model is 'x'; give a torch.nn.Module"),
    (lambda g: lm.trace(None, g.inputs), "model is None; give a torch.nn.Module"),
    (lambda g: lm.trace(nn.Conv2d, g.inputs), "model is the type Conv2d; give a torch.nn.Module"),
    (lambda g: lm.trace(g.model, None), "cannot be traced|example inputs|does not run"),
    (lambda g: lm.trace(g.model, ()), "example inputs"),
    (lambda g: lm.trace(g.model, g.inputs, batch=3), "unexpected keyword argument 'batch'; it takes model"),
    (lambda g: lm.plan(g.model), "trace is a Sequential; give what layermerge.trace"),
    (lambda _: lm.plan(), "missing a required argument: 'trace'"),
    (lambda g: lm.plan(g.trace, "paper"), "rules is 'paper'; give rules, such as layermerge.Rules"),
    (lambda g: lm.plan(g.trace, {"max_kernel": 7}), "rules is a dict; give rules"),
    (lambda g: lm.plan(g.trace, method=3), "method is 3; give a text"),
    (lambda g: lm.plan(g.trace, method="widths"), "unknown method 'widths'"),
    (lambda _: lm.Rules(kernel=3), "unexpected keyword argument 'kernel'; it takes max_kernel"),
    (lambda _: lm.Rules(max_kernel="7"), "max_kernel is '7'; give a whole number"),
    (lambda _: lm.Rules(pin=3), "pin is 3; it must be a layer's name"),
    (lambda _: lm.Rules.paper(pin=3), "pin is 3; it must be a layer's name"),
    (lambda g: g.plan["9-10:identity"], "the plan has no candidate '9-10:identity'"),
    (lambda g: g.plan[0], "key is 0; give a text"),
    (lambda g: g.plan[["0-1:3x3g1"]], "key is a list; give a text"),
    (lambda g: g.plan.single("0", kept=True), "index is '0'; give a whole number"),
    (lambda _: lm.ConvSpec("3", 8, (3, 3)), "pairs of whole numbers"),
    (lambda _: lm.ConvSpec(3, 8, 3), "pairs of whole numbers"),
    (lambda _: lm.ConvSpec(3, 8, (3, 3, 3)), "pairs of whole numbers"),
    (lambda _: lm.ConvSpec(3, 8, (0.5, 3)), "pairs of whole numbers"),
    (lambda _: lm.ConvSpec(3, 8, (3, 3), groups=2), "2 groups do not divide"),
    (lambda _: lm.Candidate("0", 1, ("0",), (), None), "start is '0'; give a whole number"),
    (lambda _: lm.Candidate(0, 1, "0", (), None), "layers is '0'; give a tuple of a text"),
]

SURGERY: list[tuple[Call, str]] = [
    (lambda g: lm.rewrite(g.trace, "0-2:5x5g1"), "candidates is '0-2:5x5g1'; give a list of candidates"),
    (lambda g: lm.rewrite(g.trace, ["0-2:5x5g1"]), r"candidates\[0\] is '0-2:5x5g1'; give candidates"),
    (lambda g: lm.rewrite(g.trace, (key for key in ["0-1"])), r"candidates\[0\] is '0-1'; give candidates"),
    (lambda g: lm.rewrite(g.trace, g.plan["0-2:5x5g1"]), "candidates is a Candidate; give a list"),
    (lambda g: lm.rewrite(g.trace, None), "candidates is None; give a list"),
    (lambda g: lm.rewrite(g.model, []), "trace is a Sequential; give what layermerge.trace"),
    (lambda g: lm.rewrite(g.trace, [], add_activation="yes"), "add_activation is 'yes'; give True or False"),
    (lambda g: lm.rewrite(g.trace, g.frontier), "candidates is a Frontier; give a list"),
    (lambda g: lm.rewrite(g.trace, [replace(g.plan.candidates[0], layers=("stem",))]), "it belongs to another model"),
    (
        lambda g: lm.calibrate(g.model, torch.zeros(50, 3, SIDE, SIDE)),
        "net is a Sequential; give what layermerge.rewrite",
    ),
    (lambda g: lm.calibrate(g.merged, torch.zeros(50, 3, SIDE, SIDE)), "give what layermerge.rewrite"),
    (lambda g: lm.calibrate(g.rewritten), "missing a required argument: 'images'"),
    (lambda g: lm.calibrate(g.rewritten, "images"), "images are a str; give a tensor"),
    (lambda g: lm.calibrate(g.rewritten, None), "images are a NoneType; give a tensor"),
    (lambda g: lm.calibrate(g.rewritten, g.inputs), "2 images are too few to calibrate with"),
    (lambda g: lm.calibrate(g.rewritten, g.inputs, count=0), "count is 0; give a whole number of at least 1"),
    (lambda g: lm.calibrate(g.rewritten, torch.zeros(50, 3, SIDE, SIDE), count=10), "10 images are too few"),
    (lambda g: lm.calibrate(g.rewritten, torch.zeros(50, 1, SIDE, SIDE)), "but the network was traced with"),
    (lambda g: lm.calibrate(g.rewritten, g.inputs, teacher="me"), "teacher is 'me'; give what layermerge.trace"),
    (lambda g: lm.calibrate(g.rewritten, g.inputs, teacher=g.other.model), "the teacher is of another structure"),
    (lambda g: lm.quantize(g.trace, g.inputs, "a.onnx"), "source is a Trace; give a torch.nn.Module or a path"),
    (lambda g: lm.quantize(g.merged, g.inputs), "missing a required argument: 'to'"),
    (lambda g: lm.quantize(g.merged, None, "a.onnx"), "images are a NoneType; give a tensor"),
    (lambda g: lm.quantize(g.merged, g.inputs, "a.onnx"), "2 images are too few"),
    (lambda g: lm.quantize(g.merged, g.inputs, "a.pt2"), "cannot quantise to 'a.pt2'; give a name that ends in .onnx"),
    (
        lambda g: lm.quantize(g.merged, g.inputs, "a.onnx", most_loss=0.0),
        "most_loss is 0.0; give a number between 0 and 1",
    ),
    (lambda g: lm.quantize(g.merged, g.inputs, "a.onnx", count=0), "count is 0; give a whole number of at least 1"),
    (lambda g: lm.quantize(g.merged, g.inputs, "a.onnx", runtime="torch"), "runtime 'torch' does not read ONNX files"),
    (lambda _: lm.merge(None), "module is None; give a torch.nn.Module"),
    (lambda g: lm.merge(g.model), "merge takes what rewrite returns, not Sequential"),
    (lambda g: lm.merge(g.merged), "merge takes what rewrite returns"),
    (lambda g: lm.merge(g.trace), "module is a Trace; give a torch.nn.Module"),
    (lambda _: lm.merge(), "missing a required argument: 'module'"),
]

MEASURING: list[tuple[Call, str]] = [
    (lambda g: lm.measure_latency(g.plan, trace=g.other.trace), "the plan belongs to another network than the trace"),
    (lambda g: lm.measure_latency(g.trace, trace=g.trace), "plan is a Trace; give what layermerge.plan"),
    (lambda g: lm.measure_latency(g.plan), "missing a required argument: 'trace'"),
    (lambda g: lm.measure_latency(g.plan, trace=g.model), "trace is a Sequential; give what layermerge.trace"),
    (lambda g: lm.measure_latency(g.plan, trace=g.trace, batch_size=0), "batch_size is 0; give a whole number of at"),
    (lambda g: lm.measure_latency(g.plan, trace=g.trace, batch_size=-1), "batch_size is -1; give a whole number"),
    (lambda g: lm.measure_latency(g.plan, trace=g.trace, batch_size=1.0), "batch_size is 1.0; give a whole number"),
    (lambda g: lm.measure_latency(g.plan, trace=g.trace, threads=0), "threads is 0; give a whole number of at least 1"),
    (lambda g: lm.measure_latency(g.plan, trace=g.trace, threads=10**6), "threads is 1000000; give a number from 1"),
    (lambda g: lm.measure_latency(g.plan, trace=g.trace, runtime="tflite"), "unknown runtime 'tflite'"),
    (lambda g: lm.measure_latency(g.plan, trace=g.trace, runtime=["torch"]), "runtime is a list; give a text or"),
    (lambda g: lm.measure_latency(g.plan, trace=g.trace, path=3), "path is 3; give a path, as text or as a Path"),
    (lambda g: lm.measure_latency(g.plan, trace=g.trace, path="a\0b"), "give a path, as text or as a Path"),
    (lambda g: lm.measure_latency(g.plan, trace=g.trace, clock=0.1), "clock is 0.1; give a ClockSettings or None"),
    (lambda _: clock_settings(quantile=2.0), "quantile is 2.0; give a number from 0 to 1"),
    (lambda _: clock_settings(most_rounds=0), "most_rounds is 0; give a whole number of at least 1"),
    (lambda _: runtime_settings(threads="2"), "threads is '2'; give a whole number"),
    (lambda _: runtime_settings(dtype=torch.float16), "dtype is a dtype; give a text"),
    (lambda g: g.latency.of("0-1:3x3g1"), "candidate is '0-1:3x3g1'; give candidates of layermerge.plan"),
    (lambda g: g.latency.of(g.other.plan.candidates[0]), "is not of the plan"),
    (lambda g: g.latency.spread_of(g.other.plan.candidates[0]), "is not of the plan"),
    (lambda g: g.importance["nothing"], "has no row for 'nothing'"),
    (
        lambda g: lm.measure_importance(g.trace, g.other.plan, g.task),
        "the plan belongs to another network than the trace",
    ),
    (lambda g: lm.measure_importance(g.trace, g.plan, "cifar10"), "task is 'cifar10'; give a task, such as"),
    (lambda g: lm.measure_importance(g.plan, g.trace, g.task), "trace is a Plan; give what layermerge.trace"),
    (lambda g: lm.measure_importance(g.trace, g.plan), "missing a required argument: 'task'"),
    (
        lambda g: lm.measure_importance(g.trace, g.plan, g.task, steps=0),
        "steps is 0; give a whole number of at least 1",
    ),
    (lambda g: lm.measure_importance(g.trace, g.plan, g.task, steps=-5), "steps is -5; give a whole number"),
    (lambda g: lm.measure_importance(g.trace, g.plan, g.task, steps="9"), "steps is '9'; give a whole number"),
    (lambda g: lm.measure_importance(g.trace, g.plan, g.task, recipe={"steps": 3}), "recipe is a dict; give a recipe"),
    (lambda g: lm.measure_importance(g.trace, g.plan, g.task, latency=g.scores), "latency is a dict; give what layer"),
    (
        lambda g: lm.measure_importance(g.trace, g.plan, g.task, latency=g.other.latency),
        "belongs to another network than the plan",
    ),
    (lambda g: lm.measure_importance(g.trace, g.plan, g.task, shard=(2, 2)), "shard 2 of 2 does not exist"),
    (lambda g: lm.measure_importance(g.trace, g.plan, g.task, shard="1/2"), "shard is '1/2'; give a tuple"),
    (lambda g: lm.measure_importance(g.trace, g.plan, g.task, shard=(0, 1, 2)), "shard is a tuple; give a tuple"),
    (lambda g: lm.measure_importance(g.trace, g.plan, g.task, device="tpu9"), "there is no device 'tpu9'"),
    (lambda g: lm.measure_importance(g.trace, g.plan, g.task, executor="ray"), "executor is 'ray'; give a function"),
    (lambda _: local_processes("2"), "count is '2'; give a whole number"),
    (lambda _: local_processes(0), "0 worker processes cannot be started"),
]

SOLVING: list[tuple[Call, str]] = [
    (
        lambda g: lm.solve(g.plan, g.other.latency, g.scores),
        "the latency table belongs to another network than the plan",
    ),
    (lambda g: lm.solve(g.plan, g.latency, g.other.importance), "measured for another network"),
    (lambda g: lm.solve(g.plan, g.latency, g.latency.table), "is not an importance table"),
    (lambda g: lm.solve(g.plan, g.scores, g.latency), "latency is a dict; give what layermerge.measure_latency"),
    (lambda g: lm.solve(g.plan, g.latency), "missing a required argument: 'scores'"),
    (lambda g: lm.solve(g.trace, g.latency, g.scores), "plan is a Trace; give what layermerge.plan"),
    (lambda g: lm.solve(g.plan, g.latency, g.scores | {"9-10:identity": 0.0}), "'9-10:identity', which is not a cand"),
    (lambda g: lm.solve(g.plan, g.latency, {}), "the scores have no entry for"),
    (lambda g: lm.solve(g.plan, g.latency, g.scores | {3: 0.0}), "a key of scores is 3; give a text"),
    (lambda g: lm.solve(g.plan, g.latency, dict.fromkeys(g.scores, 1000)), "is 1000, too large for a change"),
    (lambda g: lm.solve(g.plan, g.latency, dict.fromkeys(g.scores, math.nan)), r"scores\['.*'\] is nan; give a number"),
    (lambda g: lm.solve(g.plan, g.latency, dict.fromkeys(g.scores, math.inf)), "is inf, too large for a change"),
    (lambda g: lm.solve(g.plan, g.latency, dict.fromkeys(g.scores, "0.1")), r"scores\['.*'\] is '0.1'; give a number"),
    (lambda g: lm.solve(g.plan, g.latency, dict.fromkeys(g.scores, None)), r"scores\['.*'\] is None; give a number"),
    (lambda g: lm.solve(g.plan, g.latency, dict.fromkeys(g.scores, -math.inf), objective="delta"), "must be a number"),
    (lambda g: lm.solve(g.plan, g.latency, list(g.scores.values())), "scores is a list; give what layermerge.measure"),
    (lambda g: lm.solve(g.plan, g.latency, "importance.jsonl"), "scores is 'importance.jsonl'; give what layermerge"),
    (lambda g: lm.solve(g.plan, g.latency, g.scores, objective="log"), "objective is 'log'; give 'exp' or 'delta'"),
    (lambda g: lm.solve(g.plan, g.latency, g.scores, tick_ms=0), "a tick of 0 ms cannot count latencies"),
    (lambda g: lm.solve(g.plan, g.latency, g.scores, tick_ms=-1.0), "a tick of -1.0 ms cannot count latencies"),
    (lambda g: lm.solve(g.plan, g.latency, g.scores, tick_ms="1"), "tick_ms is '1'; give a number or None"),
    (lambda g: lm.solve(g.plan, g.latency, g.scores, tick_ms=math.nan), "tick_ms is nan; give a number or None"),
    (lambda g: g.frontier.within(math.nan), "allowed is nan; give a number of milliseconds"),
    (lambda g: g.frontier.within("60%"), "allowed is '60%'; give a number of milliseconds; for 60% or 1.8x ask"),
    (lambda g: g.frontier.within(None), "allowed is None; give a number of milliseconds"),
    (lambda g: g.frontier.within(-1), "allowed is -1; give a number of milliseconds"),
    (lambda g: g.frontier.within(0.0), "no choice of candidates runs in"),
    (lambda g: g.frontier.within(True), "allowed is True; give a number of milliseconds"),
    (lambda g: g.frontier.at(60), "cannot read the budget '60'; write a share"),
    (lambda g: g.frontier.at("60"), "cannot read the budget '60'; write a share"),
    (lambda g: g.frontier.at(0), "cannot read the budget '0'; write a share"),
    (lambda g: g.frontier.at(-0.5), "cannot read the budget '-0.5'; write a share"),
    (lambda g: g.frontier.at(math.nan), "cannot read the budget 'nan'; write a share"),
    (lambda g: g.frontier.at(None), "cannot read the budget 'None'; write a share"),
    (lambda g: g.frontier.at(0.01), "no choice of candidates runs in"),
    (lambda g: g.frontier.at(), "missing a required argument: 'budget'"),
    (lambda g: g.frontier.solution(10**6), "the frontier has no point 1000000; it has"),
    (lambda g: g.frontier.solution("0"), "index is '0'; give a whole number"),
    (lambda g: lm.meet_budget(g.trace, g.plan, g.latency, g.scores, budget=60), "cannot read the budget '60'"),
    (lambda g: lm.meet_budget(g.trace, g.plan, g.latency, g.scores), "missing a required argument: 'budget'"),
    (
        lambda g: lm.meet_budget(g.other.trace, g.plan, g.latency, g.scores, budget=0.6),
        "plan belongs to another network",
    ),
    (
        lambda g: lm.meet_budget(g.trace, g.plan, g.other.latency, g.scores, budget=0.6),
        "table belongs to another network",
    ),
    (lambda g: lm.meet_budget(g.trace, g.plan, g.latency, g.scores, budget=0.6, runtime="x"), "unknown runtime 'x'"),
    (
        lambda g: lm.meet_budget(g.trace, g.plan, g.latency, g.scores, budget=0.6, runtime="onnxruntime"),
        "measured on torch, not on onnxruntime",
    ),
]

TRAINING: list[tuple[Call, str]] = [
    (lambda g: lm.finetune(g.rewritten, g.task, recipe={"epochs": 1}), "recipe is a dict; give a recipe, such as"),
    (lambda g: lm.finetune(g.rewritten, g.task), "missing a required argument: 'recipe'"),
    (lambda g: lm.finetune(g.trace, g.task, lm.Recipe(steps=1)), "net is a Trace; give a torch.nn.Module"),
    (lambda g: lm.finetune(g.rewritten, images(), lm.Recipe(steps=1)), "task is a tuple; give a task, such as"),
    (lambda g: lm.finetune(g.rewritten, g.task, lm.Recipe(steps=1), teacher="me"), "teacher is 'me'; give a torch.nn"),
    (lambda g: lm.finetune(g.rewritten, g.task, lm.Recipe(steps=1), directory=3), "directory is 3; give a path"),
    (lambda g: lm.finetune(g.rewritten, g.task, lm.Recipe(steps=1), on_epoch=1), "on_epoch is 1; give a function or"),
    (lambda g: lm.finetune(g.rewritten, Wordy(images(), images()), lm.Recipe(steps=1)), "Wordy.evaluate gives a str"),
    (lambda g: lm.finetune(g.rewritten, Nothing(images(), images()), lm.Recipe(steps=1)), "correct the task"),
    (lambda _: lm.Recipe(), "give either epochs or steps"),
    (lambda _: lm.Recipe(10), "Recipe takes its fields by name"),
    (lambda _: lm.Recipe(epochs=1, steps=1), "give either epochs or steps"),
    (lambda _: lm.Recipe(steps=-1), "steps: Input should be greater than or equal to 1, not '-1'"),
    (lambda _: lm.Recipe(epochs=math.nan), "epochs: Input should be a finite number"),
    (lambda _: lm.Recipe(epochs="ten"), "epochs: Input should be a valid number"),
    (lambda _: lm.Recipe(steps=1, learning_rate=0.1), "learning_rate: there is no such key"),
    (lambda _: lm.Recipe(steps=1, distill={"weight": 2}), "distill.weight: Input should be less than or equal to 1"),
    (lambda _: lm.Settings(threads=0), "threads: Input should be greater than or equal to 1"),
    (lambda _: lm.Settings(runtime="tflite"), "runtime: unknown runtime 'tflite'"),
    (lambda _: lm.Settings(finetune={"epochs": 1, "lr": -1}), "finetune.lr: Input should be greater than 0"),
    (lambda _: lm.Settings(rules="theirs"), "rules: unknown rules 'theirs'"),
    (lambda _: lm.Settings(rules={"max_kernel": 0}), "max_kernel is 0; give a whole number of at least 1"),
    (lambda _: lm.Settings(first_budget=60), "first_budget: cannot read the budget '60'"),
    (lambda _: lm.Settings(device="tpu"), "device: there is no device 'tpu'"),
]

TASKS: list[tuple[Call, str]] = [
    (lambda _: lm.tasks.Classification(images()), "missing a required argument: 'test'"),
    (lambda _: lm.tasks.Classification(3, images()), "train data is a int; give images"),
    (lambda _: lm.tasks.Classification("cifar10", images()), "train data is a str; give images"),
    (lambda _: lm.tasks.Classification(images(), images(side=SIDE + 1)), "give one shape"),
    (lambda _: lm.tasks.Classification(images(), images(channels=1)), "give one shape"),
    (lambda _: lm.tasks.Classification(tensors(), tensors(side=SIDE + 1)), "give one shape"),
    (lambda _: lm.tasks.Classification(DataLoader(tensors()), DataLoader(tensors(side=SIDE + 1))), "give one shape"),
    (lambda _: lm.tasks.Classification(Streamed(4), Streamed(5), held_out=Streamed(4)), "give one shape"),
    (lambda _: lm.tasks.Classification(images(), images(), held_out=tensors(side=SIDE + 1)), "give one shape"),
    (lambda g: g.task.__class__(Uneven(), Uneven()).evaluate(g.model), "give tensors of one shape"),
    (lambda _: lm.tasks.Classification(images(0), images()), "is empty; give at least one image"),
    (lambda _: lm.tasks.Classification(images(), images(), augment="flip"), "unexpected keyword argument 'augment'"),
    (lambda _: lm.tasks.Classification(images(), images(), preparation="flip"), "preparation is 'flip'; give a layer"),
    (lambda _: lm.tasks.Classification(images(), images(), held_out=math.nan), "held_out=nan is not a fraction"),
    (lambda _: lm.tasks.Classification(images(), images(), held_out="tenth"), "held_out data is a str"),
    (lambda _: lm.tasks.Classification(images(), images(), seed=-1), "images need seed >= 0"),
    (lambda _: lm.tasks.Classification(images(), images(), seed=0.5), "seed is 0.5; give a whole number"),
    (lambda _: lm.tasks.Classification(images(), images(), workers="2"), "workers is '2'; give a whole number"),
    (lambda g: g.task.evaluate("model.onnx"), "network is 'model.onnx'; give a function"),
    (lambda g: g.task.test(None), "network is None; give a function"),
    (lambda g: g.task.steps_per_epoch(0), "batch_size is 0; give a whole number of at least 1"),
    (lambda g: g.task.train_batches(0), "draw is 0; give a Draw"),
    (lambda _: Nothing(images(), images()).example_inputs(), "Nothing has no training batch"),
    (lambda _: lm.tasks.Diffusion(images(), images()), "missing a required argument: 'pretrained'"),
    (lambda _: lm.tasks.Diffusion(images(), images(), "ddpm"), "pretrained is 'ddpm'; give a torch.nn.Module"),
    (lambda g: lm.tasks.Diffusion(images(), images(), g.model), "Sequential does not take 2 inputs"),
    (lambda g: lm.tasks.Diffusion(images(), images(), g.model, schedule="ddpm"), "str has no alphas_cumprod"),
    (lambda g: lm.tasks.Diffusion(images(), images(), g.model, conditions=3), "conditions is 3; give a function"),
    (lambda _: lm.tasks.Imitation(), "missing a required argument: 'images'"),
    (lambda _: lm.tasks.Imitation(images()[0], teacher="net"), "teacher is 'net'; give a torch.nn.Module or None"),
    (lambda _: lm.tasks.Imitation(images()[0], augment="flip"), "unexpected keyword argument 'augment'"),
    (lambda _: lm.tasks.Imitation(images(10)[0]), "10 images are too few to imitate with"),
    (lambda _: lm.tasks.Imitation(tensors()).example_inputs(), "Imitation has no network to imitate"),
    (
        lambda g: lm.finetune(g.rewritten, lm.tasks.Imitation(tensors()), lm.Recipe(steps=1)),
        "has no network to imitate",
    ),
    (lambda _: lm.tasks.NoiseSchedule("linear"), "a noise schedule is a tensor of numbers, not a str"),
    (lambda _: lm.tasks.NoiseSchedule.from_betas(steps=1), "a noise schedule needs two time steps or more"),
    (lambda _: lm.tasks.NoiseSchedule.from_betas(betas="cosine"), "betas is 'cosine'; give 'linear' or 'scaled"),
    (lambda _: lm.tasks.NoiseSchedule.from_betas(first=-1.0), "first is -1.0; give a number above 0 and below 1"),
    (lambda _: lm.tasks.NoiseSchedule.read("nowhere"), "scheduler 'nowhere' cannot be read"),
    (lambda _: lm.tasks.Preparation(augmentation="flip"), "unexpected keyword argument 'augmentation'"),
    (lambda _: lm.tasks.Preparation(normalise="imagenet"), "normalise is 'imagenet'; give a Statistics or None"),
    (lambda _: lm.tasks.Preparation(size="224"), "size is '224'; give a whole number"),
    (lambda _: lm.tasks.Preparation.for_data_set("mnist"), "preparation does not know the data set 'mnist'"),
    (lambda _: lm.tasks.Preparation.for_timm("resnet18"), "model is 'resnet18'; give a torch.nn.Module"),
    (lambda _: lm.tasks.Draw(seed=0, batch_size=0), "batch_size >= 1; got"),
    (lambda _: lm.tasks.Draw(seed=0, batch_size=2, share=(1, 1)), "a draw's share is"),
    (lambda _: lm.tasks.Draw(seed="0", batch_size=2), "seed is '0'; give a whole number"),
    (lambda _: lm.tasks.Score("accuracy", "high", 3), "value is 'high'; give a number"),
    (lambda _: lm.tasks.load_images("cifar100:here"), "does not name a source of images; give"),
    (lambda _: lm.tasks.load_images(Path("here")), "spec is 'here'; give a text"),
]

FILES: list[tuple[Call, str]] = [
    (lambda _: lm.from_onnx("none.onnx"), "'none.onnx' does not exist; give the path of an .onnx file"),
    (lambda _: lm.from_onnx(None), "file is None; give a path"),
    (lambda _: lm.from_onnx("none.onnx", 3), "input_shape is 3; give a list of"),
    (lambda _: lm.from_onnx("none.onnx", (3, 0, 8)), r"input_shape\[1\] is 0; give a whole number of at least 1"),
    (lambda _: lm.from_onnx("."), "'.' is a folder; give the path of an .onnx file"),
    (lambda g: lm.save("run", g.model), "save takes what rewrite or merge returns, not Sequential"),
    (lambda _: lm.save("run", None), "module is None; give a torch.nn.Module"),
    (lambda g: lm.save(g.merged, "run"), "run_dir is a .*; give a path, as text or as a Path"),
    (lambda g: lm.save(None, g.merged), "run_dir is None; give a path"),
    (lambda g: lm.load("run", g.model), "does not exist; is 'run' a run directory"),
    (lambda g: lm.load(3, g.model), "run_dir is 3; give a path"),
    (lambda _: lm.load("run", "resnet18"), "model is 'resnet18'; give a torch.nn.Module"),
    (lambda _: lm.load("run"), "'run' does not exist; give the directory of a saved network, or a .pt2 or .onnx file"),
    (lambda _: lm.load(), "missing a required argument: 'run_dir'"),
    (lambda g: lm.export(g.trace, "net.onnx", g.inputs), "module is a Trace; give a torch.nn.Module"),
    (lambda g: lm.export(g.merged, 3, g.inputs), "path is 3; give a path"),
    (lambda g: lm.export(g.merged, "net.tflite", g.inputs), "cannot export to 'net.tflite'"),
    (lambda g: lm.export(g.merged, "net.onnx", None), "does not run on these example inputs"),
    (lambda g: lm.export(g.merged, "net.onnx", torch.zeros(2, 4, SIDE, SIDE)), "does not run on these example inputs"),
    (lambda g: lm.export(g.merged, "net.onnx"), "missing a required argument: 'example_inputs'"),
]

RUNS: list[tuple[Call, str]] = [
    (lambda g: lm.compress(g.model), "compress takes either a task or images; give one of them"),
    (lambda g: lm.compress(g.model, g.task, images="photos"), "compress takes either a task or images"),
    (lambda g: lm.compress(g.model, images="photos"), "'photos' does not exist; give a folder of images"),
    (lambda g: lm.compress(g.model, images=3), "images are a int; give a folder, a tensor"),
    (lambda g: lm.compress(g.model, images=torch.zeros(30, 3, SIDE)), "give uint8 N x H x W x C"),
    (
        lambda g: lm.compress(g.model, images=torch.zeros(30, 2, SIDE, SIDE)),
        "Sequential cannot take images of 2 x 6 x 6",
    ),
    (lambda g: lm.compress(g.model, "x"), "task is 'x'; give a task, such as"),
    (lambda g: lm.compress("timm:resnet18", g.task), "model is 'timm:resnet18'; give a torch.nn.Module"),
    (lambda g: lm.compress(g.model, g.task, budget=60), "cannot read the budget '60'; write a share"),
    (lambda g: lm.compress(g.model, g.task, budget=None), "cannot read the budget 'None'; write a share"),
    (lambda g: lm.compress(g.model, g.task, budget="fast"), "cannot read the budget 'fast'; write a share"),
    (lambda g: lm.compress(g.model, g.task, budgets=0.6), "unexpected keyword argument 'budgets'; it takes model"),
    (lambda g: lm.compress(g.model, g.task, runtime="tflite"), "unknown runtime 'tflite'"),
    (lambda g: lm.compress(g.model, g.task, runtime=3), "runtime is 3; give a text or None"),
    (lambda g: lm.compress(g.model, g.task, run_dir=None), "run_dir is None; give a path"),
    (lambda g: lm.compress(g.model, g.task, settings={"threads": 2}), "settings is a dict; give settings, such as"),
    (lambda g: lm.compress(g.model, g.task, settings=lm.Settings(method="widths")), "unknown method 'widths'"),
    (lambda g: lm.compress(g.model, g.task, settings=_pinned("x")), "pin 'x' matches no layer"),
    (lambda g: lm.compress(g.model, Nothing(images(), images())), "Nothing has no training batch"),
    (lambda g: lm.compare(g.model, g.task, methods=["depth"], run_dir="run"), "missing a required argument: 'budgets'"),
    (lambda g: _compare(g, methods="depth"), "methods is 'depth'; give a list of a text"),
    (lambda g: _compare(g, methods=[]), "a comparison needs at least one method and one budget"),
    (lambda g: _compare(g, methods=iter(())), "a comparison needs at least one method and one budget"),
    (lambda g: _compare(g, methods=["depth", 3]), r"methods\[1\] is 3; give a text"),
    (lambda g: _compare(g, methods=["widths"]), "unknown method 'widths'"),
    (lambda g: _compare(g, budgets="60%"), "budgets is '60%'; give a list"),
    (lambda g: _compare(g, budgets=0.6), "budgets is 0.6; give a list"),
    (lambda g: _compare(g, budgets=iter(())), "a comparison needs at least one method and one budget"),
    (lambda g: _compare(g, budgets=[0.6, 60]), "cannot read the budget '60'; write a share"),
    (lambda g: _compare(g, settings=_pinned("x")), "pin 'x' matches no layer"),
]


def _pinned(name: str) -> Any:
    return lm.Settings(rules=lm.Rules(pin=(name,)), runtime="torch")


def _compare(given: Given, methods: Any = ("depth",), budgets: Any = ("60%",), **others: Any) -> object:
    return lm.compare(given.model, given.task, methods=methods, budgets=budgets, run_dir="run", **others)


CALLS = {
    f"{group}-{number}": case
    for group, cases in {
        "tracing": TRACING,
        "surgery": SURGERY,
        "measuring": MEASURING,
        "solving": SOLVING,
        "training": TRAINING,
        "tasks": TASKS,
        "files": FILES,
        "runs": RUNS,
    }.items()
    for number, case in enumerate(cases)
}
