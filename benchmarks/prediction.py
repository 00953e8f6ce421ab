"""How well does a fresh latency table predict? Networks x runtimes x budgets; resumable, one line of JSON for each case.

Run: python benchmarks/prediction.py [--networks NAME ...] [--runtimes NAME ...] [--budgets 80% 60% 45%] [--dir DIR]
     python benchmarks/prediction.py --table [--dir DIR]      writes the cases that are there as a table for the README
Tables and cases stay in DIR, so that a second run goes on where the first stopped (a table that it had not finished is begun
anew, since its seconds count); remove DIR to begin afresh. Weights are random, and the importance is a stand-in that lives here
only (from a fixed seed and the layers' sizes): what is shown is latency.

"First prediction" is the sum of rows before any merged network was built. Two baselines that users know predict the same
choices from the same original: FLOPs in proportion, and operators timed alone (each conv in the runtime by itself, hot, as
nn-Meter's and OFA's tables are made), scaled so that the original's operators sum to the original.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from torch import nn

import layermerge as lm
from layermerge.errors import InfeasibleBudget
from layermerge.models import load_model
from layermerge.runtimes.base import Runtime, RuntimeSettings
from layermerge.runtimes.clock import ClockSettings
from layermerge.runtimes.registry import make_runtime
from layermerge.solving.budget import budget_ms
from layermerge.tables.latency import LatencyTable
from layermerge.tables.table import Table
from layermerge.tables.workloads import Workload
from layermerge.tracing.inputs import Inputs

DDPM = "ddpm"
NETWORKS = ["timm:mobilenetv2_100", "timm:mobilenetv2_140", "timm:efficientnet_lite0", "timm:resnet34", DDPM]
RUNTIMES = ["onnxruntime", "openvino", "torch"]
BUDGETS = ["80%", "60%", "45%"]
AFTERWARDS = ClockSettings(least_rounds=12, most_rounds=60, seconds=2.0, spread=0.003)
ALONE = ClockSettings(warm_up=2, least_rounds=8, most_rounds=40, seconds=0.1)
WINDOWS = 5
KEPT, USED = 1.02, 0.95


def load(name: str) -> tuple[torch.nn.Module, object]:
    if name != DDPM:
        loaded = load_model(name, input_shape=(3, 224, 224))
        return loaded.module.eval(), loaded.example_inputs
    load_model("timm:resnet18")  # imports what diffusers needs
    from diffusers import UNet2DModel

    unet = UNet2DModel(
        sample_size=32,
        in_channels=3,
        out_channels=3,
        layers_per_block=2,
        block_out_channels=(128, 256, 256, 256),
        down_block_types=("DownBlock2D", "AttnDownBlock2D", "DownBlock2D", "DownBlock2D"),
        up_block_types=("UpBlock2D", "UpBlock2D", "AttnUpBlock2D", "UpBlock2D"),
        downsample_padding=0,
        flip_sin_to_cos=False,
        freq_shift=1,
        norm_eps=1e-6,
    )
    return unet.eval(), (torch.randn(2, 3, 32, 32), torch.tensor([10, 500]))


def stand_in_scores(trace: lm.Trace, menu: lm.Plan) -> dict[str, float]:
    """Layers matter by chance and by their weights; a change loses what it removes, and a little for each merge."""
    chance = np.random.default_rng(0).uniform(0.5, 1.5, len(trace.layers))
    weights = np.sqrt([float(layer.spec.weights) for layer in trace.layers])
    matters = dict(zip((layer.name for layer in trace.layers), chance * weights / weights.sum(), strict=True))
    found = {}
    for candidate in menu.candidates:
        lost = sum(matters[name] for name in candidate.layers if name not in candidate.kept)
        merged = sum(matters[name] for name in candidate.layers if len(candidate.layers) > 1)
        found[candidate.key] = float(-2.0 * lost - 0.3 * merged)
    return found


@dataclass(frozen=True)
class Case:
    """One network on one runtime: what its budgets share."""

    name: str
    trace: lm.Trace
    plan: lm.Plan
    scores: dict[str, float]
    runtime: Runtime
    table: LatencyTable
    seconds: float
    """What measuring the table took by the clock on the wall."""
    alone: Path
    """Rows of the baseline, as far as they were needed."""

    def merged(self, candidates: Sequence[lm.Candidate]) -> nn.Module:
        return lm.merge(lm.rewrite(self.trace, candidates))

    def run(self, budget: str) -> dict[str, Any]:
        found: dict[str, Any] = {"network": self.name, "runtime": self.runtime.name, "budget": budget}
        found |= {"workloads": self.table.distinct_workloads, "bounded": self.table.bounded}
        found |= {"seconds": self.seconds, "original_ms": self.table.original_ms}
        try:
            met = lm.meet_budget(self.trace, self.plan, self.table, self.scores, budget=budget, runtime=self.runtime)
        except InfeasibleBudget as error:
            return found | {"smallest": error.smallest_ms / self.table.original_ms}
        first = met.rounds[0]
        fresh = lm.solve(self.plan, self.table, self.scores)
        allowed = budget_ms(budget, self.table.original_ms)
        used = [point.latency_ms for point in fresh.points if point.latency_ms <= allowed]
        found |= {"off": first.predicted_ms / first.measured_ms - 1, "error": first.error_ms / first.predicted_ms}
        found |= {
            "rounds": len(met.rounds),
            "chosen": (met.measured_ms or 0.0) / allowed,
            "reachable": max(used, default=0.0) / allowed,
        }
        found["again"] = self._again(met.candidates) * self.table.original_ms / allowed
        found["importance"] = self._importance(met)
        final = (met.measured_ms or 0.0) / self.table.original_ms
        found["flops_off"] = self._share(met.candidates, lambda one: float(one.work)) / final - 1
        alone = self._alone([*met.candidates, *(each for each in self.plan.candidates if each.untouched)])
        found["alone_off"] = self._share(met.candidates, lambda one: alone.get(one.key, 0.0)) / final - 1
        return found

    def _importance(self, met: lm.Solution) -> dict[str, float]:
        """What was chosen, and the most that could have been by all that is known afterwards; the untouched network's too.

        A frontier by corrected rows, at the latency that the choice was measured at: what wrong rows have cost.
        """
        learned = replace(self.table, table=Table.read(self.path))
        frontier = lm.solve(self.plan, learned, self.scores)
        best = frontier.within(max(met.measured_ms or 0.0, frontier.smallest_ms)).importance
        return {"chosen": met.importance, "best": best, "untouched": float(len(self.plan.layers))}

    @property
    def path(self) -> Path:
        assert self.table.table.path is not None
        return self.table.table.path

    def _alone(self, candidates: Sequence[lm.Candidate]) -> dict[str, float]:
        """The baseline's rows of these candidates."""
        known: dict[str, float] = json.loads(self.alone.read_text()) if self.alone.is_file() else {}
        distinct = {one.key: one for each in candidates if (one := self.table.workloads[each.key])}
        known |= timed_alone(self.runtime, [one for key, one in distinct.items() if key not in known])
        self.alone.write_text(json.dumps(known))
        return known

    def _again(self, candidates: Sequence[lm.Candidate]) -> float:
        """The median of five windows beside the original; each has copies of its own, since where they lie in memory counts."""
        inputs = self.trace.inputs.resized(1)
        originals = self.runtime.copies_of(self.merged([]), inputs, passes=WINDOWS).passes
        merged = self.runtime.copies_of(self.merged(candidates), inputs, passes=WINDOWS).passes
        shares = []
        for number, (first, second) in enumerate(zip(originals, merged, strict=True)):
            with self.runtime.elsewhere(100 + number):
                window = self.runtime.time({"original": first, "merged": second}, AFTERWARDS)
            shares.append(window["merged"].value_ms / window["original"].value_ms)
        return median(shares)

    def _share(self, candidates: Sequence[lm.Candidate], price: Any) -> float:
        def total(chosen: Sequence[lm.Candidate]) -> float:
            return float(sum(price(one) for each in chosen if (one := self.table.workloads[each.key])))

        return total(candidates) / total([each for each in self.plan.candidates if each.untouched])


def measured_table(plan: lm.Plan, trace: lm.Trace, runtime: Runtime, path: Path) -> tuple[LatencyTable, float]:
    """The table, and its seconds by the clock on the wall: of one go, so that one that was interrupted is begun anew."""
    spent = path.with_suffix(".seconds")
    if not spent.is_file():
        path.unlink(missing_ok=True)
    began = time.perf_counter()
    table = lm.measure_latency(plan, trace=trace, runtime=runtime, path=path)
    if not spent.is_file():
        spent.write_text(f"{time.perf_counter() - began:.1f}")
    return table, float(spent.read_text())


def timed_alone(runtime: Runtime, workloads: Sequence[Workload]) -> dict[str, float]:
    """Each conv by itself, hot."""
    found = {}
    for workload in workloads:
        if workload.spec is None:
            continue
        spec = workload.spec
        top, _, left, _ = spec.padding
        conv = nn.Conv2d(
            spec.in_channels, spec.out_channels, spec.kernel, spec.stride, (top, left), spec.dilation, spec.groups
        )
        run = runtime.prepare(conv, Inputs((torch.randn(1, *workload.input_shape),), {}), small=True)
        found[workload.key] = runtime.time({"conv": run}, ALONE)["conv"].value_ms
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--networks", nargs="+", default=NETWORKS)
    parser.add_argument("--runtimes", nargs="+", default=RUNTIMES)
    parser.add_argument("--budgets", nargs="+", default=BUDGETS)
    parser.add_argument("--dir", type=Path, default=Path("runs/prediction"))
    parser.add_argument("--table", action="store_true")
    options = parser.parse_args()
    cases = options.dir / "cases.jsonl"
    if options.table:
        measured = [json.loads(line) for line in cases.read_text().splitlines()]
        print(markdown(measured), summary(measured), sep="\n\n")
        return
    options.dir.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    known = [json.loads(line) for line in cases.read_text().splitlines()] if cases.is_file() else []
    done = {(case["network"], case["runtime"], case["budget"]) for case in known}
    for name in options.networks:
        missing = {
            runtime: [budget for budget in options.budgets if (name, runtime, budget) not in done]
            for runtime in options.runtimes
        }
        if not any(missing.values()):
            continue
        torch.manual_seed(0)
        trace = lm.trace(*load(name))
        plan = lm.plan(trace)
        for runtime, budgets in missing.items():
            if not budgets:
                continue
            chosen, path = (
                make_runtime(runtime, RuntimeSettings()),
                options.dir / f"{name.replace(':', '_')}-{runtime}.jsonl",
            )
            table, seconds = measured_table(plan, trace, chosen, path)
            print(f"{name} {runtime}: {table}; {seconds:.0f} s", flush=True)
            alone = path.with_suffix(".alone.json")
            case = Case(name, trace, plan, stand_in_scores(trace, plan), chosen, table.fresh, seconds, alone)
            for budget in budgets:
                found = case.run(budget)
                with cases.open("a") as file:
                    file.write(json.dumps(found) + "\n")
                print(markdown([found]).splitlines()[-1], flush=True)


def markdown(cases: Sequence[dict[str, Any]]) -> str:
    lines = [
        "| network | runtime | workloads (bounded) | table | budget | first prediction off by | rounds | measured again "
        "| importance lost | FLOPs off by | operators alone off by |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for case in cases:
        head = (
            f"| {case['network']} | {case['runtime']} | {case['workloads']} ({case['bounded']}) | {case['seconds']:.0f} s "
            f"| {case['budget']} |"
        )
        if "smallest" in case:
            lines.append(f"{head} infeasible: smallest {case['smallest']:.0%} | | | | | |")
            continue
        missed = "" if case["again"] <= KEPT else ", MISSED"
        score = case["importance"]
        lost = max(0.0, score["best"] - score["chosen"]) / score["untouched"]
        lines.append(
            f"{head} {case['off']:+.1%} ± {case['error']:.1%} | {case['rounds']} | {case['again']:.1%} of it{missed} "
            f"| {lost:.1%} | {case['flops_off']:+.0%} | {case['alone_off']:+.0%} |"
        )
    return "\n".join(lines)


def summary(cases: Sequence[dict[str, Any]]) -> str:
    """What is asked of the table as a whole."""
    met = [case for case in cases if "smallest" not in case]
    roomy = [case for case in met if case["reachable"] >= USED]
    unused = sum(case["again"] < USED for case in roomy)
    inside = sum(abs(case["off"]) <= case["error"] for case in met)
    rounds = [case["rounds"] for case in met]

    def off(kind: str) -> str:
        values = [abs(case[kind]) for case in met]
        return f"median {median(values):.1%} off, at most {max(values):.1%}"

    return (
        f"{len(cases)} cases, {len(cases) - len(met)} of them infeasible. First predictions: {off('off')}, {inside} of "
        f"{len(met)} within their interval. FLOPs: {off('flops_off')}; operators alone: {off('alone_off')}. Rounds: median "
        f"{median(rounds):.0f}, at most {max(rounds)}. Budget kept when measured again: "
        f"{sum(case['again'] <= KEPT for case in met)} of {len(met)}; less than {USED:.0%} of it used: {unused} of the "
        f"{len(roomy)} whose frontier has a point there."
    )


if __name__ == "__main__":
    main()
