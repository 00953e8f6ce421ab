"""Memory: what calibration needs above the network, in processes of their own."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).with_name("memory_run.py")


def run(channels: int, side: int, count: int) -> dict[str, Any]:
    call = [sys.executable, str(SCRIPT), *map(str, (channels, side, count))]
    found: dict[str, Any] = json.loads(subprocess.run(call, capture_output=True, text=True, check=True).stdout)
    return found


def test_memory_is_bounded_however_many_images_there_are() -> None:
    """What the conv reads at every place would take 1.3 GB, and what both networks compute several hundred MB."""
    found = run(8, 32, 800)
    assert found["forms"] == ["kernel"]
    assert found["grown_mb"] < 250


@pytest.mark.slow
@pytest.mark.parametrize(("channels", "form"), [(160, "kernel"), (170, "mixing")])
def test_the_largest_fit_needs_less_than_a_gigabyte(channels: int, form: str) -> None:
    """4,000 unknowns, the most that are fitted whole, and 4,250, which are not."""
    found = run(channels, 12, 100)
    assert found["forms"] == [form]
    assert found["grown_mb"] < 1000
