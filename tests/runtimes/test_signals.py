"""Signals still reach their handlers after a runtime was loaded and let go: Ctrl-C ends a run in order, a child may end."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import faulthandler, gc, os, signal, sys
import torch
from layermerge.runtimes.exporting import export
from layermerge.runtimes.registry import make_runtime
from layermerge.tracing.inputs import Inputs

faulthandler.enable()  # gives handlers a stack of their own
runtime = make_runtime(sys.argv[1])
module, example = torch.nn.Conv2d(3, 4, 3), torch.zeros(1, 3, 8, 8)
first, second = (runtime.prepare(module, Inputs.of(example), small=True) for _ in range(2))
if sys.argv[2:]:
    export(module, sys.argv[2], example)  # loads runtimes of its own to check the file
del first  # what it may have put in place of the second's goes with it
gc.collect()
del second
gc.collect()
heard = []
signal.signal(signal.SIGUSR1, lambda *_: heard.append(True))
os.kill(os.getpid(), signal.SIGUSR1)
print("heard" if heard else "lost")
"""


@pytest.mark.parametrize("given", [["onnxruntime"], ["openvino", "model.onnx"]])
def test_a_signal_reaches_its_handler_after_a_runtime_is_gone(given: list[str], tmp_path: Path) -> None:
    command = [sys.executable, "-c", SCRIPT, *given]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.stdout == "heard\n", (done.returncode, done.stderr[-2000:])
    assert done.returncode == 0
