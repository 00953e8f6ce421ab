"""Ctrl-C, sent as a terminal sends it: one line that says how to go on, and a run that does."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pytest
import yaml

import tiny_runs
from command_line import DATA, Run, one_line
from layermerge.models import names
from processes import PATIENCE, children, soon
from tiny_runs import arrays, contents

TESTS = Path(__file__).parents[1]
PLACE = Path("layermerge/70pct/plain")
STAGE = re.compile(r"(\d+/\d+ |network|layermerge at )")
CHECKPOINT = PLACE / "checkpoint.safetensors"


def start(*command: str, cwd: Path) -> subprocess.Popen[str]:
    """In a group of its own, as a terminal has it: Ctrl-C reaches every process in it."""
    path = os.pathsep.join([str(TESTS), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1", "LAYERMERGE_DEBUG": ""}
    return subprocess.Popen(
        [sys.executable, *command],
        cwd=cwd,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def ctrl_c(process: subprocess.Popen[str]) -> None:
    os.killpg(process.pid, signal.SIGINT)


def ended(process: subprocess.Popen[str]) -> tuple[int, str, list[str]]:
    out, err = process.communicate(timeout=4 * PATIENCE)
    assert "Traceback" not in err, err
    assert soon(lambda: not children(process.pid))
    return process.returncode, out, err.splitlines()


def interrupted(arguments: list[str], cwd: Path, when: Callable[[], bool]) -> list[str]:
    """Interrupts a command at that moment; gives the arguments that it says go on."""
    process = start(str(TESTS / "priced_cli.py"), *arguments, cwd=cwd)
    assert soon(lambda: when() or process.poll() is not None, 4 * PATIENCE)
    ctrl_c(process)
    code, out, lines = ended(process)
    assert (code, out) == (1, ""), lines
    assert [line for line in lines if not line.startswith("epoch ") and not STAGE.match(line)] == lines[-1:]
    said, _, command = lines[-1].partition("To go on: ")
    assert said == "interrupted; what was done is kept. "
    name, *rest = shlex.split(command)
    assert name == "layermerge"
    return rest


def measured(path: Path) -> list[dict[str, Any]]:
    """A table's rows, but for the time they took and the order that workers finished in."""
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return sorted(({**row, "seconds": 0} for row in rows), key=lambda row: str(row.get("key")))


def lines_in(path: Path) -> int:
    return path.read_bytes().count(b"\n") if path.exists() else 0


def test_an_interrupted_run_goes_on_to_the_same_end(run: Run, tmp_path: Path) -> None:
    np.savez(tmp_path / "data.npz", **arrays())  # type: ignore[arg-type]
    recipe = {
        "model": "python:tiny_runs:network",
        "data": DATA,
        "runtime": "priced-modules",  # exports nothing, which would take most of the time
        "budgets": ["70%"],
        "importance": {"steps": 5, "batch_size": 16, "lr": 0.01},
        "finetune": {"epochs": 4, "batch_size": 16, "lr": 0.02, "checkpoint_steps": 1},
    }
    (tmp_path / "my recipe.yaml").write_text(yaml.safe_dump(recipe), encoding="utf-8")  # a name that needs quotes
    place = tmp_path / "a"
    options = ["--recipe", "my recipe.yaml", "--allow-python", "--json"]
    table = place / "importance.jsonl"
    # Two workers first, then none: neither changes a row.
    first = ["importance", "a", *options, "--workers", "2"]
    assert interrupted(first, tmp_path, lambda: lines_in(table) >= 3) == first
    kept = table.read_bytes()
    compress = ["compress", "my recipe.yaml", "--allow-python", "--run-dir", "a", "--json"]
    assert interrupted(compress, tmp_path, lambda: (place / CHECKPOINT).exists()) == compress
    assert table.read_bytes().startswith(kept)
    assert not (place / PLACE / "model.safetensors").exists()

    with tiny_runs.priced_runtimes():
        for command in (compress, [part if part != "a" else "b" for part in compress]):
            result = run(*command)
            assert result.code == 0, result.err
    assert measured(table) == measured(tmp_path / "b" / "importance.jsonl")
    resumed, undisturbed = contents(place), contents(tmp_path / "b")
    # The teacher's answers are kept by whole epochs: those of the one that was interrupted are asked for again when wanted.
    assert resumed.keys() <= undisturbed.keys()
    assert all(name.startswith("answers/") for name in undisturbed.keys() - resumed.keys())
    for name in ("model.safetensors", "solution.json"):
        assert resumed[str(PLACE / name)] == undisturbed[str(PLACE / name)]


SLOW_TO_END = """
import sys, time
from layermerge.cli import app, main

@app.app.command()
def linger():
    try:
        print("ready", flush=True)
        time.sleep(100)
    finally:
        print("closing", flush=True)
        time.sleep(100)

sys.argv = ["layermerge", "linger"]
main()
"""

SLOW_TO_LEAVE = """
import atexit, sys, time
from layermerge.cli import app, main

@app.app.command()
def linger():
    print("ready", flush=True)
    time.sleep(100)

@atexit.register
def leave():
    print("closing", flush=True)
    time.sleep(100)

sys.argv = ["layermerge", "linger"]
main()
"""


@pytest.mark.parametrize("script", [SLOW_TO_END, SLOW_TO_LEAVE], ids=["in the command", "in the interpreter"])
def test_a_second_one_ends_at_once(script: str, tmp_path: Path) -> None:
    process = start("-c", script, cwd=tmp_path)
    assert process.stdout is not None
    for word in ("ready", "closing"):
        assert process.stdout.readline().strip() == word
        time.sleep(0.05)
        ctrl_c(process)
    code, _, lines = ended(process)
    assert (code, lines) == (1, ["interrupted; what was done is kept. To go on: layermerge linger"])


FORKED = """
import os, sys, time
from layermerge.cli import app, main

@app.app.command()
def linger():
    child = os.fork()
    if child == 0:
        time.sleep(1)
        os._exit(0)
    try:
        print("ready", flush=True)
        time.sleep(100)
    finally:
        print("child", os.waitpid(child, 0)[1], flush=True)

sys.argv = ["layermerge", "linger"]
main()
"""


def test_processes_of_a_command_leave_it_to_their_parent(tmp_path: Path) -> None:
    process = start("-c", FORKED, cwd=tmp_path)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    ctrl_c(process)
    code, out, lines = ended(process)
    assert (code, out, len(lines)) == (1, "child 0\n", 1)


BEGIN = """
import sys, time
from layermerge.cli import app, main
"""

SWALLOWED = (
    BEGIN
    + """
@app.app.command()
def linger():
    try:
        print("ready", flush=True)
        time.sleep(100)
    except KeyboardInterrupt:
        print("went on")
"""
)

WRAPPED = (
    BEGIN
    + """
from layermerge.errors import TraceError

@app.app.command()
def linger():
    try:
        print("ready", flush=True)
        time.sleep(100)
    except KeyboardInterrupt as error:
        print("went on", flush=True)
        raise TraceError("torch.export cannot trace the model") from error
"""
)

IN_A_DESTRUCTOR = (
    BEGIN
    + """
class Library:
    def __del__(self):
        print("ready", flush=True)
        time.sleep(100)

@app.app.command()
def linger():
    Library()
    print("went on", flush=True)
    time.sleep(100)
"""
)

IN_AN_EXPORT = (
    BEGIN
    + """
from layermerge.tracing.uninterrupted import uninterrupted

@app.app.command()
def linger():
    with uninterrupted():
        print("ready", flush=True)
        end = time.monotonic() + 1
        while time.monotonic() < end:
            time.sleep(0.01)
        print("went on", flush=True)
    time.sleep(100)
"""
)


@pytest.mark.parametrize("script", [SWALLOWED, WRAPPED, IN_A_DESTRUCTOR, IN_AN_EXPORT])
def test_it_is_heard_whatever_a_library_makes_of_it(script: str, tmp_path: Path) -> None:
    """Swallowed, wrapped, raised where nothing can be raised, or where a library would not survive it."""
    process = start("-c", script + 'sys.argv = ["layermerge", "linger"]\nmain()', cwd=tmp_path)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    time.sleep(0.05)
    ctrl_c(process)
    assert ended(process) == (1, "went on\n", ["interrupted; what was done is kept. To go on: layermerge linger"])


def test_it_is_one_line_wherever_it_comes_from(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(names._SOURCES, "timm", lambda _: signal.raise_signal(signal.SIGINT))
    before = signal.getsignal(signal.SIGINT)
    try:
        line = one_line(run("plan", "timm:resnet34", "--pin", "layer4.*"), code=1)
    finally:
        signal.signal(signal.SIGINT, before)
    assert line == "interrupted; what was done is kept. To go on: layermerge plan timm:resnet34 --pin 'layer4.*'"


def test_a_model_that_raises_it_is_an_error_of_the_model(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(_: str) -> NoReturn:
        raise KeyboardInterrupt

    monkeypatch.setitem(names._SOURCES, "python", interrupt)
    assert one_line(run("plan", "python:tiny:net")).startswith("error: the model's own code raised KeyboardInterrupt")


def test_a_command_leaves_the_handling_of_signals_as_it_was(run: Run) -> None:
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGALRM), sys.unraisablehook
    assert run("--version").code == 0
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGALRM), sys.unraisablehook) == before
