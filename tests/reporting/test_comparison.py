"""Comparisons: every field of the table and of the figures, from reports made by hand; pictures where they can be drawn."""

from __future__ import annotations

import csv
import importlib.util
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from layermerge.reporting.comparison import comparison_table, write_comparison
from layermerge.runs.directory import RunDirectory
from layermerge.runs.records import Report
from layermerge.tables.cost import TableCost
from layermerge.tasks.base import Score
from layermerge.tuning.recovery import Epoch, write_recovery
from reporting import report_runs

COST = TableCost(
    entries=27, scored=19, ruled_out=3, failed=1, importance_seconds=61.4, workloads=13, latency_seconds=12.6
)
PNG = b"\x89PNG\r\n\x1a\n"


def report(method: str, budget: str, measured_ms: float, value: float, **more: Any) -> Report:
    return report_runs.report(method, budget, measured_ms, value, **{"predicted_ms": None, **more})


REPORTS = [
    report("original", "100%", 20.0, 0.91, budget_ms=20.0, convs_after=36),
    report("layermerge", "60%", 11.7654, 0.8912, predicted_ms=11.5, cost=COST),
    report("channels", "60%", 8.0, 0.85, score=Score("accuracy", 0.85, 1000)),
]
NOTES = ["depth at 60%: no choice of candidates runs in 12.0000 ms"]


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip("|").split("|")]


def tables(text: str) -> list[list[list[str]]]:
    """The rows of each Markdown table, its heading first."""
    found: list[list[list[str]]] = [[]]
    for line in text.splitlines():
        if line.startswith("|") and not line.startswith("|---"):
            found[-1].append(cells(line))
        elif found[-1] and not line.startswith("|"):
            found.append([])
    return [table for table in found if table]


def test_the_table_field_by_field() -> None:
    text = comparison_table(REPORTS, NOTES)
    lines = text.splitlines()
    assert lines[0] == (
        "Original: 20.000 ms on onnxruntime (2 thread(s), batch 4), accuracy 0.9000 [0.8800, 0.9170] on 1000; 36 convs."
    )
    accuracy, cost = tables(text)
    assert accuracy == [
        ["method", "budget", "measured ms", "predicted", "speed-up", "accuracy (%)", "95 % interval", "convs"],
        ["original", "100%", "20.000", "-", "1.00x", "91.00", "89.00 - 92.00", "36"],
        ["layermerge", "60%", "11.765", "11.500", "1.70x", "89.12", "87.12 - 90.12", "20"],
        ["channels", "60%", "8.000", "-", "2.50x", "85.00", "-", "20"],
    ]
    assert cost == [
        ["method", "entries", "scored", "ruled out", "failed", "workloads timed", "latency s", "importance s"],
        ["layermerge", "27", "19", "3", "1", "13", "13", "61"],
    ]
    assert lines[-1] == f"- {NOTES[0]}"
    assert text.endswith("\n")
    assert comparison_table(REPORTS) == text.replace(f"\n- {NOTES[0]}\n", "")


def directory(root: Path, reports: list[Report] = REPORTS) -> RunDirectory:
    """A run directory with the recovery curve of each report, and nothing else."""
    made = RunDirectory(root)
    for each in reports:
        rows = [
            Epoch(epoch=float(epoch), step=7 * epoch, lr=0.1, train_loss=1.0, score=0.5 + epoch / 10, seconds=1.0)
            for epoch in range(3)
        ]
        write_recovery(made.variant(each.method, each.budget, each.label).path, rows)
    return made


def test_the_figures_field_by_field(tmp_path: Path) -> None:
    write_comparison(directory(tmp_path / "out"), REPORTS, NOTES)
    with (tmp_path / "out" / "comparison-plain.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["method"] for row in rows] == ["original", "layermerge", "channels"]
    merged = dict(rows[1])
    assert float(merged.pop("high")) == pytest.approx(0.9012)
    assert float(merged.pop("low")) == pytest.approx(0.8712)
    assert merged == {
        "method": "layermerge",
        "budget": "60%",
        "budget_ms": "12.0",
        "predicted_ms": "11.5",
        "measured_ms": "11.7654",
        "speed_up": "1.6999",
        "score": "0.8912",
        "convs": "20",
        "entries": "27",
        "scored": "19",
        "ruled_out": "3",
        "failed": "1",
        "workloads": "13",
        "latency_seconds": "12.6",
        "importance_seconds": "61.4",
    }
    assert (rows[2]["low"], rows[2]["high"], rows[2]["predicted_ms"]) == ("", "", "")
    assert (rows[0]["convs"], rows[0]["entries"], rows[0]["budget_ms"]) == ("36", "0", "20.0")


def test_networks_that_were_not_trained_have_no_recovery_to_draw(tmp_path: Path) -> None:
    written = write_comparison(RunDirectory(tmp_path), REPORTS, NOTES)
    assert {path.stem.partition("-")[0] for path in written} == {"comparison", "accuracy"}


def test_table_and_pictures_are_written_and_named(tmp_path: Path) -> None:
    out = tmp_path / "out"
    reports = [replace(each, label="longer") for each in REPORTS]
    written = write_comparison(directory(out, reports), reports, NOTES)
    pictures = {f"{name}-longer.{suffix}" for name in ("accuracy", "recovery") for suffix in ("png", "svg")}
    assert {path.name for path in written} == pictures | {"comparison-longer.md", "comparison-longer.csv"}
    assert set(written) == {path for path in out.iterdir() if path.is_file()}
    assert (out / "comparison-longer.md").read_text(encoding="utf-8") == comparison_table(REPORTS, NOTES)
    assert all(path.read_bytes().startswith(PNG) for path in written if path.suffix == ".png")
    drawn = (out / "accuracy-longer.svg").read_text(encoding="utf-8")
    assert all(f"<!-- {name} -->" in drawn for name in ("original, fine-tuned", "layermerge", "channels"))
    drawn = (out / "recovery-longer.svg").read_text(encoding="utf-8")
    assert all(f"<!-- {name} -->" in drawn for name in ("layermerge 60%", "channels 60%", "held-out score (%)"))


def test_without_matplotlib_the_table_is_still_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *rest: None if name == "matplotlib" else find(name, *rest)
    )
    written = write_comparison(directory(tmp_path / "out"), REPORTS, NOTES)
    assert [path.name for path in written] == ["comparison-plain.md", "comparison-plain.csv"]
    assert set(written) == {path for path in (tmp_path / "out").iterdir() if path.is_file()}


def test_the_control_alone_can_be_shown(tmp_path: Path) -> None:
    """Where every budget was out of reach."""
    written = write_comparison(directory(tmp_path / "out"), REPORTS[:1], NOTES)
    assert len(written) == 6
    assert len(tables(comparison_table(REPORTS[:1], NOTES))[0]) == 2
