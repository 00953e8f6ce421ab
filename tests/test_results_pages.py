"""Pages with figures say what the result files say; comparisons in them by hand."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
import torch
from benchmarks import claims as of_paper
from benchmarks import evidence, results_page
from benchmarks.claims import claims, standing, verdict_of
from benchmarks.equal_latency import beside
from benchmarks.evidence import Entry, Latencies, Made, Study
from benchmarks.missing import write_missing

from layermerge.errors import PlanError
from layermerge.files import read_document, write_document
from layermerge.reporting.score_change import ScoreChange
from layermerge.runs.context import Context
from layermerge.runs.directory import RunDirectory
from layermerge.runs.environment import environment_now
from layermerge.runs.records import Report
from layermerge.tasks.base import Score, bits_text

ROOT = Path(__file__).resolve().parents[1]


def test_no_page_says_anything_else_than_its_files() -> None:
    script = ROOT / "benchmarks" / "results_page.py"
    done = subprocess.run([sys.executable, script, "--check"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"run python benchmarks/results_page.py: {done.stdout}{done.stderr}"


def score(right: int) -> Score:
    """Of 1,000 images the first so many were right."""
    answers = torch.arange(1000) < right
    return Score("accuracy", right / 1000, 1000, None, None, "share", bits_text(answers))


def report(entry: Entry, right: int) -> Report:
    return Report(
        method=entry.method,
        budget=entry.budget,
        label=entry.label,
        budget_ms=1.0,
        stamp="",
        runtime="onnxruntime",
        threads=1,
        batch_size=1,
        original_ms=2.0,
        measured_ms=1.0,
        budget_kept=True,
        original_score=score(900),
        score=score(right),
        held_out=0.9,
        convs_before=20,
        convs_after=10,
        epochs=float(entry.epochs),
    )


RIGHT = {
    "original-100pct-5-epochs": 910,
    "layermerge-75pct-5-epochs": 905,
    "layermerge-55pct-5-epochs": 880,
    "layeronly-75pct-5-epochs": 870,
    "channels-75pct-5-epochs": 900,
    "layermerge-60pct-none": 850,
}
MS = {
    "original": 2.0,
    "original-100pct-5-epochs": 2.0,
    "layermerge-75pct-5-epochs": 1.5,
    "layermerge-55pct-5-epochs": 1.0,
    "layeronly-75pct-5-epochs": 1.49,
    "channels-75pct-5-epochs": 1.2,
    "layermerge-60pct-none": 1.25,
}


@pytest.fixture
def study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(evidence, "RESULTS", tmp_path)
    for entry in evidence.STUDY["resnet20"]:
        if entry.name in RIGHT:
            made = Made(report(entry, RIGHT[entry.name]), ((0.0, 0.5), (5.0, 0.9)), {})
            write_document(tmp_path / "resnet20" / f"{entry.name}.json", made)
    timed = Latencies(1, {"onnxruntime": MS, "openvino": MS}, environment_now())
    write_document(tmp_path / "resnet20" / "latencies.json", timed)
    return tmp_path


@pytest.mark.usefixtures("study")
def test_a_rival_stands_beside_layermerge_at_its_own_latency() -> None:
    lines = {line.split("|")[1].strip(): line for line in results_page.rivals("resnet20")[2:]}
    # 1.49 ms is a fiftieth of the way from 1.5 (905 of 1,000 images) to 1.0 ms (880): 904.5, against 870.
    assert "| 1.490 ms (1.34x) | 75% and 55% | +3.45 (" in lines["layeronly"]
    # 1.2 ms is three fifths of the way: 890, against 900.
    assert "| 1.200 ms (1.67x) | 75% and 55% | -1.00 (-1.55 to -0.45) |" in lines["channels"]


@pytest.mark.parametrize(
    ("rival_ms", "budgets", "right"),
    [
        (2.2, "100%", 910),  # slower than the control, which stands for all that is slower
        (1.75, "100% and 75%", 907.5),
        (1.5, "75%", 905),
        (0.99, "55%", 880),  # within two per cent of the fastest file
    ],
)
@pytest.mark.usefixtures("study")
def test_at_the_ends_of_the_curve_stands_one_file(rival_ms: float, budgets: str, right: float) -> None:
    found = dict(evidence.results_of("resnet20"))
    mine = beside(Entry("channels", "75%", 5), found, MS | {"channels-75pct-5-epochs": rival_ms})
    assert mine is not None
    assert mine.budgets == budgets
    assert mine.change.gain == pytest.approx((right - 900) / 1000)


@pytest.mark.usefixtures("study")
def test_nothing_stands_beside_a_rival_that_is_faster_than_every_file() -> None:
    found, taken = dict(evidence.results_of("resnet20")), MS | {"channels-75pct-5-epochs": 0.97}
    assert beside(Entry("channels", "75%", 5), found, taken) is None


def test_without_training_the_slowest_file_is_the_network_as_it_came(study: Path) -> None:
    rival = Entry("channels", "60%", 0)
    write_document(study / "resnet20" / f"{rival.name}.json", Made(report(rival, 840), (), {}))
    mine = beside(rival, dict(evidence.results_of("resnet20")), MS | {rival.name: 1.625})
    assert mine is not None
    assert (mine.budgets, mine.share) == ("100% and 60%", 0.5)
    # Halfway from 900, the original's own answers, to 850.
    assert mine.change.gain == pytest.approx(0.035)


@pytest.mark.usefixtures("study")
def test_trained_files_are_compared_with_the_control_of_the_same_epochs() -> None:
    lines = results_page.trained("resnet20")
    row = next(line for line in lines if line.startswith("| layermerge | 75%"))
    assert "| 1.500 ms (1.33x) | 1.500 ms (1.33x) | 90.50 | -0.50 (" in row
    assert not any("none" in line for line in lines)
    assert next(line for line in lines if line.startswith("| original")).endswith("| 91.00 |  | 10 |")
    assert "| layermerge | 60% | 1.250 ms (1.60x) | 1.250 ms (1.60x) | 85.00 | -5.00 (" in "\n".join(
        results_page.untrained("resnet20")
    )


def test_a_line_has_a_choice_before_and_after_training_and_its_control(study: Path) -> None:
    made = Made(report(Entry("layermerge", "55%", 0), 860), (), {})
    write_document(study / "resnet20" / "layermerge-55pct-none.json", made)
    timed = Latencies(1, {"onnxruntime": MS | {"layermerge-55pct-none": 1.02}}, environment_now())
    write_document(study / "resnet20" / "latencies.json", timed)
    lines = [line.partition(" | ")[2] for line in results_page.expected()[2:]]
    assert lines == [
        "2.00 -> 1.50 ms (1.33x) | 90.0 |  | 90.5 (5 epochs) | 91.0 |",
        "2.00 -> 1.25 ms (1.60x) | 90.0 | 85.0 |  |  |",
        "2.00 -> 1.00 ms (2.00x) | 90.0 | 86.0 | 88.0 (5 epochs) | 91.0 |",
    ]
    assert [line.partition(" | ")[2] for line in results_page.expected(every=False)[2:]] == lines[-1:]


def test_what_a_rival_does_not_reach_is_said_with_the_reason(study: Path) -> None:
    assert not any("do not reach" in line for line in results_page.rivals("resnet20"))
    name = Entry("depth", "94%", 0).name
    write_missing(study / "resnet20", name, PlanError("too slow"))
    assert results_page.rivals("resnet20")[-2:] == ["", "- depth at 94%: too slow."]


def test_a_table_says_where_its_latencies_and_its_networks_come_from(study: Path) -> None:
    here = replace(environment_now(), processor="A", commit="aaa", finished="2026-11-18T12:00:00+00:00")
    names = ["original-100pct-5-epochs", "layermerge-75pct-5-epochs", "layermerge-55pct-5-epochs"]
    for name, processor, commit in zip(names, "ABA", ("aaa", "bbb", "ccc"), strict=True):
        path = study / "resnet20" / f"{name}.json"
        made = read_document(path, Made)
        where = replace(here, processor=processor, commit=commit)
        write_document(path, replace(made, report=replace(made.report, environment=where)))
    write_document(study / "resnet20" / "latencies.json", Latencies(1, {"onnxruntime": MS, "openvino": MS}, here))
    assert results_page.trained("resnet20")[-1] == (
        "Latencies are of one run on A (aaa), one thread, 2026-11-18; networks were made on B (bbb) and A (ccc, aaa). "
        "In brackets: commits."
    )


@pytest.mark.usefixtures("study")
def test_only_what_stands_between_markers_changes() -> None:
    page = "before\n<!-- results: rivals resnet20 -->\nold\n<!-- end of results -->\nafter\n"
    filled = results_page.filled(page)
    assert filled.startswith("before\n<!-- results: rivals resnet20 -->\n\n| rival |")
    assert filled.endswith("|\n\n<!-- end of results -->\nafter\n")
    assert "old" not in filled
    assert results_page.filled(filled) == filled


@pytest.mark.usefixtures("study")
def test_a_claim_fails_where_one_rival_is_ahead_by_more_than_chance() -> None:
    """About 35 of 1,000 images ahead of LayerOnly, ten behind channel pruning, by more than its interval."""
    said = {line.split("|")[1].strip(): [cell.strip() for cell in line.split("|")[3:5]] for line in claims()[2:]}
    layeronly, channels = (
        said[f"more accurate than {name} at the same latency"] for name in ("LayerOnly", "channel pruning")
    )
    assert layeronly[0].startswith("resnet20 at 75% +3.45 (")
    assert layeronly[1] == "yes"
    assert channels[0].startswith("resnet20 at 75% -1.00 (")
    assert channels[1] == "**no**"
    assert said["joint choice beats one after the other"] == ["not run yet", "not known yet"]
    # 905 of 1,000 beside 910 of the control, five images lost and none won: the interval ends just below 0.
    assert said["a speed-up without loss"] == ["none yet", "not known yet"]


@pytest.mark.usefixtures("study")
def test_the_page_begins_with_what_was_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside the two rivals of the study, one network that is level and one that is behind by its KID."""
    of_unet = {
        "noise loss": [("layeronly at 85%", (0.001, -0.001, 0.003))],
        "KID": [("layeronly at 85%", (-0.002, -0.003, -0.001))],
    }
    monkeypatch.setattr(of_paper, "orderings", lambda figure, _: of_unet[figure])
    told = standing()
    assert told[0].endswith("ahead in 1, level in 1, behind in 2 of 4 comparisons. Behind:")
    assert told[2].startswith("- channels on resnet20 at 75%, 5 epochs: -1.00 (-1.")
    assert told[3:] == ["- layeronly at 85% on the small U-Net: -2.0 (-3.0 to -1.0) in KID x 1000 of samples"]
    monkeypatch.setattr(of_paper, "beside", lambda *_: None)
    monkeypatch.setattr(of_paper, "orderings", lambda *_: [])
    assert standing() == ["not run yet"]


@pytest.mark.parametrize("network", evidence.STUDY)
def test_every_choice_is_made_before_anything_is_trained(network: str) -> None:
    entries = evidence.STUDY[network]
    assert len(set(entries)) == len(entries)
    first = next(place for place, entry in enumerate(entries) if entry.epochs)
    chosen = {(entry.method, entry.budget) for entry in entries[:first]}
    assert {(entry.method, entry.budget) for entry in entries[first:] if entry.method != "original"} <= chosen


def test_a_network_that_was_chosen_elsewhere_is_trained_as_it_was_chosen(study: Path, tmp_path: Path) -> None:
    """Only where its file tells the whole choice, and only until tables are measured here."""
    for method in ("channels", "sequential"):
        made = Made(report(Entry(method, "60%", 0), 800), (), {})
        write_document(study / "resnet20" / f"{method}-60pct-none.json", made)
    here = RunDirectory(tmp_path / "run")
    context, place = cast("Context", SimpleNamespace(directory=here)), Study("resnet20", {}, here.path)
    wanted = Entry("layermerge", "60%", 5)
    recorded = read_document(study / "resnet20" / "layermerge-60pct-none.json", Made)
    assert place.chosen_elsewhere(context, wanted) == recorded
    others = [
        Entry("layermerge", "60%", 0),
        *(Entry(method, "60%", 5) for method in ("depth", "channels", "sequential")),
    ]
    assert [place.chosen_elsewhere(context, entry) for entry in others] == [None] * 4
    known = here.choice("layermerge", "60%")
    known.parent.mkdir(parents=True)
    known.touch()
    assert place.chosen_elsewhere(context, wanted) is None


def change(low: float, high: float) -> ScoreChange:
    return ScoreChange((low + high) / 2, "paired", low, high)


@pytest.mark.parametrize(
    ("changes", "verdict"),
    [
        ([change(0.01, 0.02), change(0.001, 0.3)], "yes"),
        ([change(0.01, 0.02), change(-0.01, 0.3)], "within chance"),
        ([change(0.01, 0.02), change(-0.3, -0.01)], "**no**"),
    ],
)
def test_one_comparison_may_spoil_a_claim(changes: list[ScoreChange], verdict: str) -> None:
    assert verdict_of(changes) == verdict
