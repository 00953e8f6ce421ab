"""Runs `doctor_cases.py` apart: the doctor forks, and lets runtimes crash."""

from __future__ import annotations

from pathlib import Path

from apart import require_passing


def test_doctor_cases_pass() -> None:
    require_passing(Path(__file__).with_name("doctor_cases.py"))
