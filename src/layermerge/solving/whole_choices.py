"""Whole choices: the networks that sums are checked against.

In: a plan, its tables, and a way to score the network of a choice as a whole. Out: the table of scores with rows of whole
networks in it, named by their candidates, which `solve` reads. First choices along the frontier, of all speeds, so that
every budget has an estimate; then, for one budget, the best choices around it, until the best one is among those scored.
What is scored next depends on the table alone, so whatever was interrupted continues as if it had not been.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from layermerge.files import document_digest
from layermerge.planning.candidate import Candidate
from layermerge.planning.plan import Plan
from layermerge.solving.divergences import whole_rows
from layermerge.solving.frontier import Frontier, Solution
from layermerge.solving.solve import solve
from layermerge.tables.executors import Executor, in_this_process
from layermerge.tables.latency import LatencyTable
from layermerge.tables.runner import fill_table
from layermerge.tables.table import Row, Table

Whole = Callable[[Sequence[Candidate]], Row]

ALONG = (0.85, 0.7, 0.55, 0.4, 0.25, 0.1, 0.0)
"""Where along the frontier, from the fastest choice (0) to the network as it is (1)."""
AROUND = (1.0, 0.97, 0.94)
"""Shares of the budget at which choices are looked at: the closed loop may have to ask for a little less."""
NEAR = 0.1
MOST_NEAR = 12
"""Whole networks, no further below the budget than the share `NEAR` of it, after which no more are scored."""


def whole_key(candidates: Sequence[Candidate]) -> str:
    """Names the row of a whole network."""
    return f"network {document_digest([candidate.key for candidate in candidates])}"


@dataclass(frozen=True)
class WholeScores:
    """Scores whole networks into the file of a table, here or wherever an executor sends them."""

    plan: Plan
    latency: LatencyTable
    whole: Whole
    path: Path
    executor: Executor = in_this_process

    def along_the_frontier(self, scores: Table) -> Table:
        """Choices of all speeds, from what single candidates lose."""
        frontier = self._frontier(scores.restricted(lambda row: not row.parts))
        fastest, original = frontier.smallest_ms, frontier.original_ms
        return self._add(scores, [frontier.within(fastest + share * (original - fastest)) for share in ALONG])

    def around(self, scores: Table, allowed_ms: float) -> Table:
        """The best choices around a budget, each from what all before it have shown."""
        while self._near(scores, allowed_ms) < MOST_NEAR:
            frontier = self._frontier(scores)
            asked = [max(share * allowed_ms, frontier.smallest_ms) for share in AROUND]
            unknown = [one for one in map(frontier.within, asked) if _changes(one) and _key(one) not in scores]
            if not unknown:
                break
            scores = self._add(scores, unknown[:1])
        return scores

    def _near(self, scores: Table, allowed_ms: float) -> int:
        """How many whole networks lie around a budget, of those that this plan offers."""
        offered = {candidate.key for candidate in self.plan.candidates}
        rows = [row for row in whole_rows(scores) if offered >= set(row.parts)]
        found = [self.latency.predict(map(self.plan.__getitem__, row.parts)).ms for row in rows]
        return sum((1 - NEAR) * allowed_ms <= ms <= allowed_ms for ms in found)

    def _frontier(self, scores: Table) -> Frontier:
        return solve(self.plan, self.latency, scores, objective="delta")

    def _add(self, scores: Table, solutions: Sequence[Solution]) -> Table:
        choices = {_key(one): one.candidates for one in solutions if _changes(one)}
        if all(key in scores for key in choices):
            return scores
        measure = _Measure(self.whole, choices)
        return fill_table(
            self.path, scores.provenance, list(choices), measure, title="whole networks", executor=self.executor
        )


@dataclass(frozen=True)
class _Measure:
    """A class of its own, so that other processes can be sent it."""

    whole: Whole
    choices: Mapping[str, Sequence[Candidate]]

    def __call__(self, key: str) -> Row:
        return self.whole(self.choices[key]).model_copy(update={"key": key})


def _key(solution: Solution) -> str:
    return whole_key(solution.candidates)


def _changes(solution: Solution) -> bool:
    return any(candidate.changes for candidate in solution.candidates)
