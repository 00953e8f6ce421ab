"""Measuring leaves a user's process as it was, its threads and its random numbers; seen in a fresh one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

SCRIPT = """
import numpy as np, torch
import layermerge as lm
from layermerge.runtimes.clock import ClockSettings

quick = ClockSettings(warm_up=1, least_rounds=2, most_rounds=2, seconds=0)
torch.set_num_threads(2)
net = torch.nn.Sequential(torch.nn.Conv2d(3, 3, 3, padding=1), torch.nn.ReLU(), torch.nn.Conv2d(3, 3, 3, padding=1)).eval()
trace = lm.trace(net, torch.randn(2, 3, 8, 8))
plan = lm.plan(trace)
scores = {entry.key: -0.1 for entry in plan.candidates}


def state():
    return [torch.get_num_threads(), torch.get_rng_state().tolist(), str(np.random.get_state())]


before = state()
table = lm.measure_latency(plan, trace=trace, runtime="torch", path="latency.jsonl", clock=quick)
assert state() == before, ("measure_latency", torch.get_num_threads())
lm.meet_budget(trace, plan, table, scores, budget="100000%", runtime="torch", clock=quick)
assert state() == before, ("meet_budget", torch.get_num_threads())
print("as it was")
"""


def test_measuring_leaves_threads_and_random_numbers_as_they_were(tmp_path: Path) -> None:
    command = [sys.executable, "-W", "ignore", "-c", SCRIPT]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.stdout == "as it was\n", done.stderr[-2000:]
