"""The command line: the only place that parses, prints and exits. One file per verb."""

from __future__ import annotations

from importlib import import_module

from layermerge.cli.app import order_verbs, run

VERBS = (
    "demo",
    "compress",
    "plan",
    "explain",
    "latency",
    "importance",
    "solve",
    "finetune",
    "merge",
    "export",
    "compare",
    "report",
    "sample",
    "quality",
    "doctor",
)
"""In the order of use."""
for _verb in VERBS:
    import_module(f"layermerge.cli.{_verb}")
order_verbs(VERBS)


def main() -> None:
    """Runs the command that the arguments name."""
    run()
