"""Whole choices: sums of changes held against whole networks, and corrected by them.

In: a plan, its tables, a budget, and a way to score the network of a choice as a whole. Out: the table of scores, corrected.
Changes of single candidates add up only where they are uncorrelated. So the best choices around the budget are built and
scored whole, the values of their candidates are fitted to that, as far as they were unsure, and the choice is made again, a few
rounds. Every whole network is a row of the table's file, named by its candidates, and is read when it is met again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np

from layermerge.files import document_digest
from layermerge.planning.candidate import Candidate
from layermerge.planning.plan import Plan
from layermerge.solving.frontier import Solution
from layermerge.solving.solve import solve
from layermerge.tables.estimates import fit_to_sums
from layermerge.tables.latency import LatencyTable
from layermerge.tables.runner import fill_table
from layermerge.tables.table import Row, Table

Whole = Callable[[Sequence[Candidate]], Row]

ROUNDS = 4
AROUND = (1.0, 0.97, 0.94)
"""Shares of the budget at which choices are looked at: the closed loop may have to ask for a little less."""
_OWN, _IN_COMMON = 0.5, 0.3
"""How far a change within a whole network may be off from that of the candidate alone, relative: each by itself, and all."""

_LEAST = 1e-9
"""No measurement is certain, and two that contradict each other have no solution."""


def whole_key(candidates: Sequence[Candidate]) -> str:
    """Names the row of a whole network."""
    return f"network {document_digest([candidate.key for candidate in candidates])}"


def corrected_by_wholes(
    plan: Plan, latency: LatencyTable, scores: Table, allowed_ms: float, whole: Whole, path: Path
) -> Table:
    """The scores after the best choices around a budget were scored whole; what is scored is added to the file."""
    found: dict[str, Row] = {}
    current = scores
    for _ in range(ROUNDS):
        frontier = solve(plan, latency, current, objective="delta")
        asked = [max(share * allowed_ms, frontier.smallest_ms) for share in AROUND]
        choices = {whole_key(one.candidates): one for one in map(frontier.within, asked)}
        new = {key: one for key, one in choices.items() if key not in found and _changes(one)}
        if not new:
            break
        measured = fill_table(path, scores.provenance, list(new), _measure(whole, new), title="whole choices")
        found |= {key: measured[key] for key in new if measured[key].status == "ok"}
        current = _corrected(scores, list(found.values()))
    return current


def _changes(solution: Solution) -> bool:
    return any(candidate.changes for candidate in solution.candidates)


def _measure(whole: Whole, choices: Mapping[str, Solution]) -> Callable[[str], Row]:
    return lambda key: whole(choices[key].candidates).model_copy(update={"key": key})


def _corrected(scores: Table, wholes: Sequence[Row]) -> Table:
    """Losses are fitted to those of whole networks; none becomes a gain."""
    rows = [row for row in scores.rows.values() if row.status == "ok" and (row.value or 0.0) < 0 and not row.parts]
    places = {row.key: place for place, row in enumerate(rows)}
    losses = np.array([-(row.value or 0.0) for row in rows])
    spreads = np.array([row.spread for row in rows])
    covariance = np.diag(spreads**2 + (_OWN * losses) ** 2) + np.outer(_IN_COMMON * losses, _IN_COMMON * losses)
    counts = np.zeros((len(wholes), len(rows)))
    for number, whole in enumerate(wholes):
        counts[number, [places[key] for key in whole.parts if key in places]] = 1.0
    missing = np.array([-(whole.value or 0.0) for whole in wholes]) - counts @ losses
    change, _ = fit_to_sums(covariance, counts, missing, np.array([max(whole.spread, _LEAST) for whole in wholes]))
    values = dict(zip(places, np.minimum(-(losses + change), 0.0).tolist(), strict=True))
    kept = (
        row.model_copy(update={"value": values[row.key]}) if row.key in values else row for row in scores.rows.values()
    )
    return Table(scores.provenance, kept, scores.name, scores.path)
