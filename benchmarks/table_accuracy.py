"""Does a latency table say what the layers take? Its rows beside onnxruntime's own profile of the whole network.

Run: python benchmarks/table_accuracy.py RUN [RUN ...]
RUN is a run directory with plan.json, original.onnx and latency.jsonl, measured on onnxruntime here. The profile times every
node within the network, which no table can do for merges that are not built yet; so it is an oracle for single layers.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path

import numpy as np
import onnxruntime

from layermerge.runs.directory import RunDirectory
from layermerge.runtimes.onnx_file import as_array
from layermerge.tracing.inputs import Inputs

PASSES = 400


def profile(directory: Path, batch: int, threads: int) -> list[float]:
    """Milliseconds of each conv of the untouched network, in order; a low quantile over many passes."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.enable_profiling = True
    run = RunDirectory(directory)
    record = run.read_plan()
    inputs = [as_array(tensor) for tensor in Inputs.of(record.example_inputs).resized(batch).tensors]
    with tempfile.TemporaryDirectory() as place:
        options.profile_file_prefix = str(Path(place) / "profile")
        session = onnxruntime.InferenceSession(run.original, options, providers=["CPUExecutionProvider"])
        feed = {value.name: array for value, array in zip(session.get_inputs(), inputs, strict=True)}
        for _ in range(PASSES):
            session.run(None, feed)
        events = json.loads(Path(session.end_profiling()).read_text(encoding="utf-8"))
    times: dict[str, list[float]] = {}
    for event in events:
        if event.get("cat") == "Node" and event["name"].endswith("kernel_time") and "Conv" in event["args"]["op_name"]:
            times.setdefault(event["name"], []).append(event["dur"] / 1000)
    return [float(np.quantile(values, 0.2)) for values in times.values()]


def compare(directory: Path) -> str:
    table = RunDirectory(directory).read_latency()
    settings = table.table.provenance
    nodes = profile(directory, int(settings["batch"] or 1), int(settings["threads"] or 1))
    layers = [entry for entry in table.plan.candidates if entry.untouched and not entry.fixed]
    if len(nodes) != len(layers):
        return f"{directory}: {len(layers)} layers in the table, {len(nodes)} convs in the profile; nothing to compare"
    rows = [table.table[work.key].value or 0.0 for entry in layers if (work := table.workloads[entry.key])]
    ratios = np.array(rows) / np.array(nodes)
    low, middle, high = np.quantile(ratios, (0.1, 0.5, 0.9))
    return f"| {directory.name} | {len(layers)} | {sum(nodes):.2f} | {sum(rows):.2f} | {middle:.2f} | {low:.2f} - {high:.2f} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runs", nargs="+", type=Path)
    print(
        "| run | layers | profile, ms | table, ms | row / profile, median | 10 % - 90 % of rows |\n|---|---|---|---|---|---|"
    )
    for directory in parser.parse_args().runs:
        print(compare(directory), flush=True)


if __name__ == "__main__":
    main()
