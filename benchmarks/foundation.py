"""What tracing, planning and merging cost in time and memory, each in a process of its own.

Run: python benchmarks/foundation.py [MODEL]. Linux only: memory is the resident size, sampled while the stage runs, above
what the process held before it. For tracing that includes torch's own compiler, which loads when a model is captured; the
same work on a tiny network shows how much that is, and is taken off.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

STAGES = ("trace and plan", "merge")
TINY = "tiny"


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@contextmanager
def watched(facts: dict[str, Any]) -> Iterator[None]:
    """Notes how long the body took, and the largest resident size above that at its start."""
    floor = peak = resident_bytes()
    done = threading.Event()

    def sample() -> None:
        nonlocal peak
        while not done.wait(0.002):
            peak = max(peak, resident_bytes())

    watcher = threading.Thread(target=sample)
    watcher.start()
    start = time.perf_counter()
    try:
        yield
    finally:
        facts["seconds"] = time.perf_counter() - start
        done.set()
        watcher.join()
        facts["added_bytes"] = peak - floor


def measure(stage: str, name: str) -> dict[str, Any]:
    import torch
    from torch import nn

    import layermerge as lm
    from layermerge.models import load_model

    model: nn.Module = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 8, 3, padding=1))
    inputs = torch.randn(2, 3, 16, 16)
    if name != TINY:
        model, inputs = load_model(name).module, torch.randn(2, 3, 224, 224)
    facts: dict[str, Any] = {"model_bytes": sum(t.numel() * t.element_size() for t in model.state_dict().values())}
    with watched(facts):
        trace = lm.trace(model.eval(), inputs)
        menu = lm.plan(trace)
    if stage == "merge":
        net = lm.rewrite(trace, _shallow_solution(menu))
        with watched(facts):
            fast = lm.merge(net)
        facts["convs"] = [len(menu.layers), sum(isinstance(part, nn.Conv2d) for part in fast.modules())]
    return facts


def _shallow_solution(menu: Any) -> list[Any]:
    """A solution of the kind that a 60 % budget gives: short ranges, about half the convs removed or merged."""
    rng, chosen, place = random.Random(0), [], 0
    while place < len(menu.layers):
        options = [c for c in menu.candidates if c.start == place and c.end - place <= 3]
        options = [c for c in options if c.spec is None or max(c.spec.kernel) <= 5]
        chosen.append(rng.choice(options) if options else next(c for c in menu.candidates if c.start == place))
        place = chosen[-1].end
    return chosen


def in_own_process(stage: str, name: str) -> dict[str, Any]:
    command = [sys.executable, __file__, "--measure", stage, name]
    facts: dict[str, Any] = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    return facts


def main() -> None:
    if sys.argv[1:2] == ["--measure"]:
        print(json.dumps(measure(*sys.argv[2:4])))
        return
    name = sys.argv[1] if len(sys.argv) > 1 else "timm:resnet34"
    print(f"{name}\n{'stage':16} {'seconds':>8} {'added memory':>14} {'in model sizes':>15}")
    for stage in STAGES:
        floor, facts = in_own_process(stage, TINY), in_own_process(stage, name)
        added = facts["added_bytes"] - floor["added_bytes"]
        convs = "convs {} -> {}".format(*facts["convs"]) if "convs" in facts else ""
        print(
            f"{stage:16} {facts['seconds']:8.1f} {added / 2**20:10.0f} MiB {added / facts['model_bytes']:14.1f}x  {convs}"
        )


if __name__ == "__main__":
    main()
