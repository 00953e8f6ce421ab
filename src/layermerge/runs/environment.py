"""Environment: on what, with what and when a result was measured, for whoever reads it later."""

from __future__ import annotations

import os
import platform
import subprocess
from datetime import UTC, datetime
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch

from layermerge import __version__
from layermerge.runs.records import Environment

_SERVING = ("onnx", "onnxruntime", "openvino", "tensorrt")


def environment_now() -> Environment:
    """Of this machine and this moment."""
    versions = {"layermerge": __version__, "python": platform.python_version(), "torch": torch.__version__}
    for package in _SERVING:
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            continue
    finished = datetime.now(UTC).isoformat(timespec="seconds")
    return Environment(
        finished, processor_name(), os.cpu_count() or 1, platform.platform(terse=True), versions, commit()
    )


def processor_name(described: Path = Path("/proc/cpuinfo")) -> str:
    """As its maker calls it, where the system tells."""
    try:
        lines = described.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next((name for name in names if name), "") or platform.processor() or platform.machine()


@cache
def commit() -> str | None:
    """Of the clone that the package is in, marked where it was changed since; None where it was installed otherwise."""
    package = Path(__file__).resolve().parents[1]
    tracked = _git(package, "ls-files", "__init__.py")  # a package in a folder of somebody else's clone is not
    return _git(package, "describe", "--always", "--dirty", "--exclude=*") if tracked else None


def _git(place: Path, *words: str) -> str | None:
    try:
        done = subprocess.run(["git", *words], cwd=place, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() or None
