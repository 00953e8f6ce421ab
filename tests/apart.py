"""Runs a file of tests in a process and session of its own.

For what does not go together with other tests in one process: Ray replaces signal handlers and leaves threads behind. What
is left of it is ended with it, and ends nothing else.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def require_passing(cases: Path, patience: float = 900) -> None:
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", "no:xdist", str(cases)]
    started = subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    )
    try:
        said, _ = started.communicate(timeout=patience)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(started.pid, signal.SIGKILL)
    assert started.returncode == 0, said[-4000:]
