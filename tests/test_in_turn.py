"""Files are timed in turn: whose place it is in the turn does not tell in the result."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import torch
from benchmarks.in_turn import milliseconds

from layermerge.runtimes.base import Pass, Runtime
from layermerge.runtimes.clock import ClockSettings, Sample
from layermerge.tracing.inputs import Inputs

OWN = {"a.onnx": 1.0, "b.onnx": 2.0}


class SlowAtFirst:
    """Takes a file's own time, three times as long for what was built first, and a tenth more with every later build."""

    def __init__(self) -> None:
        self.built = 0

    def prepare_file(self, path: Path, inputs: Inputs) -> Pass:
        del inputs
        self.built += 1
        factor = 3.0 if self.built == 1 else 1 + self.built / 10
        return lambda: OWN[path.name] * factor

    def time(self, runs: Mapping[str, Pass], settings: ClockSettings) -> dict[str, Sample]:
        del settings
        return {name: Sample(cast("Any", run()), 0.0, 1) for name, run in runs.items()}


def test_the_first_build_is_not_counted_and_others_are_averaged() -> None:
    runtime = SlowAtFirst()
    files = {name.removesuffix(".onnx"): Path(name) for name in OWN}
    found = milliseconds(cast("Runtime", runtime), files, Inputs.of(torch.zeros(1)))
    assert runtime.built == 5
    # After the one ahead: a and b at 1.2 and 1.3 times their own time, then at 1.4 and 1.5.
    assert found == {"a": 1.3, "b": 2.8}
