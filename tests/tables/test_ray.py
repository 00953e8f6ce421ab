"""Runs `ray_cases.py` apart: later tests fork workers, which does not go together with Ray in one process."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from apart import require_passing


def test_ray_cases_pass() -> None:
    if importlib.util.find_spec("ray") is None:  # found, not imported: its import alone is enough to do harm here
        pytest.skip("Ray is not installed")
    require_passing(Path(__file__).with_name("ray_cases.py"))
