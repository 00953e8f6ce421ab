"""Is the budget kept on the exported network? Closed loop on real networks, then measured again beside the original.

Run: python benchmarks/closed_loop.py [--networks NAME ...] [--runtimes NAME ...] [--budgets 80% 60% 40%] [--dir DIR]
Tables stay in DIR, so that a second run goes on where the first stopped. The importance is a stand-in that lives here only
(L1 norm lost, and a little for each range): what is shown is latency, not accuracy. Weights are random.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch

import layermerge as lm
from layermerge.errors import InfeasibleBudget
from layermerge.models import load_model
from layermerge.runtimes.base import RuntimeSettings
from layermerge.runtimes.clock import ClockSettings, time_side_by_side
from layermerge.runtimes.registry import make_runtime

DDPM = "ddpm"
AFTERWARDS = ClockSettings(least_rounds=30, most_rounds=120, seconds=12.0, spread=0.003)


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
    total = sum(layer.l1 for layer in trace.layers)
    scores = {}
    for candidate in menu.candidates:
        layers = trace.layers[candidate.start : candidate.end]
        lost = sum(layer.l1 for layer in layers if layer.name not in candidate.kept) / total
        scores[candidate.key] = -3.0 * lost - 0.01 * (len(layers) - 1)
    return scores


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--networks", nargs="+", default=["timm:mobilenetv2_100", "timm:resnet34", DDPM])
    parser.add_argument("--runtimes", nargs="+", default=["onnxruntime", "torch"])
    parser.add_argument("--budgets", nargs="+", default=["80%", "60%", "40%"])
    parser.add_argument("--dir", type=Path, default=Path("runs/closed_loop"))
    options = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    print(
        "| network | runtime | entries / works | budget | first prediction off by | rounds | corrected | afterwards | kept |"
    )
    print("|---|---|---|---|---|---|---|---|---|", flush=True)
    for name in options.networks:
        model, inputs = load(name)
        trace = lm.trace(model, inputs)
        menu = lm.plan(trace)
        scores = stand_in_scores(trace, menu)
        for runtime in options.runtimes:
            path = options.dir / f"{name.replace(':', '_')}-{runtime}.jsonl"
            table = lm.measure_latency(menu, trace=trace, runtime=runtime, path=path)
            for budget in options.budgets:
                print(row(name, runtime, budget, trace, menu, table, scores), flush=True)


def row(
    name: str, runtime: str, budget: str, trace: lm.Trace, menu: lm.Plan, table: object, scores: dict[str, float]
) -> str:
    from layermerge.tables.latency import LatencyTable

    assert isinstance(table, LatencyTable)
    entries = f"{sum(work is not None for work in table.workloads.values())} / {table.distinct_workloads}"
    head = f"| {name} | {runtime} | {entries} | {budget} |"
    try:
        met = lm.meet_budget(trace, menu, table, scores, budget=budget, runtime=runtime)
    except InfeasibleBudget as error:
        return f"{head} - | - | - | smallest {error.smallest_ms / table.original_ms:.0%} | infeasible |"
    chosen = make_runtime(runtime, RuntimeSettings(threads=1))
    inputs = trace.inputs.resized(1)
    runs = {
        "original": chosen.prepare(lm.merge(lm.rewrite(trace, [])), inputs),
        "merged": chosen.prepare(lm.merge(lm.rewrite(trace, met.candidates)), inputs),
    }
    samples = time_side_by_side(runs, AFTERWARDS)
    share = samples["merged"].value_ms / samples["original"].value_ms
    allowed = (met.budget_ms or 0.0) / table.original_ms
    first = met.rounds[0]
    return (
        f"{head} {first.predicted_ms / first.measured_ms - 1:+.0%} | {len(met.rounds)} "
        f"| {(met.measured_ms or 0) / table.original_ms:.1%} | {share:.1%} | {'yes' if share <= allowed * 1.02 else 'NO'} |"
    )


if __name__ == "__main__":
    main()
