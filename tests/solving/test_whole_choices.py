"""Sums checked against whole networks: what does not add up is found, each network is scored once, kills change nothing."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

import layermerge as lm
import zoo
from context_runtime import ContextRuntime
from layermerge.planning.candidate import Candidate
from layermerge.solving.divergences import ADDS_UP, losses_of
from layermerge.solving.whole_choices import MOST_NEAR, WholeScores, whole_key
from layermerge.tables.estimates import fit_to_sums
from layermerge.tables.estimators.base import BASELINE
from layermerge.tables.latency import LatencyTable
from layermerge.tables.table import Row, Table, TableWriter

PROVENANCE = {"kind": "importance", "estimator": "calibrated"}
UNTOUCHED = 0.9


class Truth:
    """Changes of single candidates, and what a whole choice loses beside their sum."""

    def __init__(self, plan: lm.Plan, seed: int, together: float) -> None:
        rng = random.Random(seed)
        self.alone = {one.key: -rng.uniform(0.02, 0.3) * len(one.layers) for one in plan.candidates if one.changes}
        self.together = together
        self.asked: list[str] = []

    def loss(self, chosen: Sequence[Candidate]) -> float:
        """Of the whole: a divergence whose power adds up, and more of it for every change beyond the first."""
        changes = [one for one in chosen if one.changes]
        total = sum((-self.alone[one.key]) ** ADDS_UP for one in changes) + self.together * max(0, len(changes) - 1)
        return -float(total ** (1 / ADDS_UP))

    def whole(self, chosen: Sequence[Candidate]) -> Row:
        self.asked.append(whole_key(chosen))
        parts = tuple(one.key for one in chosen)
        return Row(
            key="any", value=self.loss(chosen), spread=1e-3, parts=parts, score=UNTOUCHED + 0.2 * self.loss(chosen)
        )


def written(path: Path, truth: Truth) -> Table:
    with TableWriter(path, PROVENANCE) as writer:
        writer.append(Row(key=BASELINE, value=UNTOUCHED))
        for key, value in truth.alone.items():
            writer.append(Row(key=key, value=value, spread=0.01))
        return writer.table


def latency(name: str, place: Path) -> LatencyTable:
    trace = zoo.traced(name)
    return lm.measure_latency(lm.plan(trace), trace=trace, runtime=ContextRuntime(), path=place / "latency.jsonl")


def halfway(table: LatencyTable, scores: Table) -> float:
    """Between the fastest choice and the network as it is."""
    return 0.5 * (lm.solve(table.plan, table, scores).smallest_ms + table.original_ms)


def wholes(table: LatencyTable, truth: Truth, path: Path) -> WholeScores:
    return WholeScores(table.plan, table, truth.whole, path)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("name", ["basic", "inverted", "depthwise_chain"])
def test_the_choice_is_no_worse_as_a_whole_and_often_better(name: str, seed: int, tmp_path: Path) -> None:
    table = latency(name, tmp_path)
    truth = Truth(table.plan, seed, together=0.4)
    scores = written(tmp_path / "t.jsonl", truth)
    allowed = halfway(table, scores)
    known = wholes(table, truth, tmp_path / "t.jsonl").around(scores, allowed)
    before, after = (lm.solve(table.plan, table, one).within(allowed) for one in (scores, known))
    assert truth.loss(after.candidates) >= truth.loss(before.candidates) - 1e-9
    assert len(truth.asked) == len(set(truth.asked)) <= MOST_NEAR, "each network once"
    rows = Table.read(tmp_path / "t.jsonl").rows
    assert {row.key for row in rows.values() if row.parts} == set(truth.asked)
    losses = losses_of(known)
    for key in truth.asked:
        whole = -(rows[key].value or 0.0)
        assert losses.of_whole(rows[key].parts) == pytest.approx(whole**ADDS_UP, rel=0.1), "what was seen is explained"


def test_what_adds_up_stays_as_it_is(tmp_path: Path) -> None:
    table = latency("inverted", tmp_path)
    truth = Truth(table.plan, 0, together=0.0)
    scores = written(tmp_path / "t.jsonl", truth)
    known = wholes(table, truth, tmp_path / "t.jsonl").around(scores, halfway(table, scores))
    losses = losses_of(known)
    for key, value in truth.alone.items():
        assert losses.alone[key] == pytest.approx((-value) ** ADDS_UP, rel=1e-9)
    assert all(abs(term) < 1e-9 for term in losses.neighbours.values())


def test_a_second_time_nothing_is_scored_and_after_an_interruption_the_same_comes_out(tmp_path: Path) -> None:
    table = latency("inverted", tmp_path)
    truth = Truth(table.plan, 4, together=0.4)
    path = tmp_path / "t.jsonl"
    scores = written(path, truth)
    allowed = halfway(table, scores)
    scorer = wholes(table, truth, path)

    def run() -> bytes:
        given = Table.read(path)
        scorer.around(scorer.along_the_frontier(given), allowed)
        return path.read_bytes()

    whole_text = run()
    asked = list(truth.asked)
    assert len(asked) > 4
    assert run() == whole_text
    assert truth.asked == asked
    lines = whole_text.splitlines(keepends=True)
    first = next(place for place, line in enumerate(lines) if "parts" in json.loads(line))
    for cut in range(first, len(lines)):
        path.write_bytes(b"".join(lines[:cut]))
        assert run() == whole_text, f"interrupted before row {cut}"


def test_choices_along_the_frontier_give_every_budget_an_estimate(tmp_path: Path) -> None:
    table = latency("inverted", tmp_path)
    truth = Truth(table.plan, 1, together=0.05)
    scores = written(tmp_path / "t.jsonl", truth)
    assert lm.solve(table.plan, table, scores).solution(0).estimated is None
    known = wholes(table, truth, tmp_path / "t.jsonl").along_the_frontier(scores)
    assert 4 <= len(truth.asked) <= 7
    frontier = lm.solve(table.plan, table, known)
    for index in range(len(frontier.points)):
        solution = frontier.solution(index)
        assert solution.estimated is not None
        expected = UNTOUCHED + 0.2 * truth.loss(solution.candidates)
        assert solution.estimated.value == pytest.approx(expected, abs=solution.estimated.error + 0.01)
    assert frontier.to_document()["points"][0]["estimated"]["value"] == frontier.solution(0).estimated.value  # type: ignore[union-attr]
    listed = str(frontier)
    assert "estimated score" in listed
    assert str(frontier.solution(0).estimated) in listed
    assert listed.endswith("95 % lie within the interval")


def test_fits_to_sums_are_those_of_the_textbook() -> None:
    """The same as the conditional mean of a normal distribution, by numpy's least squares on the stacked system."""
    generator = np.random.default_rng(0)
    counts = generator.integers(0, 2, (3, 6)).astype(float)
    errors, noise, missing = generator.uniform(0.1, 1, 6), generator.uniform(0.01, 0.1, 3), generator.normal(size=3)
    change, covariance = fit_to_sums(np.diag(errors**2), counts, missing, noise)
    system = np.vstack([counts / noise[:, None], np.diag(1 / errors)])
    expected = np.linalg.lstsq(system, np.concatenate([missing / noise, np.zeros(6)]), rcond=None)[0]
    np.testing.assert_allclose(change, expected, atol=1e-9)
    np.testing.assert_allclose(covariance, np.linalg.inv(system.T @ system), atol=1e-9)
