"""The command line: the only place that parses, prints and exits."""

from __future__ import annotations

from layermerge.cli import demo as _demo  # noqa: F401
from layermerge.cli import doctor as _doctor  # noqa: F401
from layermerge.cli import reports as _reports  # noqa: F401
from layermerge.cli import runs as _runs  # noqa: F401
from layermerge.cli import samples as _samples  # noqa: F401
from layermerge.cli import stages as _stages  # noqa: F401
from layermerge.cli.app import run


def main() -> None:
    """Runs the command that the arguments name."""
    run()
