"""Stages: one network, one task, one directory, from the plan to the exported file.

Every stage leaves its result in the directory and is skipped when that is up to date, so whatever was interrupted goes on
where it stopped. Tables belong to the directory, choices to a method and budget, fine-tuned networks to a label:

    RUN/plan.json, original.onnx, original.json, latency.jsonl, importance.jsonl
    RUN/METHOD/BUDGET/choice.json
    RUN/METHOD/BUDGET/LABEL/checkpoint.safetensors, recovery.jsonl, solution.json, model.safetensors, model.onnx, result.json
"""

from __future__ import annotations

import copy
import hashlib
import json
import os
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from torch import nn

from layermerge.files import Record, read_document, document_text, text_writer, weights_digest, write_files
from layermerge.tracing.fingerprint import fingerprint
from layermerge.runs.plan_file import PlanFile
from layermerge.errors import ArtifactError
from layermerge.runtimes.exporting import export
from layermerge.planning.plan import Plan, plan
from layermerge.runs.recipe import Settings
from layermerge.runs.results import NO_COST, ChoiceRecord, CostRecord, Report, ScoreRecord, choice_of, choice_record
from layermerge.runs.directory import IMPORTANCE, LATENCY, PLAN, write_plan
from layermerge.runtimes.onnx_runtime import OnnxFile
from layermerge.runs.saving import SOLUTION, WEIGHTS, save
from layermerge.solving.meet_budget import MetBudget, measured_beside, meet_budget
from layermerge.surgery.merge import MergedModule, merge
from layermerge.surgery.rewrite import RewrittenModule, rewrite
from layermerge.tables.importance import importance_cost, measure_importance
from layermerge.tables.latency import LatencyTable, measure_latency
from layermerge.tables.shards import WHOLE_TABLE, Shard
from layermerge.tables.table import Table
from layermerge.tables.workload_clock import WHOLE_CLOCK
from layermerge.tasks.base import Task
from layermerge.tracing.trace import trace
from layermerge.tuning.distributed import usable_device
from layermerge.tuning.loop import finetune
from layermerge.tuning.recipe import Recipe

CHOICE, RESULT, SCORE, FILE = "choice.json", "result.json", "original.json", "model.onnx"


@dataclass(frozen=True)
class Variant:
    """A network ready for fine-tuning, and how it came about."""

    net: RewrittenModule
    method: str
    budget: str
    budget_ms: float
    predicted_ms: float | None = None
    chosen_ms: float | None = None
    cost: CostRecord = NO_COST


@dataclass(frozen=True)
class Result:
    """What a run ends with: the merged network, what was chosen for it (None where nothing was solved), and the figures."""

    module: MergedModule
    solution: MetBudget | None
    report: Report
    directory: Path
    """Where the network, its exported file and its recovery curve are; `load` reads it."""


class OriginalRecord(Record):
    """original.json: the score of the network as it came."""

    stamp: str
    score: ScoreRecord


class Run:
    """The stages of one network in one directory. `teacher` is whom distillation listens to: the network itself by default."""

    def __init__(
        self, model: nn.Module, task: Task, directory: Path, settings: Settings, teacher: nn.Module | None = None
    ) -> None:
        self.model, self.task, self.directory, self.settings = model, task, directory, settings
        self.teacher = teacher or model
        self.runtime = settings.make_runtime()
        self.inputs: Any = task.example_inputs()
        self.trace = trace(model, self.inputs)
        self._require_same_network()

    def _require_same_network(self) -> None:
        known = self.directory / PLAN
        if known.is_file() and read_document(known, PlanFile).fingerprint != fingerprint(self.trace.structure):
            raise ArtifactError(
                f"'{self.directory}' holds the run of another network than this {type(self.model).__name__}; "
                "give another run directory"
            )

    def place(self, method: str, budget: str) -> Path:
        return self.directory / method / budget.strip().replace("%", "pct")

    # -- tables

    def menu(self, method: str) -> Plan:
        """The candidates of a method; written down unless what is written offers them already."""
        menu = plan(self.trace, self.settings.rules, method)
        known = self.directory / PLAN
        written = read_document(known, PlanFile) if known.is_file() else None
        offered = {(entry.start, entry.end, entry.kept) for entry in written.candidates} if written else set()
        if any((entry.start, entry.end, entry.kept) not in offered for entry in menu.candidates):
            write_plan(self.directory, self.trace, menu, with_weights=True)
        return menu

    def latency(self, menu: Plan) -> LatencyTable:
        return measure_latency(
            menu,
            trace=self.trace,
            runtime=self.runtime,
            batch_size=self.settings.batch_size,
            path=self.directory / LATENCY,
        )

    def importance(self, menu: Plan, latency: LatencyTable, shard: Shard = WHOLE_TABLE) -> Table:
        return measure_importance(
            self.trace,
            menu,
            self.task,
            latency=latency,
            recipe=self.settings.importance,
            path=self.directory / IMPORTANCE,
            executor=self.settings.make_executor(),
            device=self.settings.device,
            shard=shard,
        )

    # -- the choice

    def choose(self, method: str, budget: str) -> tuple[MetBudget, CostRecord]:
        """The solution whose merged network was measured to keep the budget; found once, then read."""
        menu = self.menu(method)
        latency = self.latency(menu)
        scores = self.importance(menu, latency)
        objective = self.settings.objective
        stamp = _digest([method, budget, objective, _rows_of(menu, latency, scores)])
        path = self.place(self.named(method), budget) / CHOICE
        if path.is_file() and (known := read_document(path, ChoiceRecord)).stamp == stamp:
            return choice_of(known, menu), known.cost
        met = meet_budget(self.trace, menu, latency, scores, budget=budget, runtime=self.runtime, objective=objective)
        record = choice_record(met, stamp, budget, importance_cost(menu, scores), latency)
        write_files({path: text_writer(document_text(record))})
        return met, record.cost

    def named(self, method: str) -> str:
        """The method as its place is called; the paper's objective goes without saying."""
        return method if self.settings.objective == "exp" else f"{method}-{self.settings.objective}"

    def compress(self, method: str, budget: str) -> Result:
        """A method that solves over this network's own tables."""
        met, cost = self.choose(method, budget)
        net = rewrite(self.trace, met.candidates)
        name = self.named(method)
        variant = Variant(net, name, budget, met.budget_ms, met.latency_ms, met.measured_ms, cost)
        result = self.finish(variant, self.settings.finetune)
        return Result(result.module, met, result.report, result.directory)

    # -- the result

    @cached_property
    def original_ms(self) -> float:
        """Latency of the network as it came, norms folded: of its table."""
        return self.latency(plan(self.trace, self.settings.rules, "layeronly")).original_ms

    @property
    def original_score(self) -> ScoreRecord:
        """The score to report for the network as it came."""
        return self._original.score

    @cached_property
    def _original(self) -> OriginalRecord:
        """Scored once; kept in the directory when a first result is there, since until then nothing rests on it."""
        stamp = _digest([weights_digest(self.trace.module), self.task.describe()])
        path = self.directory / SCORE
        if path.is_file() and (known := read_document(path, OriginalRecord)).stamp == stamp:
            return known
        return OriginalRecord(stamp=stamp, score=ScoreRecord.of(self.task.test(self.model)))

    def finish(self, variant: Variant, recipe: Recipe) -> Result:
        """Fine-tunes, merges, saves and exports a variant, then measures and scores what was exported.

        The variant may be of another network than this run's; its figures are compared with this run's original.
        """
        if int(os.environ.get("WORLD_SIZE", "1")) > 1:
            raise ArtifactError(
                "only fine-tuning runs in many processes: torchrun -m layermerge finetune, then compress"
            )
        directory = self.place(variant.method, variant.budget) / self.settings.label
        stamp = _digest([recipe.model_dump(), weights_digest(variant.net), self.task.describe()])
        merged = merge(self.tune(variant.net, recipe, directory))
        path = directory / RESULT
        files = [path, directory / SOLUTION, directory / WEIGHTS, *([directory / FILE] * self.runtime.reads_onnx)]
        if all(file.is_file() for file in files) and (known := read_document(path, Report)).stamp == stamp:
            return Result(merged, None, known, directory)
        save(directory, merged)
        if self.runtime.reads_onnx:
            export(merged, directory / FILE, self.inputs)
        report = self._report(variant, merged, recipe, stamp, directory)
        original = text_writer(document_text(self._original))
        write_files({self.directory / SCORE: original, path: text_writer(document_text(report))})
        return Result(merged, None, report, directory)

    def tune(self, net: RewrittenModule, recipe: Recipe, directory: Path) -> RewrittenModule:
        """Fine-tunes on the device of the settings; the network comes back to where it was."""
        device, home = usable_device(self.settings.device), net.device
        teacher = copy.deepcopy(self.teacher).to(device) if recipe.distill else None
        return finetune(net.to(device), self.task, recipe, teacher=teacher, directory=directory).to(home)

    def _report(self, variant: Variant, merged: MergedModule, recipe: Recipe, stamp: str, directory: Path) -> Report:
        served = OnnxFile(directory / FILE) if self.runtime.reads_onnx else merged
        return Report(
            stamp=stamp,
            method=variant.method,
            budget=variant.budget,
            label=self.settings.label,
            runtime=self.runtime.name,
            threads=self.settings.threads,
            batch_size=self.settings.batch_size,
            original_ms=self.original_ms,
            budget_ms=variant.budget_ms,
            predicted_ms=variant.predicted_ms,
            chosen_ms=variant.chosen_ms,
            measured_ms=self._measure(merged, directory / FILE),
            original_score=self.original_score,
            score=ScoreRecord.of(self.task.test(served)),
            held_out=self.task.evaluate(merged),
            convs_before=_count_convs(self.trace.module),
            convs_after=_count_convs(merged),
            epochs=recipe.epochs,
            cost=variant.cost,
        )

    def _measure(self, merged: MergedModule, file: Path) -> float:
        """The artifact's latency on the table's scale, measured beside the original."""
        inputs = self.trace.inputs.resized(self.settings.batch_size)
        original = self.runtime.prepare(merge(rewrite(self.trace, [])), inputs)
        reads = self.runtime.reads_onnx
        own = self.runtime.prepare_file(file, inputs) if reads else self.runtime.prepare(merged, inputs)
        return measured_beside(original, own, self.original_ms, WHOLE_CLOCK)


def _count_convs(module: nn.Module) -> int:
    return sum(isinstance(part, nn.Conv2d) for part in module.modules())


def _rows_of(menu: Plan, latency: LatencyTable, scores: Table) -> list[Any]:
    """What a choice rests on, of tables that other methods may have added to."""
    return [
        [entry.key, latency.of(entry), scores[entry.key].value if entry.key in scores else None]
        for entry in menu.candidates
    ]


def _digest(document: Any) -> str:
    return hashlib.sha256(json.dumps(document, sort_keys=True, default=str).encode()).hexdigest()[:32]
