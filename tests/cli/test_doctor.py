"""The doctor: says what is there and what works, by trying it; one that cannot work does not take the others down."""

from __future__ import annotations

import json
import os
import re
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from torch import nn

from command_line import Run, document
from layermerge import __version__
from layermerge.cli import checkup, doctor
from layermerge.runtimes.base import Pass
from layermerge.runtimes.registry import RUNTIMES
from layermerge.runtimes.torch_eager import TorchEager
from layermerge.tracing.inputs import Inputs
from processes import children


class Crashing(TorchEager):
    name = "crashing"

    def prepare(self, module: nn.Module, inputs: Inputs, *, small: bool = False) -> Pass:
        del module, inputs, small
        os.abort()


class Endless(TorchEager):
    name = "endless"

    def prepare(self, module: nn.Module, inputs: Inputs, *, small: bool = False) -> Pass:
        del module, inputs, small
        print("a compiler may print what it likes")
        if os.fork() == 0:  # as a compiler that it starts
            time.sleep(600)
        time.sleep(600)
        return lambda: None


class Failing(TorchEager):
    name = "failing"

    def prepare(self, module: nn.Module, inputs: Inputs, *, small: bool = False) -> Pass:
        del module, inputs, small
        raise OSError("\nno such library\nand more")


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the runtime that compiles; that one may take half a minute."""
    monkeypatch.delitem(RUNTIMES, "torch-compile")
    monkeypatch.setattr(checkup.clock_noise, "__defaults__", (0.05,))
    monkeypatch.setattr(checkup.try_runtimes, "__defaults__", (60.0,))


def by_name(trials: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {trial["runtime"]: trial for trial in trials}


def test_the_document_says_what_is_there_and_what_works(run: Run) -> None:
    facts = document(run("doctor", "--json"))
    assert (facts["layermerge"], facts["python"]) == (__version__, ".".join(map(str, sys.version_info[:3])))
    assert facts["torch"]["problem"] is None
    assert facts["packages"]["export"]["onnxruntime"]["fine"] is True
    trials = by_name(facts["runtimes"])
    assert {name for name, trial in trials.items() if trial["works"]} >= {"torch", "onnxruntime", "openvino"}
    assert "needs an NVIDIA GPU" in trials["tensorrt"]["reason"] or trials["tensorrt"]["works"]
    assert 1 <= facts["processors"]["usable_cpus"] <= facts["processors"]["cpus"]
    clock = facts["clock"]
    assert 0 < clock["p10_ms"] <= clock["median_ms"] <= clock["p90_ms"]
    assert clock["verdict"]


def test_a_person_sees_it_at_a_glance(run: Run) -> None:
    result = run("doctor")
    assert (result.code, result.err) == (0, "")
    lines = [line.split() for line in result.out.splitlines()]
    assert ["ok", "layermerge", __version__] in lines
    assert any(line[:2] == ["ok", "onnxruntime"] for line in lines)
    assert any(line[1:2] == ["clock"] for line in lines)


def test_runtimes_that_fail_crash_or_never_end(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    for name in list(RUNTIMES):
        if name != "torch":
            monkeypatch.delitem(RUNTIMES, name)
    for kind in (Failing, Crashing, Endless):
        monkeypatch.setitem(RUNTIMES, kind.name, kind)
    before = children()
    trials = {trial.runtime: trial for trial in checkup.try_runtimes(3.0)}
    assert children() == before
    assert trials["torch"].works is True
    assert (trials["failing"].works, trials["failing"].reason) == (False, "OSError: no such library")
    assert trials["crashing"].works is False
    assert "its process died (exit code -6)" in str(trials["crashing"].reason)
    assert trials["endless"].works is None
    assert capfd.readouterr() == ("", "")


NOTED = """Metadata-Version: 2.4
Name: layermerge
Version: 1
Requires-Dist: numpy>=99
Provides-Extra: models
Requires-Dist: no-such-package>=1; extra == "models"
Provides-Extra: quality
Requires-Dist: torchmetrics>=99.1; extra == "quality"
Provides-Extra: plots
Requires-Dist: matplotlib<100,>=3.8; extra == "plots"
Provides-Extra: dev
Requires-Dist: layermerge[plots]; extra == "dev"
"""


def test_packages_that_are_missing_or_old(run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "layermerge-1.dist-info").mkdir()
    (tmp_path / "layermerge-1.dist-info" / "METADATA").write_text(NOTED, encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    out = run("doctor").out
    assert "no-such-package is missing; try: pip install 'layermerge[models]'" in out
    assert re.search(r"torchmetrics \S+ does not fit >=99.1; try: pip install 'layermerge\[quality\]'", out)
    assert re.search(r"^ok +plots +matplotlib", out, re.MULTILINE)
    assert "dev" not in out.split()


def test_without_torch_it_says_so_and_fails(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(name: str) -> None:
        raise OSError(f"lib{name}.so: cannot open\nmore")

    monkeypatch.setattr(doctor, "import_module", fail)
    result = run("doctor")
    assert (result.code, result.err) == (1, "")
    assert "cannot be used: OSError: libtorch.so: cannot open" in result.out
    assert "runtimes" not in result.out
    result = run("doctor", "--json")
    assert (result.code, json.loads(result.out)["torch"]["version"]) == (1, None)


@pytest.mark.parametrize(
    ("p90", "verdict"),
    [(1.05, "steady"), (1.2, "a little noisy"), (2.0, "busy machine: tables will take longer, do not choose now")],
)
def test_the_verdict_follows_the_spread(p90: float, verdict: str) -> None:
    assert checkup.ClockNoise(100, 1.0, 1.0, p90).verdict.startswith(verdict)


def test_hints_where_threads_would_disturb_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.get_num_threads", lambda: 1000)
    monkeypatch.setenv("OMP_WAIT_POLICY", "ACTIVE")
    first, second = checkup.processors().hints
    assert "set OMP_NUM_THREADS=" in first
    assert "set OMP_WAIT_POLICY=PASSIVE" in second
    monkeypatch.setattr("torch.get_num_threads", lambda: 1)
    assert checkup.processors().hints == ()
