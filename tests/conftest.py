"""Settings that every test shares: one thread, fixed seeds, reproducible property tests, names that stay."""

from __future__ import annotations

import random
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, settings

from command_line import TINY, Result, Run
from layermerge import cli
from layermerge.tables.clock import ClockSettings

torch.set_num_threads(1)

FIXED = settings(deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("test", FIXED, max_examples=60)
settings.register_profile("sweep", FIXED, max_examples=300)
settings.load_profile("test")


@pytest.fixture(autouse=True)
def _fixed_seeds() -> None:
    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)


@pytest.fixture
def quick_clocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Latency tables of two passes a row, for tests in which their values do not matter."""
    quick = ClockSettings(warm_up=1, least_rounds=2, most_rounds=2, seconds=0)
    for clock in ("WHOLE_CLOCK", "WORKLOAD_CLOCK", "PACE_CLOCK"):
        monkeypatch.setattr(f"layermerge.tables.latency.{clock}", quick)


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
