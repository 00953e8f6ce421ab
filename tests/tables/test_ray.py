"""Runs `ray_cases.py` in a process and session of its own.

Ray replaces signal handlers and leaves threads behind; later tests fork workers, and the two do not go together in one process.
What is left of a cluster that ends badly is ended with it, and ends nothing else.
"""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

CASES = Path(__file__).with_name("ray_cases.py")


@pytest.mark.parametrize("speed", ["not slow", pytest.param("slow", marks=pytest.mark.slow)])
def test_ray_cases_pass(speed: str) -> None:
    if importlib.util.find_spec("ray") is None:  # found, not imported: its import alone is enough to do harm here
        pytest.skip("Ray is not installed")
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", "no:xdist", "-m", speed, str(CASES)]
    started = subprocess.Popen(
        command,
        cwd=CASES.parents[2],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        said, _ = started.communicate(timeout=900)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(started.pid, signal.SIGKILL)
    assert started.returncode == 0, said[-4000:]
