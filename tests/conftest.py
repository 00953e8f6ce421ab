"""Settings that every test shares: one thread, fixed seeds, reproducible property tests, names that stay."""

from __future__ import annotations

import os
import random
import runpy
import sys
from collections.abc import Callable, Iterator
from functools import cache, wraps
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, settings

from command_line import TINY, Result, Run
from layermerge import cli
from layermerge.runtimes.base import Runtime
from layermerge.runtimes.clock import Clocks, ClockSettings

torch.set_num_threads(1)

# `make test-processors` limits torch's oneDNN, which reads this when it first computes. OpenVINO has a copy of its own, which
# would read it too and then computes infinities for some networks. In xdist's workers only: they get it from the main process.
if "PYTEST_XDIST_WORKER" in os.environ and "ONEDNN_MAX_CPU_ISA" in os.environ:
    torch.nn.functional.conv2d(torch.zeros(1, 3, 8, 8), torch.zeros(4, 3, 3, 3))
    del os.environ["ONEDNN_MAX_CPU_ISA"]
# xdist tells its workers a width; tests see what is printed into a file, or state a width themselves.
os.environ.pop("COLUMNS", None)
EXAMPLES = Path(__file__).resolve().parents[1] / "examples"

FIXED = settings(deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("test", FIXED, max_examples=40)
settings.register_profile("sweep", FIXED, max_examples=1000)
settings.load_profile("test")


TOGETHER = ("tests/diffusion/", "tests/planning/", "tests/tracing/")
"""Tests that trace the same published networks, seconds each: they share a process and its traces."""


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """With --dist loadfile, a process is given a file of tests at a time, and those that belong together at once."""
    if config.getvalue("dist") != "loadfile":
        return None
    from xdist.scheduler import LoadFileScheduling

    class Scheduling(LoadFileScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            return "together" if nodeid.startswith(TOGETHER) else nodeid.partition("::")[0]

    return Scheduling(config, log)


@pytest.fixture(autouse=True)
def _fixed_seeds() -> None:
    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)


@pytest.fixture(scope="session", autouse=True)
def _one_table_of_onnx_operators() -> Iterator[None]:
    """Torch builds its table of ONNX operators again for each export, half of what a small one takes: here once a process."""
    export = torch.onnx.export

    @cache
    def share() -> None:
        from torch.onnx._internal.exporter import (
            _registration,
        )  # not above: it takes a second, and not all tests export

        table: Any = _registration.ONNXRegistry
        table.from_torchlib = staticmethod(cache(table.from_torchlib))

    @wraps(export)
    def export_sharing(*args: Any, **kwargs: Any) -> Any:
        share()
        return export(*args, **kwargs)

    torch.onnx.export = export_sharing
    yield
    torch.onnx.export = export


@pytest.fixture
def quick_clocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runtimes that time two passes, for tests in which latencies do not matter."""
    quick = ClockSettings(warm_up=1, least_rounds=2, most_rounds=2, seconds=0)
    monkeypatch.setattr(Runtime, "clocks", Clocks.alike(quick))


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Callable[..., str]:
    """Runs a script of examples/ in this process, as a new one imports torch for seconds; returns what it prints."""
    monkeypatch.chdir(tmp_path)

    def call(name: str, *arguments: str) -> str:
        monkeypatch.setattr(sys, "argv", [name, *arguments])
        capsys.readouterr()
        runpy.run_path(str(EXAMPLES / name), run_name="__main__")
        return capsys.readouterr().out

    return call


def pytest_make_parametrize_id(val: object, argname: str) -> str | None:
    """Bytes are named after their argument: a time stamp in them would give each worker other tests to run."""
    return argname if isinstance(val, bytes) else None


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Run:
    """Runs the command as its entry point does, in a directory that holds `tiny.py`."""
    (tmp_path / "tiny.py").write_text(TINY, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delitem(sys.modules, "tiny", raising=False)

    def call(*arguments: str) -> Result:
        monkeypatch.setattr(sys, "argv", ["layermerge", *arguments])
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            cli.main()
        out, err = capsys.readouterr()
        code = ended.value.code
        return Result(code if isinstance(code, int) else 0, out, err)

    return call
