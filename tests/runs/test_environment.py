"""Environment: what a result says of the machine, as the system tells it, and nothing invented where it does not."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import torch

from layermerge import __version__
from layermerge.runs import environment
from layermerge.runs.environment import environment_now, processor_name


def test_it_tells_when_on_what_and_with_what() -> None:
    now = environment_now()
    assert datetime.now(UTC) - datetime.fromisoformat(now.finished) < timedelta(minutes=5)
    assert now.cores == os.cpu_count()
    assert {
        "layermerge": __version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
    }.items() <= now.versions.items()


def test_a_processor_has_the_name_that_the_system_gives(tmp_path: Path) -> None:
    described = tmp_path / "cpuinfo"
    described.write_text("processor\t: 0\nmodel name\t: Some CPU @ 3 GHz\n", encoding="utf-8")
    assert processor_name(described) == "Some CPU @ 3 GHz"
    assert processor_name(tmp_path / "missing") == (platform.processor() or platform.machine())


def test_the_commit_is_that_of_the_clone_and_of_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "other" / "venv" / "layermerge" / "runs"
    package.mkdir(parents=True)
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@b"]
    subprocess.run([*git, "init", "-q"], cwd=tmp_path / "other", check=True)
    subprocess.run([*git, "commit", "-q", "--allow-empty", "-m", "x"], cwd=tmp_path / "other", check=True)
    monkeypatch.setattr(environment, "__file__", str(package / "environment.py"))
    (package.parent / "__init__.py").touch()
    assert environment.commit.__wrapped__() is None  # installed inside somebody else's clone
    subprocess.run([*git, "add", "."], cwd=tmp_path / "other", check=True)
    subprocess.run([*git, "commit", "-q", "-m", "y"], cwd=tmp_path / "other", check=True)
    told = subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=tmp_path / "other", check=True, capture_output=True, text=True
    )
    own = environment.commit.__wrapped__()
    assert own is not None
    assert told.stdout.startswith(own)
    (package.parent / "__init__.py").write_text("changed", encoding="utf-8")
    assert environment.commit.__wrapped__() == f"{own}-dirty"


def test_without_git_there_is_no_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent / "nowhere"))
    assert environment.commit.__wrapped__() is None
