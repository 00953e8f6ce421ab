"""The command line's `plan --run-dir`, `latency` and `solve`: on a device that has two files, and every refusal in one line."""

from __future__ import annotations

import json
import re
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from command_line import SCRIPT, TINY, Run, document, one_line, program
from layermerge.runs.directory import RunDirectory
from layermerge.tables.table import Row, Table, TableWriter

PLAN, ORIGINAL, LATENCY, IMPORTANCE = "plan.json", "original.onnx", "latency.jsonl", "importance.jsonl"
PLANNED = ("plan", "python:tiny:net", "--input", "3x8x8", "--run-dir", "a")


pytestmark = pytest.mark.usefixtures("quick_clocks")


def write_importance(directory: Path) -> None:
    """Untouched candidates are left out; the more a candidate takes away, the more it costs."""
    plan = RunDirectory(directory).read_plan()
    with TableWriter(directory / IMPORTANCE, {"kind": "importance"}) as writer:
        for entry in plan.candidates:
            if not entry.untouched:
                lost = len(entry.layers) - len(entry.kept)
                writer.append(Row(key=entry.key, value=-0.1 * len(entry.layers) - 0.3 * lost))


def write_latency(directory: Path, whole_ms: float = 10.0, scale: float = 1.0) -> None:
    """Milliseconds that are known: a tenth of a kernel's taps."""
    record = RunDirectory(directory).read_plan()
    with TableWriter(directory / LATENCY, {"kind": "latency", "network": record.fingerprint}) as writer:
        writer.append(Row(key="whole network", value=whole_ms))
        for each in {each.key: each for each in record.workloads.values() if each}.values():
            high, wide = each.spec.kernel if each.spec else (0, 0)
            writer.append(Row(key=each.key, value=scale * high * wide / 10))


@pytest.fixture
def planned(run: Run, tmp_path: Path) -> Path:
    """A run directory with a plan and both tables: three 3x3 convs of 0.9 ms, 5x5 of 2.5 ms, 7x7 of 4.9 ms, fixed 7.3 ms."""
    if not PLANS:
        assert run(*PLANNED, "--json").code == 0
        PLANS.append((tmp_path / "a" / PLAN).read_text())
    (tmp_path / "a").mkdir(exist_ok=True)
    (tmp_path / "a" / PLAN).write_text(PLANS[0])
    write_latency(tmp_path / "a")
    write_importance(tmp_path / "a")
    return tmp_path / "a"


PLANS: list[str] = []
"""The plan that all tests here share, once the first has made it."""


# -- from one machine to another


def test_a_device_needs_two_files_and_not_the_model(tmp_path: Path) -> None:
    home, device = tmp_path / "home", tmp_path / "device"
    home.mkdir()
    device.mkdir()
    (home / "tiny.py").write_text(TINY, encoding="utf-8")
    done = program(SCRIPT, *PLANNED, "--json", cwd=home)
    assert (done.returncode, done.stderr) == (0, "")
    assert len(json.loads(done.stdout)["layers"]) == 3
    assert sorted(path.name for path in (home / "a").iterdir()) == [ORIGINAL, PLAN, "recipe.yaml"]

    for name in (PLAN, ORIGINAL):
        shutil.copy(home / "a" / name, device)
    assert program(sys.executable, "-c", "import tiny", cwd=device).returncode != 0
    done = program(SCRIPT, "latency", ".", "--runtime", "onnxruntime", "--json", cwd=device)
    assert (done.returncode, done.stderr) == (0, "")
    facts = json.loads(done.stdout)
    # 3x3, 5x5, 7x7 on three channels with a ReLU and without, 3x3 and 5x5 on four: those that the plan needs.
    plan = RunDirectory(device).read_plan()
    assert facts["entries"] == sum(workload is not None for workload in plan.workloads.values())
    rows = Table.read(device / LATENCY).rows.values()
    assert facts["measured"] == sum(not row.in_network for row in rows) - 1 < facts["entries"]
    assert any(row.in_network for row in rows), "onnxruntime tells what single layers take"
    assert facts["bounded"] == sum(row.status == "slower" for row in rows)
    assert facts["original_ms"] > 0
    assert facts["error_ms"] >= 0
    assert 0 <= facts["fixed_ms"] <= facts["original_ms"]

    shutil.copy(device / LATENCY, home / "a")
    write_importance(home / "a")
    done = program(SCRIPT, "solve", "a", "--budget", "100%", "--json", cwd=home)
    assert (done.returncode, done.stderr) == (0, "")
    chosen = json.loads(done.stdout)
    assert chosen["latency_ms"] <= facts["original_ms"]
    assert chosen["candidates"] == ["0-1:3x3g1", "1-2:3x3g1", "2-3:3x3g1"]


def test_measuring_again_measures_nothing_and_prints_the_same(run: Run, tmp_path: Path) -> None:
    run(*PLANNED)
    first = run("latency", "a")
    assert (first.code, first.err) == (0, "")
    assert re.search(r"^original network +\d+\.\d{3} ± \d+\.\d{3} ms ", first.out, re.MULTILINE)
    assert re.search(r"^operations timed +\d+", first.out, re.MULTILINE)
    assert f"\n{Path('a') / LATENCY} " in first.out
    assert "\nlayermerge importance a " in first.out
    before = (tmp_path / "a" / LATENCY).read_bytes()
    assert run("latency", "a") == first
    assert (tmp_path / "a" / LATENCY).read_bytes() == before


def test_a_plan_of_another_method_is_solved_as_such(run: Run, tmp_path: Path) -> None:
    run(*PLANNED, "--method", "layeronly")
    write_latency(tmp_path / "a")
    write_importance(tmp_path / "a")
    chosen = document(run("solve", "a", "--budget", "83%", "--json"))
    assert chosen["candidates"] == ["0-1:3x3g1", "1-2:identity", "2-3:identity"]
    assert chosen["importance"] == pytest.approx(1 + 2 * 2.718281828**-0.4)


def test_weights_go_along_when_asked(run: Run, tmp_path: Path) -> None:
    import numpy as np
    import onnx
    from onnx import numpy_helper

    from layermerge.models import load_model

    for options, expected in (((), False), (("--with-weights",), True)):
        run(*PLANNED, *options)
        weight: Any = load_model("python:tiny:net").module.get_parameter("0.weight").detach().numpy()
        stored = [numpy_helper.to_array(tensor) for tensor in onnx.load(tmp_path / "a" / ORIGINAL).graph.initializer]
        same = [tensor.shape == weight.shape and np.allclose(tensor, weight, atol=1e-6) for tensor in stored]
        assert any(same) == expected


# -- solve


@pytest.mark.usefixtures("planned")
@pytest.mark.parametrize(
    ("budget", "latency", "candidates"),
    [
        ("100%", 10.0, ["0-1:3x3g1", "1-2:3x3g1", "2-3:3x3g1"]),
        ("1x", 10.0, ["0-1:3x3g1", "1-2:3x3g1", "2-3:3x3g1"]),
        ("82%", 8.2, None),
        ("8.2ms", 8.2, None),
    ],
)
def test_a_budget(run: Run, budget: str, latency: float, candidates: list[str] | None) -> None:
    chosen = document(run("solve", "a", "--budget", budget, "--json"))
    assert set(chosen) == {"latency_ms", "error_ms", "importance", "estimated", "candidates", "convs_kept"}
    assert chosen["estimated"] is None, "no whole network was scored"
    assert 0 <= chosen["error_ms"] < 0.2 * latency
    assert chosen["latency_ms"] == pytest.approx(latency)
    if candidates:
        assert chosen["candidates"] == candidates
        assert chosen["importance"] == pytest.approx(3.0)


@pytest.mark.usefixtures("planned")
def test_a_budget_in_words(run: Run) -> None:
    result = run("solve", "a", "--budget", "100%")
    assert (result.code, result.err) == (0, "")
    lines = [line.split() for line in result.out.splitlines()]
    assert ["latency", "10.000", "ms", "10.000", "ms", *["predicted", "10.000", "±", "0.000", "ms"]] in lines
    assert ["importance", "3.0000"] in [line[:2] for line in lines]
    assert ["convolutions", "3", "3"] in [line[:3] for line in lines]
    assert "\nlayermerge finetune a --budget 100%" in result.out


@pytest.mark.usefixtures("planned")
@pytest.mark.parametrize("width", [60, 80, 120])
def test_the_frontier_is_whole_at_every_width(run: Run, monkeypatch: pytest.MonkeyPatch, width: int) -> None:
    points = document(run("solve", "a", "--json"))["points"]
    known = {f"{point['latency_ms']:.3f}": f"{point['importance']:.4f}" for point in points}
    monkeypatch.setenv("COLUMNS", str(width))
    lines = run("solve", "a").out.splitlines()
    rows = [line.split() for line in lines if re.match(r" *(\d+%|smallest) ", line)]
    assert len(rows) > 3
    for row in rows:
        assert row[2] == "ms"
        assert known[row[1]] in row
    assert max(len(line) for line in lines if not line.startswith("layermerge ")) <= width


@pytest.mark.usefixtures("planned")
def test_the_frontier_is_listed(run: Run) -> None:
    result = run("solve", "a")
    assert (result.code, result.err) == (0, "")
    assert "original 10.000 ms, of which fixed 7.300 ms" in result.out
    assert "smallest" in result.out
    listed = document(run("solve", "a", "--json"))
    points = listed["points"]
    assert [point["latency_ms"] for point in points] == sorted(point["latency_ms"] for point in points)
    assert points[-1]["latency_ms"] == pytest.approx(10.0)
    assert points[0]["latency_ms"] == pytest.approx(8.2)


@pytest.mark.usefixtures("planned")
def test_objective_and_tick(run: Run) -> None:
    assert document(run("solve", "a", "--objective", "delta", "--budget", "100%", "--json"))["importance"] == 0.0
    assert document(run("solve", "a", "--tick", "0.5", "--json"))["tick_ms"] == 0.5


# -- what is refused


@pytest.mark.usefixtures("planned")
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--budget", "60"), "cannot read the budget '60'; write a share"),
        (("--budget", "abc%"), "cannot read the budget 'abc%'"),
        (("--budget", "-3ms"), "cannot read the budget '-3ms'"),
        (("--budget", "0%"), "the budget '0%' must be above zero"),
        (("--budget", ""), "cannot read the budget ''"),
        (("--budget", "60%"), "the smallest reachable latency is 8.2000 ms, 82.00% of the original; ask for at least"),
        (("--tick", "0"), "tick"),
        (("--tick", "-1"), "tick"),
        (("--tick", "nan"), "tick"),
    ],
)
def test_bad_requests_are_one_line_and_exit_code_2(run: Run, arguments: tuple[str, ...], message: str) -> None:
    line = one_line(run("solve", "a", *arguments))
    assert line.startswith("error: ")
    assert message in line


@pytest.mark.parametrize(
    ("missing", "message"),
    [
        (PLAN, "plan.json' does not exist; is 'a' a run directory?"),
        (LATENCY, "table 'a/latency.jsonl' cannot be read: No such file or directory"),
        (IMPORTANCE, "table 'a/importance.jsonl' cannot be read: No such file or directory"),
    ],
)
def test_missing_tables(run: Run, planned: Path, missing: str, message: str) -> None:
    (planned / missing).unlink()
    assert message in one_line(run("solve", "a", "--json"))


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ({"key": "extra", "value": float("nan")}, "bad row"),
        ({"key": "extra", "value": float("inf")}, "bad row"),
        ({"key": "0-2:5x5g1", "value": 1.0}, "two rows for '0-2:5x5g1'"),
    ],
)
def test_bad_rows(run: Run, planned: Path, line: dict[str, Any], message: str) -> None:
    with (planned / IMPORTANCE).open("a") as file:
        file.write(json.dumps(line) + "\n")
    assert message in one_line(run("solve", "a"))


def test_negative_latencies_are_refused(run: Run, planned: Path) -> None:
    (planned / LATENCY).unlink()
    write_latency(planned, scale=-1.0)
    assert "is -0.9, which is not a latency" in one_line(run("solve", "a"))


def test_a_whole_network_that_takes_no_time_is_refused(run: Run, planned: Path) -> None:
    (planned / LATENCY).unlink()
    write_latency(planned, whole_ms=0.0)
    assert "value of 'whole network' is 0" in one_line(run("solve", "a"))


def test_an_unfinished_table(run: Run, planned: Path) -> None:
    path = planned / LATENCY
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:-1]))
    assert "measure it to the end first" in one_line(run("solve", "a"))


def test_a_table_of_another_network(run: Run, planned: Path) -> None:
    run("plan", "python:zoo:FunctionalRelu", "--input", "3x8x8", "--run-dir", "b")
    shutil.copy(planned / LATENCY, "b")
    write_importance(Path("b"))
    assert "'b/latency.jsonl' was measured for another network than 'b/plan.json'" in one_line(run("solve", "b"))
    line = one_line(run("latency", "b"))
    assert "was measured otherwise (" in line
    assert "network: " in line


def test_another_batch_or_number_of_threads(run: Run) -> None:
    run(*PLANNED)
    run("latency", "a")
    assert "batch: 1 there, 2 now" in one_line(run("latency", "a", "--batch", "2"))
    assert "threads: 1 there, 2 now" in one_line(run("latency", "a", "--threads", "2"))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--runtime", "tflite"), "unknown runtime 'tflite'; choose one of torch, "),
        (("--runtime", "tensorrt"), "runtime 'tensorrt' needs an NVIDIA GPU"),
        (("--runtime", "torch"), "the recipe names code to run ('python:tiny:net'); allow it with --allow-python"),
    ],
)
def test_runtimes_that_cannot_measure_a_run(run: Run, arguments: tuple[str, ...], message: str) -> None:
    run(*PLANNED)
    assert message in one_line(run("latency", "a", *arguments))
    assert not (Path("a") / LATENCY).exists()


@pytest.mark.parametrize(
    "arguments",
    [("latency", "a", "--batch", "0"), ("latency", "a", "--threads", "0"), ("solve", "a", "--objective", "log")],
)
def test_usage_errors(run: Run, arguments: tuple[str, ...]) -> None:
    result = run(*arguments)
    assert (result.code, result.out) == (2, "")
    assert arguments[2] in result.err
    assert "Traceback" not in result.err


def test_a_torn_network_is_one_line(run: Run) -> None:
    run(*PLANNED)
    path = Path("a") / ORIGINAL
    path.write_bytes(path.read_bytes()[:100])
    assert "'a/original.onnx' is not the network that 'a/plan.json' was written with" in one_line(run("latency", "a"))
    path.unlink()
    assert "original.onnx' does not exist; copy it along with 'plan.json'" in one_line(run("latency", "a"))


def test_a_directory_that_is_none(run: Run) -> None:
    assert "plan.json' does not exist; is 'absent' a run directory?" in one_line(run("latency", "absent"))
    assert "plan.json' does not exist; is 'absent' a run directory?" in one_line(run("solve", "absent"))
