"""Explain, of a model and of a run: what it lists is what the plan and the tables say, at every width."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

import tiny_runs
from command_line import Run, document, write_data, write_recipe
from tiny_runs import arrays, contents

WIDER = """
from torch import nn

def net():
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 5, 3))
"""
NET = ("python:tiny:net", "--input", "3x8x8")


@pytest.fixture(scope="module", autouse=True)
def _runtimes() -> Iterator[None]:
    with tiny_runs.priced_runtimes():
        yield


def test_a_model_says_what_each_layer_can_do_and_what_not(run: Run) -> None:
    plan, facts = document(run("plan", *NET, "--json")), document(run("explain", *NET, "--json"))
    assert [layer["facts"]["layer"]["name"] for layer in facts["layers"]] == ["0", "2", "4"]
    for layer in facts["layers"]:
        place = layer["place"]
        keys = {c["key"] for c in plan["candidates"] if c["start"] <= place < c["end"]} - {f"{place}-{place + 1}:3x3g1"}
        assert {offer["facts"]["key"] for offer in layer["offers"]} == keys
    shown = run("explain", *NET).out
    assert "3 layers, 2 of them can be removed by themselves" in shown
    assert "Its layers were not timed yet" in shown
    one = run("explain", *NET[:1], "0", *NET[1:])
    assert one.code == 0, one.err
    assert "remove it: Without it, what follows would get another number of channels" in " ".join(one.out.split())


def test_rules_can_be_tried(run: Run) -> None:
    Path("wider.py").write_text(WIDER, encoding="utf-8")
    call = ("explain", "python:wider:net", "0", "--input", "3x9x9")
    assert "max_kernel" not in run(*call).out
    shown = " ".join(run(*call, "--set", "rules.max_kernel=3").out.split())
    assert "above max_kernel=3" in shown
    assert "rules.max_kernel in the recipe" in shown


def test_what_to_type_next_can_be_typed(run: Run) -> None:
    shown = run("explain", *NET).out
    (command, *_) = [line for line in shown.splitlines() if line.startswith("layermerge explain ")]
    again = run(*shlex.split(command, comments=True)[1:])
    assert again.code == 0, again.err
    assert "what can be done with it" in again.out


@pytest.fixture
def finished(run: Run, tmp_path: Path) -> Path:
    write_data(arrays())
    write_recipe(tmp_path / "mine.yaml", importance="calibrated", finetune="none")
    done = run("compress", "mine.yaml", "--allow-python", "--run-dir", "a")
    assert done.code == 0, done.err
    return tmp_path / "a"


def test_a_run_says_what_is_saved_and_lost(run: Run, finished: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = contents(finished)
    facts = document(run("explain", "a", "--json"))
    assert sum(layer["facts"]["latency_ms"] for layer in facts["layers"]) + facts["fixed_ms"] == pytest.approx(
        facts["original_ms"]
    )
    assert sum(layer["share"] for layer in facts["layers"]) <= 1 + 1e-9
    (offers,) = [layer["offers"] for layer in facts["layers"] if layer["facts"]["layer"]["name"] == "last.0"]
    (gone,) = [offer for offer in offers if offer["facts"]["key"] == "4-5:identity"]
    told = gone["facts"]["saved_ms"]
    for width in (60, 80, 120):
        monkeypatch.setenv("COLUMNS", str(width))
        lines = run("explain", "a", "last").out.splitlines()
        assert any(re.match(rf" *{re.escape(f'{told:.2f}')} ms .*removed$", line) for line in lines), lines
        overview = run("explain", "a").out.splitlines()
        table = overview[: overview.index("in the way")]
        assert all(re.search(rf"^ *{place}  ", "\n".join(table), re.MULTILINE) for place in range(5))
        assert all(len(line) <= width for line in table)
    assert contents(finished) == before


def test_a_run_without_tables_says_what_to_measure(run: Run) -> None:
    assert run("plan", *NET, "--run-dir", "b").code == 0
    result = run("explain", "b")
    assert (result.code, result.err) == (0, "")
    assert "\nlayermerge latency b " in result.out
    reasons = {
        each["reason"] for layer in document(run("explain", "b", "--json"))["layers"] for each in layer["obstacles"]
    }
    of_model = {
        each["reason"] for layer in document(run("explain", *NET, "--json"))["layers"] for each in layer["obstacles"]
    }
    assert reasons == of_model, "the plan's file tells what the plan does"
