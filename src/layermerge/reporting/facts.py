"""Facts: all that a report shows of a run, read from the files of its directory.

In: a run directory, finished or not. Out: `RunFacts`, plain data that JSON can hold. Needs neither the model nor its weights.
Guarantees: what is not there yet is said in `missing`; a directory that is not a run, and a truncated file, is an
`ArtifactError` of one line; no number is infinite or undefined; the best choice at every whole per cent of the original
latency, and at every budget that was chosen for, is among a frontier's points.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from layermerge.errors import ArtifactError, LayerMergeError
from layermerge.planning.plan import METHODS, Plan
from layermerge.reporting.commands import Commands, known_recipe
from layermerge.reporting.expected_score import expected_score
from layermerge.reporting.fact_records import (
    ChoiceFacts,
    CostFacts,
    CurveFacts,
    EstimateFacts,
    MethodFacts,
    Places,
    PointFacts,
    RunFacts,
    StopFacts,
)
from layermerge.reporting.prices import Prices
from layermerge.reporting.reasons import group_reasons
from layermerge.reporting.result_facts import headline, headline_note, rank, result_facts
from layermerge.reporting.stop_words import Described, describe
from layermerge.reporting.stops import stops_of
from layermerge.runs.directory import RunDirectory
from layermerge.runs.records import Choice
from layermerge.solving.frontier import Frontier, Solution
from layermerge.solving.solve import objective_of, solve
from layermerge.tables.bounds import Objective
from layermerge.tables.cost import TableCost, table_cost
from layermerge.tables.estimators.base import BASELINE
from layermerge.tables.latency import LatencyTable

MOST_POINTS = 150


def gather(run_dir: str | Path) -> RunFacts:
    """Reads a run directory. Costs one solution of each method's frontier."""
    try:
        return _Gathering(RunDirectory(Path(run_dir))).facts()
    except ArtifactError:
        raise
    except LayerMergeError as error:  # tables and curves have errors of their own
        raise ArtifactError(str(error)) from error


class _Gathering:
    """The files of one run, opened; what is not there is noted on the way."""

    def __init__(self, directory: RunDirectory) -> None:
        self.directory = directory
        self.file = directory.read_plan()
        self.plan = self.file.plan
        self.places = {candidate.key: place for place, candidate in enumerate(self.plan.candidates)}
        self.missing: list[str] = []
        self.latency = directory.read_latency(self.file) if directory.latency.is_file() else None
        self.importance = directory.read_importance(self.file) if directory.importance.is_file() else None
        self.prices = Prices(self.plan, self.latency, self.importance)
        for name, table in (("latency", self.latency), ("importance", self.importance)):
            if table is None:
                self.missing.append(f"no {name} table yet: layermerge {name} measures it")
        self.variants = [
            (place, variant) for place in directory.variants() if not (variant := place.read_variant()).first_of_two
        ]
        self.recipe = known_recipe(directory.recipe)
        self.commands = Commands(directory.path, directory.recipe, self.recipe)
        self.made = self._choices()
        self.results = result_facts((place for place, _ in self.variants), self.menus, self.usual, self.commands)

    def facts(self) -> RunFacts:
        methods = self._methods()
        curves = self._curves()
        self._note_results()
        score = self.directory.known_score()
        reports = [result.report for result in self.results]
        chosen = headline(reports, self.plan.method)
        return RunFacts(
            name=self.directory.path.resolve().name,
            directory=str(self.directory.path),
            method=self.plan.method,
            inputs=self.file.shapes,
            layers=tuple(self.prices.layer(place) for place in range(len(self.plan.layers))),
            candidates=tuple(map(self.prices.candidate, self.plan.candidates)),
            original_ms=self.prices.whole_ms,
            fixed_ms=self.prices.fixed_ms,
            scale=self.latency.scale if self.latency and self.prices.all_timed else None,
            original_score=replace(score.score, right=None) if score else None,
            latency_setting=self.latency.table.provenance if self.latency else {},
            importance_setting=self.importance.provenance if self.importance else {},
            methods=methods,
            results=self.results,
            headline=chosen,
            headline_note=headline_note(reports, chosen),
            model=self.recipe.model if self.recipe else None,
            weights=self.recipe.weights.name if self.recipe and self.recipe.weights else None,
            license=self.recipe.license if self.recipe else None,
            blocks=self.file.blocks,
            curves=curves,
            costs=self._costs(methods),
            reasons=group_reasons(self.plan, self.latency, self.importance),
            missing=tuple(dict.fromkeys(self.missing)),
        )

    # -- methods

    def _choices(self) -> dict[str, list[Choice]]:
        """By method; the plan's own has a place where nothing was chosen by it yet."""
        made: dict[str, list[Choice]] = {self.plan.method: []}
        for choice in self.directory.choices():
            made.setdefault(choice.method, []).append(choice)
        self.usual = objective_of(self.importance or {})
        self.menus: dict[str, tuple[str, Objective]] = {
            name: (own[0].menu, own[0].objective) if own else (name, self.usual) for name, own in made.items()
        }
        return made

    def _methods(self) -> tuple[MethodFacts, ...]:
        """The plan's own method, and all that something was chosen by."""
        order = [self.plan.method, *METHODS]
        names = sorted(self.made, key=lambda name: (*rank(order, self.menus[name][0]), name))
        return tuple(self._method(name, self.made[name]) for name in names)

    def _method(self, name: str, choices: list[Choice]) -> MethodFacts:
        base, objective = self.menus[name]
        chosen = tuple(map(self._choice, sorted(choices, key=lambda choice: choice.solution.budget_ms or 0.0)))
        menu = self._menu(base)
        if menu is None:
            note = f"{name}: plan.json holds the menu of {self.plan.method}, so this frontier cannot be drawn"
            self.missing.append(note)
            return MethodFacts(name, objective, 0, choices=chosen, stops=self._stops(name, (), chosen), note=note)
        frontier = self._frontier(name, menu, objective)
        entries = len(menu.entries)
        if isinstance(frontier, str):
            self.missing.append(frontier)
            stops = self._stops(name, (), chosen)
            return MethodFacts(name, objective, entries, choices=chosen, stops=stops, note=frontier)
        solutions = [choice.solution for choice in choices]
        wanted = [at for solution in solutions for at in (solution.budget_ms, solution.latency_ms) if at is not None]
        points = tuple(self._point(frontier, place) for place in thinned(frontier, wanted))
        stops = self._stops(name, points, chosen)
        return MethodFacts(name, objective, entries, len(frontier.points), points, chosen, stops)

    def _stops(
        self, name: str, frontier: Sequence[PointFacts], choices: Sequence[ChoiceFacts]
    ) -> tuple[StopFacts, ...]:
        menu, objective = self.menus[name]
        command = partial(self.commands.for_budget, menu, objective)
        return stops_of(frontier, choices, self.results, self.prices.whole_ms or math.inf, self._described, command)

    def _described(self, places: Places) -> Described:
        parts = [self.plan.candidates[place] for place in places]
        return describe([(part, self.prices.latency_of(part) or 0.0) for part in parts], self.prices.fixed_ms or 0.0)

    def _menu(self, base: str) -> Plan | None:
        """A method's part of the plan; None where the plan was written for a method that offers less."""
        held, rules = self.plan.method, self.plan.rules
        if base == held:
            return self.plan
        if base not in METHODS or held != "layermerge" or (base == "layeronly" and rules.identities != "all"):
            return None
        layers = self.plan.layers
        entries = (entry for entry in self.plan.candidates if METHODS[base](entry, layers[entry.start], rules))
        return replace(self.plan, candidates=tuple(entries), rejections=(), method=base)

    def _frontier(self, name: str, menu: Plan, objective: Objective) -> Frontier | str:
        """The frontier, or why there is none yet."""
        if self.latency is None or self.importance is None:
            return f"{name}: the frontier needs both tables"
        if count := self.prices.lacking_workloads(menu):
            return f"{name}: the latency table still lacks {count} workloads"
        scored = [
            entry for entry in menu.candidates if not entry.changes or entry.fixed or entry.key in self.importance
        ]
        if lacking := len(menu.candidates) - len(scored):
            self.missing.append(
                f"{name}: {lacking} of {len(menu.entries)} entries have no importance yet and are left out"
            )
            menu = replace(menu, candidates=tuple(scored), rejections=())
        try:
            return solve(menu, self._table_of(menu), self.importance, objective=objective)
        except LayerMergeError as error:  # such as a workload that failed and leaves a layer without any candidate
            return f"{name}: {error}"

    def _table_of(self, menu: Plan) -> LatencyTable:
        assert self.latency is not None, "asked for only where there is one"
        workloads = {entry.key: self.latency.workloads[entry.key] for entry in menu.candidates}
        return LatencyTable(menu, workloads, self.latency.table, self.latency.branches)

    def _point(self, frontier: Frontier, place: int) -> PointFacts:
        solution = frontier.solution(place)
        places = tuple(self.places[candidate.key] for candidate in solution.candidates)
        return PointFacts(frontier.points[place], places, self._expected(solution))

    def _expected(self, solution: Solution) -> EstimateFacts | None:
        """Where the tables can tell, and the original was tested."""
        score = self.directory.known_score()
        row = self.importance.rows.get(BASELINE) if self.importance else None
        if solution.estimated is None or score is None or row is None or row.value is None:
            return None
        return expected_score(solution.estimated, row.value, score.score)

    def _choice(self, choice: Choice) -> ChoiceFacts:
        keys = [candidate.key for candidate in choice.solution.candidates]
        if all(key in self.places for key in keys):
            return ChoiceFacts(choice, tuple(self.places[key] for key in keys))
        self.missing.append(
            f"{choice.method} at {choice.budget}: chosen from a plan that plan.json does not hold any more"
        )
        return ChoiceFacts(choice, ())

    # -- results

    def _note_results(self) -> None:
        if not self.results:
            self.missing.append("no result yet: layermerge compress fine-tunes, merges and measures")

    def _curves(self) -> tuple[CurveFacts, ...]:
        curves = []
        for place, variant in self.variants:
            if not (epochs := place.read_recovery()):
                continue
            if place.read_result() is None:
                name = f"{variant.method} at {variant.budget} ({variant.label})"
                self.missing.append(f"{name}: fine-tuning has not led to a result yet")
            scores = tuple(epoch.score if math.isfinite(epoch.score) else None for epoch in epochs)
            curves.append(CurveFacts(variant, tuple(epoch.epoch for epoch in epochs), scores, epochs[-1].seconds))
        return tuple(curves)

    def _costs(self, methods: Sequence[MethodFacts]) -> tuple[CostFacts, ...]:
        """From the tables where they are; for methods of several networks, what their result says."""
        costs: dict[str, TableCost] = {}
        for facts in methods:
            menu = self._menu(self.menus[facts.method][0])
            if menu and self.latency and not self.prices.lacking_workloads(menu):
                costs[facts.method] = table_cost(menu, self.importance, self._table_of(menu))
        for report in (result.report for result in self.results):
            if report.cost.entries:
                costs.setdefault(report.method, report.cost)
        return tuple(CostFacts(method, cost) for method, cost in costs.items())


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
