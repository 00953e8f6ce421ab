"""A command that is ended at any moment, in any way, loses nothing and ends with the same files."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parents[1]


@pytest.mark.slow
def test_whenever_and_however_a_run_is_ended_it_goes_on_to_the_same_files(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(TESTS / "killed_verbs.py"), str(tmp_path), "150", "1"],
        env=os.environ | {"PYTHONPATH": str(TESTS), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=5000,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert sum(json.loads(done.stdout).values()) >= 150
