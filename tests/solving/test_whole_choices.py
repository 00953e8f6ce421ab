"""Sums held against whole networks: what does not add up is found, each network is scored once, kills change nothing."""

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
from layermerge.solving.whole_choices import corrected_by_wholes, whole_key
from layermerge.tables.estimates import fit_to_sums
from layermerge.tables.latency import LatencyTable
from layermerge.tables.table import Row, Table, TableWriter

PROVENANCE = {"kind": "importance", "estimator": "calibrated"}


class Truth:
    """Changes of single candidates, and what a whole choice loses beside their sum."""

    def __init__(self, plan: lm.Plan, seed: int, together: float) -> None:
        rng = random.Random(seed)
        self.alone = {one.key: -rng.uniform(0.02, 0.3) * len(one.layers) for one in plan.candidates if one.changes}
        self.together = together
        self.asked: list[str] = []

    def loss(self, chosen: Sequence[Candidate]) -> float:
        changes = [one for one in chosen if one.changes]
        return sum(self.alone[one.key] for one in changes) - self.together * max(0, len(changes) - 1)

    def whole(self, chosen: Sequence[Candidate]) -> Row:
        self.asked.append(whole_key(chosen))
        parts = tuple(one.key for one in chosen)
        return Row(key="any", value=self.loss(chosen), spread=1e-3, parts=parts, score=0.5)


def written(path: Path, truth: Truth) -> Table:
    with TableWriter(path, PROVENANCE) as writer:
        for key, value in truth.alone.items():
            writer.append(Row(key=key, value=value, spread=0.01))
        return writer.table


def latency(name: str, place: Path) -> LatencyTable:
    trace = zoo.traced(name)
    return lm.measure_latency(lm.plan(trace), trace=trace, runtime=ContextRuntime(), path=place / "latency.jsonl")


def halfway(table: LatencyTable, scores: Table) -> float:
    """Between the fastest choice and the network as it is."""
    return 0.5 * (lm.solve(table.plan, table, scores).smallest_ms + table.original_ms)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("name", ["basic", "inverted", "depthwise_chain"])
def test_the_choice_is_no_worse_as_a_whole_and_often_better(name: str, seed: int, tmp_path: Path) -> None:
    table = latency(name, tmp_path)
    truth = Truth(table.plan, seed, together=0.4)
    scores = written(tmp_path / "t.jsonl", truth)
    allowed = halfway(table, scores)
    corrected = corrected_by_wholes(table.plan, table, scores, allowed, truth.whole, tmp_path / "t.jsonl")
    before, after = (lm.solve(table.plan, table, one).within(allowed) for one in (scores, corrected))
    assert truth.loss(after.candidates) >= truth.loss(before.candidates) - 1e-9
    assert len(truth.asked) == len(set(truth.asked)) <= 12, "each network once"
    rows = Table.read(tmp_path / "t.jsonl").rows
    assert {row.key for row in rows.values() if row.parts} == set(truth.asked)
    for key in truth.asked:
        total = sum(corrected[part].value or 0.0 for part in rows[key].parts if part in truth.alone)
        assert total == pytest.approx(rows[key].value, abs=0.05), "what was seen whole is what its parts add up to"


def test_what_adds_up_stays_as_it_is(tmp_path: Path) -> None:
    table = latency("inverted", tmp_path)
    truth = Truth(table.plan, 0, together=0.0)
    scores = written(tmp_path / "t.jsonl", truth)
    given = (table.plan, table, scores, halfway(table, scores))
    corrected = corrected_by_wholes(*given, truth.whole, tmp_path / "t.jsonl")
    for key, value in truth.alone.items():
        assert corrected[key].value == pytest.approx(value, abs=1e-9)


def test_a_second_time_nothing_is_scored_and_after_an_interruption_the_same_comes_out(tmp_path: Path) -> None:
    table = latency("inverted", tmp_path)
    truth = Truth(table.plan, 4, together=0.4)
    path = tmp_path / "t.jsonl"
    scores = written(path, truth)
    given = (table.plan, table, scores, halfway(table, scores))
    first = corrected_by_wholes(*given, truth.whole, path)
    asked = list(truth.asked)
    assert len(asked) > 2
    again = corrected_by_wholes(*given, truth.whole, path)
    assert truth.asked == asked
    assert {key: row.value for key, row in again.rows.items()} == {key: row.value for key, row in first.rows.items()}
    whole_text = path.read_bytes()
    lines = whole_text.splitlines(keepends=True)
    cut = next(place for place, line in enumerate(lines) if "parts" in json.loads(line))
    path.write_bytes(b"".join(lines[: cut + 1]))
    corrected_by_wholes(*given, truth.whole, path)
    assert path.read_bytes() == whole_text


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
