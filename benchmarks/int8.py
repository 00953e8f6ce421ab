"""INT8 beside float32: accuracy on the whole test set and latency side by side, of the network as it came and as compressed.

`python benchmarks/int8.py WORK RUN ...` takes finished runs (the first budget of each recipe), makes the files, scores each on
onnxruntime and OpenVINO, then times the four files of a network in turn, and prints two tables. What is in WORK is not made
again; `--again` times anew. About two minutes a network.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import onnx

import layermerge as lm
from layermerge.quantization.sources import read_source
from layermerge.runs.context import Context
from layermerge.runs.directory import RunDirectory
from layermerge.runs.networks import find_network, merged
from layermerge.runs.opening import open_run
from layermerge.runs.recipe_file import run_recipe
from layermerge.runtimes.clock import ClockSettings
from layermerge.runtimes.instructions import INSTRUCTIONS, instructions_here
from layermerge.runtimes.int8_file import in_integers, observed_ranges
from layermerge.runtimes.registry import make_runtime

RUNTIMES = ("onnxruntime", "openvino")
CLOCK = ClockSettings(least_rounds=200, most_rounds=20000, seconds=20.0, spread=0.003, least_seconds=10.0)
TIMED = ("original float32", "original INT8", "compressed float32", "compressed INT8")
WITHOUT = ("per channel", "per tensor")


class Row:
    """Figures of a network, in a file that is written after each."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.figures: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}

    def keep(self, key: str, value: Any) -> None:
        self.figures[key] = value
        self.path.write_text(json.dumps(self.figures, indent=1), encoding="utf-8")


def make_files(context: Context, fast: Any, folder: Path) -> dict[str, Path]:
    """Files by what they are; weights of seven bits too, as processors without VNNI need them."""
    files = {name: folder / f"{name.replace(' ', '-')}.onnx" for name in (*TIMED, *WITHOUT)}
    files |= {f"{name}, 7 bits": folder / f"{name.replace(' ', '-')}-7.onnx" for name in ("compressed INT8", *WITHOUT)}
    for name, network in (("original", context.untouched()), ("compressed", fast)):
        if not (plain := files[f"{name} float32"]).is_file():
            lm.export(network, plain, context.inputs)
        if not (target := files[f"{name} INT8"]).is_file():
            print(f"  {name}: {lm.quantize(plain, context.task, target)}", flush=True)
    if not (target := files["compressed INT8, 7 bits"]).is_file():
        lm.quantize(files["compressed float32"], context.task, target, instructions="avx2")
    if not all(files[f"{name}{bits}"].is_file() for name in WITHOUT for bits in ("", ", 7 bits")):
        source = read_source(files["compressed float32"], context.task, 512)
        ranges = observed_ranges(source.model, source.examples.fitted)
        for bits, processor in (("", instructions_here()), (", 7 bits", INSTRUCTIONS["avx2"])):
            for name in WITHOUT:
                model = in_integers(source.model, ranges, processor, per_channel=name == "per channel")
                onnx.save(model, str(files[f"{name}{bits}"]))
    return files


def measure(run: Path, work: Path, *, again: bool) -> Row:
    folder = work / run.name
    folder.mkdir(parents=True, exist_ok=True)
    recipe = run_recipe(RunDirectory(run), None, {})
    context = open_run(recipe, run, recipe.method)
    files = make_files(context, merged(find_network(run, recipe).load(context.model)), folder)
    row = Row(folder / "figures.json")
    row.keep("budget", recipe.budgets[0])
    for runtime in map(make_runtime, RUNTIMES):
        for name, file in files.items():
            if (key := f"{runtime.name}: {name}") not in row.figures:
                score = context.task.test(runtime.serve_file(file))
                row.keep(key, score.value * score.scale)
                row.keep("images", score.count)
    for runtime in map(make_runtime, RUNTIMES):
        if again or f"{runtime.name} ms" not in row.figures:
            inputs = context.trace.inputs.resized(context.settings.batch_size)
            taken = runtime.time({name: runtime.prepare_file(files[name], inputs) for name in TIMED}, CLOCK)
            row.keep(f"{runtime.name} ms", {name: taken[name].value_ms for name in TIMED})
            row.keep("batch", context.settings.batch_size)
    return row


def show(rows: dict[str, Row]) -> None:
    print(f"\nprocessor: {instructions_here()}, {instructions_here().scheme}; one thread\n")
    columns = (
        "compressed float32",
        "compressed INT8",
        *WITHOUT,
        "compressed INT8, 7 bits",
        *(f"{one}, 7 bits" for one in WITHOUT),
    )
    titles = (
        "float32",
        "INT8",
        "without remedies, per channel",
        "per tensor",
        "7 bits: INT8",
        "per channel",
        "per tensor",
    )
    _print(
        "network", "images", "runtime", "original float32", "original INT8", *(f"compressed {titles[0]}", *titles[1:])
    )
    for name, row in rows.items():
        for runtime in RUNTIMES:
            figures = [row.figures[f"{runtime}: {one}"] for one in ("original float32", "original INT8", *columns)]
            _print(name, f"{row.figures['images']:,}", runtime, *(f"{figure:.2f}" for figure in figures))
    print()
    _print("network", "images at a time", "runtime", *(f"{name} (ms)" for name in TIMED), "of original float32")
    for name, row in rows.items():
        for runtime in RUNTIMES:
            taken = row.figures[f"{runtime} ms"]
            shares = " / ".join(f"{taken[one] / taken[TIMED[0]]:.0%}" for one in TIMED[1:])
            times = (f"{taken[one]:.3f}" for one in TIMED)
            _print(f"{name} at {row.figures['budget']}", str(row.figures["batch"]), runtime, *times, shares)


def _print(first: str, *cells: str) -> None:
    print(f"| {' | '.join((first, *cells))} |")
    if first == "network":
        print("|" + "---|" * (len(cells) + 1))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("work", type=Path, help="where files and figures are kept")
    parser.add_argument("runs", type=Path, nargs="+", help="finished run directories")
    parser.add_argument("--again", action="store_true", help="time anew")
    given = parser.parse_args()
    rows = {}
    for run in given.runs:
        print(run.name, flush=True)
        rows[run.name] = measure(run, given.work, again=given.again)
    show(rows)


if __name__ == "__main__":
    main()
