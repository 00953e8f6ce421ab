"""A latency table and its loop, killed at random moments, are byte for byte what they are undisturbed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parent.parent


@pytest.mark.parametrize("kills", [6, pytest.param(50, marks=pytest.mark.slow)])
def test_killed_at_random_moments_it_ends_the_same(kills: int, tmp_path: Path) -> None:
    path = os.pathsep.join([*sys.path, str(TESTS)])
    command = [sys.executable, str(TESTS / "killed_latency.py"), str(tmp_path), str(kills)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, "PYTHONPATH": path})
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"killed {kills} ")
