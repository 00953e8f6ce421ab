"""What cheaper activations and mean gates save, all of them at once, with every conv left as it is.

Pass: python benchmarks/replacing.py [MODEL ...] [--size 128] [--runtime onnxruntime]
Each network is merged untouched, with every squeeze-excite gate replaced by its mean, with every SiLU, GELU and Hardswish
behind a conv replaced by ReLU, and with both; these are timed side by side in one run, on one thread and one image. Weights
are random: latency does not depend on them. What replacing costs in accuracy is not looked at here.
"""

from __future__ import annotations

import argparse

import torch

import layermerge as lm
from layermerge.models import load_model
from layermerge.runtimes.base import RuntimeSettings
from layermerge.runtimes.clock import ClockSettings, Sample, time_side_by_side
from layermerge.runtimes.registry import make_runtime

CLOCK = ClockSettings(least_rounds=40, most_rounds=300, seconds=60.0, spread=0.01)
MODELS = ("timm:mobilenetv3_small_100", "timm:efficientnet_b0")


def choices(menu: lm.Plan) -> dict[str, list[lm.Candidate]]:
    gates = [one for one in menu.candidates if one.replaced == "gate"]
    inside = {index for gate in gates for index in range(gate.start, gate.end)}
    # What stands inside a gate goes with it.
    activations = [one for one in menu.candidates if one.replaced == "activation" and one.keeps_layer]
    outside = [one for one in activations if one.start not in inside]
    return {"untouched": [], "gates": gates, "activations": outside, "both": gates + outside}


def measure(name: str, size: int, runtime_name: str) -> tuple[dict[str, int], dict[str, Sample]]:
    """How much is replaced, and how long a pass takes."""
    trace = lm.trace(load_model(name).module.eval(), torch.randn(2, 3, size, size))
    chosen = choices(lm.plan(trace, lm.Rules(replace=("activations", "gates"))))
    runtime, inputs = make_runtime(runtime_name, RuntimeSettings(threads=1)), trace.inputs.resized(1)
    runs = {form: runtime.prepare(lm.merge(lm.rewrite(trace, given)), inputs) for form, given in chosen.items()}
    return {form: len(given) for form, given in chosen.items()}, time_side_by_side(runs, CLOCK)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", default=MODELS)
    parser.add_argument("--size", type=int, default=128)
    parser.add_argument("--runtime", default="onnxruntime")
    given = parser.parse_args()
    print("| network | untouched | gates | activations | both |\n|---|---|---|---|---|")
    for name in given.models:
        counts, samples = measure(name, given.size, given.runtime)
        whole = samples["untouched"].value_ms
        cells = [
            f"{samples[form].value_ms:.2f} ms ({count} replaced, {samples[form].value_ms / whole:.0%})"
            for form, count in counts.items()
            if form != "untouched"
        ]
        print(f"| {name}, {given.size}x{given.size} | {whole:.2f} ms | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
