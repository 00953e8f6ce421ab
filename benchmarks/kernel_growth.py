"""Why merging alone does not pay, and removing before merging does (figure 1 of the paper), measured on runtimes.

Pass: python benchmarks/kernel_growth.py [--channels 64] [--size 28] [--deepest 8] [--runtimes NAME ...] [--dir DIR]
A stack of k convs 3x3 with ReLU in between is (a) left as it is, (b) merged into one conv, whose kernel grows to 2k+1, (c)
merged after all but two or all but one of its convs are removed, whose kernel stays 5x5 or 3x3. All are made by layermerge
itself and timed side by side in one run, on one thread and one image. Weights are random: latency does not depend on them.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import nn

import layermerge as lm
from layermerge.reporting.plots import picture, styles
from layermerge.runtimes.base import Pass, RuntimeSettings
from layermerge.runtimes.clock import ClockSettings, Sample, time_side_by_side
from layermerge.runtimes.registry import make_runtime

CLOCK = ClockSettings(least_rounds=20, most_rounds=150, seconds=90.0, spread=0.01)
# How many convs of the stack stay: all, unmerged; all; two; one.
FORMS = {"unmerged": None, "merged into one": 0, "two kept, merged": 2, "one kept": 1}
Times = Mapping[tuple[str, str, int], Sample]
"""By runtime, form and number of convs."""


def stack(channels: int, convs: int) -> nn.Module:
    parts: list[nn.Module] = []
    for _ in range(convs):
        parts += [nn.Conv2d(channels, channels, 3, padding=1), nn.ReLU()]
    return nn.Sequential(*parts[:-1])


def build(trace: lm.Trace, menu: lm.Plan, kept: int | None) -> nn.Module:
    """The stack in one of its forms; `kept` convs of it merge into one, all of them where it is 0."""
    convs = len(trace.layers)
    if kept is None or convs == 1:
        return lm.merge(lm.rewrite(trace, []))
    side = 2 * (kept or convs) + 1
    return lm.merge(lm.rewrite(trace, [menu[f"0-{convs}:{side}x{side}g1"]]))


def measure(channels: int, size: int, deepest: int, runtimes: Sequence[str]) -> Times:
    ready = {name: make_runtime(name, RuntimeSettings(threads=1)) for name in runtimes}
    runs: dict[tuple[str, str, int], Pass] = {}
    for convs in range(1, deepest + 1):
        trace = lm.trace(stack(channels, convs), torch.randn(2, channels, size, size))
        menu, inputs = lm.plan(trace), trace.inputs.resized(1)
        for form, kept in FORMS.items():
            if kept is None or kept <= convs:
                module = build(trace, menu, kept)
                for name, runtime in ready.items():
                    runs[name, form, convs] = runtime.prepare(module, inputs, small=True)
    names = {repr(key): key for key in runs}
    samples = time_side_by_side({name: runs[key] for name, key in names.items()}, CLOCK)
    return {names[name]: sample for name, sample in samples.items()}


def table(times: Times, runtimes: Sequence[str], deepest: int) -> str:
    heads = [f"{runtime}: {form}" for runtime in runtimes for form in FORMS]
    lines = [f"| convs | merged kernel | {' | '.join(heads)} |", f"|---|---|{'---|' * len(heads)}"]
    for convs in range(1, deepest + 1):
        found = [times.get((runtime, form, convs)) for runtime in runtimes for form in FORMS]
        cells = [f"{sample.value_ms:.2f}" if sample else "-" for sample in found]
        lines.append(f"| {convs} | {2 * convs + 1}x{2 * convs + 1} | {' | '.join(cells)} |")
    return "\n".join(lines)


def draw(times: Times, runtimes: Sequence[str], path: Path) -> None:
    with picture(path, width=3.6 * len(runtimes), height=4.0, panels=len(runtimes)) as panels:
        for axes, runtime in zip(panels if len(runtimes) > 1 else [panels], runtimes, strict=True):
            for form, (colour, marker, _) in zip(FORMS, styles(), strict=False):
                depths = sorted(convs for name, of, convs in times if (name, of) == (runtime, form))
                values = [times[runtime, form, convs].value_ms for convs in depths]
                axes.plot(depths, values, color=colour, marker=marker, markersize=5, label=form)
            axes.set_title(runtime, fontsize=10)
            axes.set_yscale("log")
            axes.set_yticks([0.5, 1, 2, 5, 10, 20, 50], ["0.5", "1", "2", "5", "10", "20", "50"])
            axes.minorticks_off()
            axes.set_xlabel("3x3 convs in the stack")
            axes.set_ylabel("latency (ms, log scale)")
        axes.get_figure().legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=len(FORMS))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--channels", type=int, default=64)
    parser.add_argument("--size", type=int, default=28)
    parser.add_argument("--deepest", type=int, default=8)
    parser.add_argument("--runtimes", nargs="+", default=["torch", "onnxruntime", "openvino"])
    parser.add_argument("--dir", type=Path, default=Path(__file__).parent / "pictures")
    options = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    times = measure(options.channels, options.size, options.deepest, options.runtimes)
    print(table(times, options.runtimes, options.deepest))
    spread = statistics.median(sample.spread for sample in times.values())
    rounds = next(iter(times.values())).rounds
    print(
        f"\n{options.channels} channels, {options.size}x{options.size}, ms; {rounds} rounds, halves differ by {spread:.1%}"
    )
    for suffix in (".png", ".svg"):
        draw(times, options.runtimes, options.dir / f"kernel_growth{suffix}")


if __name__ == "__main__":
    main()
