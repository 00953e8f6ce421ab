"""The command line: the only place that parses, prints and exits. One file a verb."""

from __future__ import annotations

from importlib import import_module

from layermerge.cli.app import run

VERBS = (
    "demo",
    "plan",
    "latency",
    "importance",
    "solve",
    "finetune",
    "merge",
    "export",
    "compress",
    "compare",
    "report",
    "sample",
    "quality",
    "doctor",
)
for _verb in VERBS:
    import_module(f"layermerge.cli.{_verb}")


def main() -> None:
    """Runs the command that the arguments name."""
    run()
