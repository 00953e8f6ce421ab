"""Runs `ray_cases.py` in a process of its own.

Ray replaces signal handlers and leaves threads behind; later tests fork workers, and the two do not go together in one process.
"""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

CASES = Path(__file__).with_name("ray_cases.py")


def test_ray_cases_pass() -> None:
    if importlib.util.find_spec("ray") is None:  # found, not imported: its import alone is enough to do harm here
        pytest.skip("Ray is not installed")
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", str(CASES)]
    done = subprocess.run(command, cwd=CASES.parents[2], capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]
