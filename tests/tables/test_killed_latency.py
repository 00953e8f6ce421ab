"""A latency table and its loop, killed at random moments: byte for byte as undisturbed, or no row lost or doubled."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parent.parent


@pytest.mark.parametrize(
    ("kind", "kills"),
    [("priced", 6), *(pytest.param(kind, 50, marks=pytest.mark.slow) for kind in ("priced", "real"))],
)
def test_killed_at_random_moments_it_ends_the_same(kind: str, kills: int, tmp_path: Path) -> None:
    path = os.pathsep.join([*sys.path, str(TESTS)])
    command = [sys.executable, str(TESTS / "killed_latency.py"), str(tmp_path), str(kills), kind]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, "PYTHONPATH": path})
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"killed {kills} ")
