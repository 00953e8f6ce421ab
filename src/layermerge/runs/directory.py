"""A run directory: one file for each stage's result, so that every verb can go on where another stopped, or elsewhere.

`plan.json` and `original.onnx` are all that a device needs to measure its latency table; the table file comes back.
"""

from __future__ import annotations

import json
from pathlib import Path

from torch import nn

from layermerge.files import read_document, document_text, text_writer, write_files
from layermerge.runs.plan_file import PlanFile
from layermerge.errors import ArtifactError
from layermerge.runtimes.writing import for_serving, write_onnx
from layermerge.planning.plan import Plan
from layermerge.runtimes.base import Pass, Runtime
from layermerge.errors import RuntimeUnavailable
from layermerge.solving.frontier import Frontier
from layermerge.solving.solve import Objective, solve
from layermerge.surgery.merge import merge
from layermerge.surgery.rewrite import rewrite
from layermerge.tables.latency import LatencyJob, LatencyTable
from layermerge.tables.table import Table
from layermerge.tables.workloads import Workload, workload_of, workload_record, workloads_of
from layermerge.tracing.capture import Inputs
from layermerge.tracing.trace import Trace

PLAN, ORIGINAL = "plan.json", "original.onnx"
LATENCY, IMPORTANCE, FRONTIER = "latency.jsonl", "importance.jsonl", "frontier.json"


def write_plan(directory: Path, trace: Trace, plan: Plan, *, with_weights: bool = False) -> None:
    """Writes the plan and the untouched network, norms folded; its weights are random numbers unless asked for."""
    workloads = {key: None if workload is None else workload_record(workload) for key, workload in workloads_of(trace, plan).items()}
    record = plan_record(trace.structure, trace.inputs, plan.candidates)
    rejections = tuple(
        RejectionRecord(start=one.start, end=one.end, reason=one.reason)
        for one in plan.rejections
        if not one.topological
    )
    facts = {"method": plan.method, "rules": plan.rules, "workloads": workloads, "rejections": rejections}
    record = record.model_copy(update=facts)
    served = for_serving(merge(rewrite(trace, [])))
    if not with_weights:
        _forget_weights(served)
    write_files(
        {
            directory / PLAN: text_writer(document_text(record)),
            directory / ORIGINAL: lambda path: write_onnx(served, path, trace.inputs),
        }
    )


def _forget_weights(module: nn.Module) -> None:
    """Random weights that keep activations in range: numbers that vanish or overflow are slow, and would spoil the clock."""
    for parameter in module.parameters():
        if parameter.dim() > 1:
            nn.init.kaiming_normal_(parameter)
        else:
            nn.init.normal_(parameter, std=0.1)


def read_plan(directory: Path) -> tuple[PlanFile, Plan]:
    record = read_document(directory / PLAN, PlanFile)
    return record, plan_of(record)


def measure_run(directory: Path, runtime: Runtime, batch: int, name: str = LATENCY) -> LatencyTable:
    """Measures the latency table of a run from its files alone: neither the model's code nor its weights are needed."""
    record, plan = read_plan(directory)
    if not record.workloads:
        raise ArtifactError(
            f"'{directory / PLAN}' lists no workloads; write it with: layermerge plan MODEL --run-dir {directory}"
        )
    if not runtime.reads_onnx:
        raise RuntimeUnavailable(
            f"runtime '{runtime.name}' does not read ONNX files; measure it from Python, where the model is"
        )
    original = directory / ORIGINAL
    if not original.is_file():
        raise ArtifactError(f"'{original}' does not exist; copy it along with '{PLAN}'")

    def whole() -> Pass:
        return runtime.prepare_file(original, Inputs.of(example_inputs(record)).resized(batch))

    return LatencyJob(plan, _workloads(record, plan, directory), record.fingerprint, whole).run(
        runtime, batch, directory / name
    )


def _workloads(record: PlanFile, plan: Plan, directory: Path) -> dict[str, Workload | None]:
    missing = [candidate.key for candidate in plan.candidates if candidate.key not in record.workloads]
    if missing:
        raise ArtifactError(f"'{directory / PLAN}' does not list the workload of candidate '{missing[0]}'; write it again")
    return {key: None if workload is None else workload_of(workload) for key, workload in record.workloads.items()}


def solve_run(directory: Path, objective: Objective, tick_ms: float | None) -> Frontier:
    """Solves a run from its tables, and writes the frontier beside them."""
    latency = read_latency(directory)
    importance = Table.read(directory / IMPORTANCE)
    if importance.provenance.get("network", latency.table.provenance["network"]) != latency.table.provenance["network"]:
        raise ArtifactError(f"'{directory / IMPORTANCE}' was measured for another network than '{directory / LATENCY}'")
    frontier = solve(latency.plan, latency, importance, objective=objective, tick_ms=tick_ms)
    write_files({directory / FRONTIER: text_writer(json.dumps(frontier.to_document()) + "\n")})
    return frontier


def read_latency(directory: Path, name: str = LATENCY) -> LatencyTable:
    record, plan = read_plan(directory)
    workloads = _workloads(record, plan, directory)
    table = Table.read(directory / name)
    if table.provenance.get("network") != record.fingerprint:
        raise ArtifactError(f"'{directory / name}' was measured for another network than '{directory / PLAN}'")
    return LatencyTable(plan, workloads, table)
