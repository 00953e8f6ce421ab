"""Facts: all that a report shows of a run, read from the files of its directory.

In: a run directory, finished or not. Out: `RunFacts`, plain data that JSON can hold. Needs neither the model nor its weights.
Guarantees: what is not there yet is said in `missing`; a directory that is no run, and a torn file, is an `ArtifactError` of
one line; no number is infinite or undefined; the best choice at every whole per cent of the original latency, and at every
budget that was chosen for, is among a frontier's points.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path

from layermerge.errors import ArtifactError, LayerMergeError
from layermerge.files import read_document
from layermerge.planning.plan import METHODS, Candidate, Plan
from layermerge.reporting.fact_records import (
    CandidateFacts,
    ChoiceFacts,
    CostFacts,
    CurveFacts,
    LayerFacts,
    MethodFacts,
    PointFacts,
    RunFacts,
)
from layermerge.reporting.reasons import group_reasons
from layermerge.runs.directory import IMPORTANCE, LATENCY, PLAN, read_latency, read_plan
from layermerge.runs.plan_file import PlanFile, TensorShape
from layermerge.runs.results import ChoiceRecord, CostRecord, Report
from layermerge.runs.steps import CHOICE, RESULT, SCORE, OriginalRecord
from layermerge.solving.frontier import Frontier
from layermerge.solving.solve import Objective, solve
from layermerge.tables.importance import importance_cost
from layermerge.tables.latency import LatencyTable
from layermerge.tables.table import Table
from layermerge.tables.workload_clock import WHOLE
from layermerge.tuning.recovery import JSONL, read_recovery

MOST_POINTS = 150
ACCEPTABLE_LOSS = 0.03
"""The headline is the result at the tightest budget that lost no more than this share of the original's score."""


def gather(run_dir: str | Path) -> RunFacts:
    """Reads a run directory. Costs one solution of each method's frontier."""
    try:
        return _Gathering(Path(run_dir)).facts()
    except ArtifactError:
        raise
    except LayerMergeError as error:  # tables and curves have errors of their own
        raise ArtifactError(str(error)) from error


class _Gathering:
    """The files of one run, opened; what is not there is noted on the way."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.record, self.plan = read_plan(directory)
        self.places = {candidate.key: place for place, candidate in enumerate(self.plan.candidates)}
        self.missing: list[str] = []
        self.latency = self._latency()
        self.importance = self._importance()
        self.results = _results(directory)

    def facts(self) -> RunFacts:
        methods = self._methods()
        curves = self._curves()
        self._note_results()
        score = self.directory / SCORE
        return RunFacts(
            name=self.directory.resolve().name,
            directory=str(self.directory),
            method=self.record.method,
            inputs=_shapes(self.record),
            layers=tuple(self._layer(place) for place in range(len(self.plan.layers))),
            candidates=tuple(map(self._candidate, self.plan.candidates)),
            original_ms=self._whole_ms,
            fixed_ms=self.latency.fixed_ms if self.latency and self._all_timed else None,
            scale=self.latency.scale if self.latency and self._all_timed else None,
            original_score=read_document(score, OriginalRecord).score if score.is_file() else None,
            latency_setting=self.latency.table.provenance if self.latency else {},
            importance_setting=self.importance.provenance if self.importance else {},
            methods=methods,
            results=self.results,
            headline=headline(self.results, self.record.method),
            curves=curves,
            costs=self._costs(methods),
            reasons=group_reasons(self.record, self.latency, self.importance),
            missing=tuple(dict.fromkeys(self.missing)),
        )

    # -- tables

    def _latency(self) -> LatencyTable | None:
        if not (self.directory / LATENCY).is_file():
            self.missing.append("no latency table yet: layermerge latency measures it")
            return None
        return read_latency(self.directory)

    def _importance(self) -> Table | None:
        if not (self.directory / IMPORTANCE).is_file():
            self.missing.append("no importance table yet: layermerge importance measures it")
            return None
        table = Table.read(self.directory / IMPORTANCE)
        if table.provenance.get("network", self.record.fingerprint) != self.record.fingerprint:
            raise ArtifactError(
                f"'{self.directory / IMPORTANCE}' was measured for another network than '{self.directory / PLAN}'"
            )
        return table

    @property
    def _whole_ms(self) -> float | None:
        row = self.latency.table.rows.get(WHOLE) if self.latency else None
        return row.value if row else None

    def _lacking_workloads(self, menu: Plan) -> int:
        """How many workloads the latency table still lacks; the whole network is one of them."""
        if self.latency is None:
            return len(menu.entries)
        workloads = {workload.key for entry in menu.entries if (workload := self.latency.workloads[entry.key])}
        return sum(key not in self.latency.table for key in {WHOLE, *workloads})

    @cached_property
    def _all_timed(self) -> bool:
        return not self._lacking_workloads(self.plan)

    def _layer(self, place: int) -> LayerFacts:
        layer, record = self.plan.layers[place], self.record.layers[place]
        kept, dropped = self.plan.single(place, kept=True), self.plan.single(place, kept=False)
        fixed = bool(kept and kept.fixed)
        return LayerFacts(
            name=layer.name,
            kernel=record.spec.kernel,
            stride=record.spec.stride,
            groups=record.spec.groups,
            input_shape=layer.input_shape,
            output_shape=layer.output_shape,
            removable=dropped is not None,
            fixed=fixed,
            latency_ms=self._latency_of(kept) if kept and not fixed else None,
        )

    def _candidate(self, candidate: Candidate) -> CandidateFacts:
        row = self.importance.rows.get(candidate.key) if self.importance else None
        return CandidateFacts(
            key=candidate.key,
            start=candidate.start,
            end=candidate.end,
            kept=tuple(place for place, name in enumerate(candidate.layers, candidate.start) if name in candidate.kept),
            kernel=candidate.spec.kernel if candidate.spec else None,
            groups=candidate.spec.groups if candidate.spec else None,
            latency_ms=self._latency_of(candidate),
            change=0.0 if candidate.untouched else row.value if row else None,
        )

    def _latency_of(self, candidate: Candidate) -> float | None:
        """On the scale of the whole network, which needs all single layers; before these are there, as measured."""
        if self.latency is None:
            return None
        workload = self.latency.workloads[candidate.key]
        if candidate.fixed or workload is None:
            return 0.0
        row = self.latency.table.rows.get(workload.key)
        if row is None or row.value is None:
            return None
        return self.latency.of(candidate) if self._all_timed else row.value

    # -- methods

    def _methods(self) -> tuple[MethodFacts, ...]:
        found = {path.parent.parent.name for path in self.directory.glob(f"*/*/{CHOICE}")}
        order = [self.record.method, *METHODS]
        names = sorted({self.record.method, *found}, key=lambda name: (*_rank(order, _base(name)[0]), name))
        return tuple(map(self._method, names))

    def _method(self, name: str) -> MethodFacts:
        base, objective = _base(name)
        choices = tuple(sorted(self._choices(name), key=lambda choice: choice.budget_ms))
        menu = self._menu(base)
        if menu is None:
            note = f"{name}: plan.json holds the menu of {self.record.method}, so this frontier cannot be drawn"
            self.missing.append(note)
            return MethodFacts(method=name, objective=objective, entries=0, choices=choices, note=note)
        frontier = self._frontier(name, menu, objective)
        entries = len(menu.entries)
        if isinstance(frontier, str):
            self.missing.append(frontier)
            return MethodFacts(method=name, objective=objective, entries=entries, choices=choices, note=frontier)
        wanted = [at for choice in choices for at in (choice.budget_ms, choice.predicted_ms)]
        return MethodFacts(
            method=name,
            objective=objective,
            entries=entries,
            points=len(frontier.points),
            frontier=tuple(self._point(frontier, place) for place in thinned(frontier, wanted)),
            choices=choices,
        )

    def _menu(self, base: str) -> Plan | None:
        """A method's part of the plan; None where the plan was written for a method that offers less."""
        held, rules = self.plan.method, self.plan.rules
        if base == held:
            return self.plan
        if base not in METHODS or held != "layermerge" or (base == "layeronly" and rules.identities != "all"):
            return None
        layers = self.plan.layers
        entries = (entry for entry in self.plan.candidates if METHODS[base](entry, layers[entry.start], rules))
        return Plan(layers, tuple(entries), (), rules, base)

    def _frontier(self, name: str, menu: Plan, objective: Objective) -> Frontier | str:
        """The frontier, or why there is none yet."""
        if self.latency is None or self.importance is None:
            return f"{name}: the frontier needs both tables"
        if count := self._lacking_workloads(menu):
            return f"{name}: the latency table still lacks {count} workloads"
        scored = [entry for entry in menu.candidates if entry.untouched or entry.fixed or entry.key in self.importance]
        if lacking := len(menu.candidates) - len(scored):
            self.missing.append(
                f"{name}: {lacking} of {len(menu.entries)} entries have no importance yet and are left out"
            )
            menu = Plan(menu.layers, tuple(scored), (), menu.rules, menu.method)
        try:
            return solve(menu, self._table_of(menu), self.importance, objective=objective)
        except LayerMergeError as error:  # such as a workload that failed and leaves a layer without any candidate
            return f"{name}: {error}"

    def _table_of(self, menu: Plan) -> LatencyTable:
        assert self.latency is not None, "asked for only where there is one"
        workloads = {entry.key: self.latency.workloads[entry.key] for entry in menu.candidates}
        return LatencyTable(menu, workloads, self.latency.table)

    def _point(self, frontier: Frontier, place: int) -> PointFacts:
        solution = frontier.solution(place)
        places = tuple(self.places[candidate.key] for candidate in solution.candidates)
        return PointFacts(latency_ms=solution.latency_ms, importance=solution.importance, candidates=places)

    def _choices(self, name: str) -> Iterable[ChoiceFacts]:
        for path in self.directory.glob(f"{name}/*/{CHOICE}"):
            record = read_document(path, ChoiceRecord)
            known = all(key in self.places for key in record.candidates)
            if not known:
                self.missing.append(
                    f"{name} at {record.budget}: chosen from a plan that plan.json does not hold any more"
                )
            facts = {field: getattr(record, field) for field in ChoiceFacts.model_fields if field != "candidates"}
            yield ChoiceFacts(**facts, candidates=tuple(self.places[key] for key in record.candidates if known))

    # -- results

    def _note_results(self) -> None:
        if not self.results:
            self.missing.append("no result yet: layermerge compress fine-tunes, merges and measures")

    def _curves(self) -> tuple[CurveFacts, ...]:
        done = {(report.method, report.budget, report.label) for report in self.results}
        budgets = {_folder(report.budget): report.budget for report in self.results}
        curves = []
        for path in sorted(self.directory.glob(f"*/*/*/{JSONL}")):
            method, budget, label = path.relative_to(self.directory).parts[:3]
            rows = read_recovery(path.parent)
            if _half_way(path.parent) or not rows:
                continue
            written = budgets.get(budget, budget.replace("pct", "%"))
            if (method, written, label) not in done:
                self.missing.append(f"{method} at {written} ({label}): fine-tuning has not led to a result yet")
            curves.append(
                CurveFacts(
                    method=method,
                    budget=written,
                    label=label,
                    epochs=tuple(row.epoch for row in rows),
                    scores=tuple(row.score if math.isfinite(row.score) else None for row in rows),
                    seconds=rows[-1].seconds,
                )
            )
        return tuple(curves)

    def _costs(self, methods: Sequence[MethodFacts]) -> tuple[CostFacts, ...]:
        """From the tables where they are; for methods of several networks, what their result says."""
        costs: dict[str, CostRecord] = {}
        for facts in methods:
            menu = self._menu(_base(facts.method)[0])
            if menu and self.latency and not self._lacking_workloads(menu):
                scores = self.importance or Table({}, ())
                costs[facts.method] = CostRecord.of(importance_cost(menu, scores), self._table_of(menu))
        for report in self.results:
            if report.cost.entries:
                costs.setdefault(report.method, report.cost)
        return tuple(CostFacts(method=method, cost=cost) for method, cost in costs.items())


def headline(results: Sequence[Report], method: str) -> int | None:
    """The method's result at the tightest budget that cost little of the score; where all cost much, the best score."""
    compressed = [place for place, report in enumerate(results) if report.method != "original"]
    own = [place for place in compressed if results[place].method == method] or compressed
    losses = {place: _loss(results[place]) for place in own}
    if little := [place for place in own if losses[place] <= ACCEPTABLE_LOSS]:
        # Of several fine-tunings for one budget, the held-out data choose: test data only report.
        return min(little, key=lambda place: (results[place].budget_ms, -results[place].held_out))
    return min(own, key=lambda place: losses[place], default=None)


def _loss(report: Report) -> float:
    """The share of the original's score that was lost; of a loss, less is better."""
    before, after = report.original_score.value, report.score.value
    worse = before - after if report.score.kind == "share" else after - before
    return worse / abs(before) if before else worse


def thinned(frontier: Frontier, wanted: Iterable[float]) -> list[int]:
    """Places of at most `MOST_POINTS` points (more, where so many are wanted): the best at `wanted` latencies and at every
    whole per cent of the original, both ends, and others evenly in between."""
    latencies = [point.latency_ms for point in frontier.points]
    last = len(latencies) - 1
    asked = [*wanted, *(frontier.original_ms * share / 100 for share in range(1, 101))]
    kept = {0, last, *(place for at in asked if (place := bisect_right(latencies, at) - 1) >= 0)}
    room = MOST_POINTS - len(kept)
    others = [place for place in range(last + 1) if place not in kept]
    if room > 0:
        kept.update(others[:: -(-len(others) // room)] if len(others) > room else others)
    return sorted(kept)


def _results(directory: Path) -> tuple[Report, ...]:
    """Every result, the control first, then by method as they were run and budget."""
    paths = [path for path in sorted(directory.glob(f"*/*/*/{RESULT}")) if not _half_way(path.parent)]
    order = ["original", *METHODS]
    reports = [read_document(path, Report) for path in paths]
    return tuple(sorted(reports, key=lambda report: (*_rank(order, report.method), report.label, report.budget_ms)))


def _half_way(directory: Path) -> bool:
    """Whether this is the first of two stages, and so no result of its own."""
    return any(directory.glob("then-*"))


def _rank(order: Sequence[str], name: str) -> tuple[int, str]:
    return (order.index(name) if name in order else len(order), name)


def _base(name: str) -> tuple[str, Objective]:
    """The method and the objective of a folder, named as `Run.named` does."""
    return (name.removesuffix("-delta"), "delta") if name.endswith("-delta") else (name, "exp")


def _folder(budget: str) -> str:
    return budget.strip().replace("%", "pct")


def _shapes(record: PlanFile) -> tuple[tuple[int, ...], ...]:
    """Of the inputs, without the batch."""
    given = (*record.args, *record.kwargs.values())
    return tuple(value.shape[1:] for value in given if isinstance(value, TensorShape) and len(value.shape) > 1)
