"""The estimator, without a clock: a runtime with invented effects of context, whose networks are predicted from rows."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import layermerge as lm
import zoo
from context_runtime import ContextRuntime, operators_of
from layermerge.tables.estimates import Corrected, Estimate, Network
from layermerge.tables.latency import LatencyTable
from layermerge.tables.measuring import in_network_key
from layermerge.tables.table import Row

NETWORKS = ["plain", "basic", "inverted", "depthwise_chain", "one_relu_five_times"]


def measured(name: str, path: Path, **given: Any) -> LatencyTable:
    plan = lm.plan(zoo.traced(name), lm.Rules(rule_out_slow=False))
    runtime = ContextRuntime(**given)
    return lm.measure_latency(plan, trace=zoo.traced(name), runtime=runtime, path=path / "latency.jsonl")


def some_choice(plan: lm.Plan, rng: random.Random) -> list[lm.Candidate]:
    """A random chain of candidates."""
    place, found = 0, []
    while place < len(plan.layers):
        found.append(rng.choice([one for one in plan.candidates if one.start == place and _can_end(plan, one.end)]))
        place = found[-1].end
    return found


def _can_end(plan: lm.Plan, place: int) -> bool:
    return place == len(plan.layers) or any(
        one.start == place and _can_end(plan, one.end) for one in plan.candidates if one.untouched
    )


def truth(name: str, candidates: list[lm.Candidate]) -> float:
    return sum(one.ms for one in operators_of(lm.merge(lm.rewrite(zoo.traced(name), candidates))))


@pytest.mark.parametrize("name", [name for name in NETWORKS if name != "inverted"])
def test_a_runtime_that_tells_is_predicted_from_a_fresh_table(name: str, tmp_path: Path) -> None:
    """Where single layers are of the kinds that merges are of; in an inverted block no dense kernel is."""
    table, rng = measured(name, tmp_path), random.Random(name)
    offs = []
    for _ in range(5):
        chosen = some_choice(table.plan, rng)
        offs.append(table.predict(chosen).ms / truth(name, chosen) - 1)
    assert np.median(np.abs(offs)) < 0.05
    assert max(map(abs, offs)) < 0.15


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("silent", [False, True])
def test_the_untouched_network_is_predicted_as_measured(name: str, silent: bool, tmp_path: Path) -> None:
    table = measured(name, tmp_path, silent=silent)
    untouched = [one for one in table.plan.candidates if one.untouched]
    found = table.predict(untouched)
    assert found.ms == pytest.approx(table.original_ms) == pytest.approx(truth(name, []))
    assert found.error_ms == 0.0


def test_rows_of_single_layers_are_what_the_runtime_tells_of_the_network(tmp_path: Path) -> None:
    table = measured("plain", tmp_path)
    for single in [one for one in table.plan.candidates if one.untouched]:
        workload = table.workloads[single.key]
        assert workload is not None
        alone, told = table.table[workload.key], table.table[in_network_key(workload.key)]
        assert told.value is not None
        assert alone.value is not None
        assert told.value < alone.value
        assert table.of(single) == pytest.approx(told.value, rel=0.02)


def test_a_silent_runtime_has_no_such_rows(tmp_path: Path) -> None:
    table = measured("plain", tmp_path, silent=True)
    assert not any(row.in_network for row in table.table.rows.values())


# -- the fit


def fitted(*networks: Network, error: float = 0.05, merged: set[str] | None = None) -> Corrected:
    prior = {key: Estimate(ms, error * ms) for key, ms in (("a", 1.0), ("b", 2.0), ("c", 4.0))}
    return Corrected(prior, merged or set(), networks)


def test_without_networks_nothing_changes() -> None:
    found = fitted()
    assert [found.of(key) for key in "abc"] == [1.0, 2.0, 4.0]
    assert found.error_ms({"a": 1, "b": 1}) == pytest.approx(np.hypot(0.05, 0.1))


def test_a_network_corrects_what_it_is_made_of_by_how_uncertain_it_is() -> None:
    found = fitted(Network({"a": 1, "b": 1}, 3.3, 0.3))
    a, b, c = (found.of(key) for key in "abc")
    assert c == 4.0
    assert a + b == pytest.approx(3.3, abs=0.03), "shrunk a little toward the table"
    assert (b - 2.0) / (a - 1.0) == pytest.approx(4.0), "variances are as the squares of 1 and 2"


def test_what_was_measured_is_more_certain_afterwards() -> None:
    before, after = fitted(), fitted(Network({"a": 1, "b": 1}, 3.3, 0.3))
    assert after.error_ms({"a": 1, "b": 1}) < 0.2 * before.error_ms({"a": 1, "b": 1})
    assert after.error_ms({"c": 1}) == before.error_ms({"c": 1})


def test_merged_workloads_that_no_network_had_profit_from_what_they_have_in_common() -> None:
    found = fitted(Network({"a": 1, "b": 1}, 3.3, 0.3), merged={"a", "b", "c"})
    assert found.of("c") > 4.0


@pytest.mark.parametrize("seed", range(5))
def test_the_fit_is_the_ridge_regression(seed: int) -> None:
    """The oracle minimises the penalised squares by solving their normal equations."""
    rng = np.random.default_rng(seed)
    counts = rng.integers(0, 3, (4, 3))
    measured_ms, missing = rng.uniform(5, 10, 4), rng.normal(0, 0.5, 4)
    rows = [
        Network(dict(zip("abc", map(int, row), strict=True)), float(ms), float(gap))
        for row, ms, gap in zip(counts, measured_ms, missing, strict=True)
    ]
    errors = 0.05 * np.array([1.0, 2.0, 4.0])
    precision = np.diag(1 / errors**2) + counts.T @ np.diag(1 / (0.005 * measured_ms) ** 2) @ counts
    expected = np.linalg.solve(precision, counts.T @ (missing / (0.005 * measured_ms) ** 2)) + [1.0, 2.0, 4.0]
    found = fitted(*rows)
    assert [found.of(key) for key in "abc"] == pytest.approx(np.maximum(expected, 0.0).tolist())


def test_pooled_rows_are_their_mean_and_less_uncertain() -> None:
    rows = [Row(key=str(number), value=value, spread=0.3) for number, value in enumerate((1.0, 2.0, 3.0, 2.0))]
    assert Estimate.pooled(rows, 0.0) == Estimate(2.0, 0.15)
