"""Measures a latency table and closes the loop in child processes that are killed at random moments, byte for byte.

Prices instead of a clock, so that all that a run leaves is determined. Children are forked, so that torch is imported once;
each goes on where the one before was killed. Prints how many were killed at work.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import time
import warnings
from pathlib import Path

import torch

import layermerge as lm
import zoo
from context_runtime import ContextRuntime
from fake_runtime import QUICK

NAME, BUDGETS = "inverted", ("70%", "55%")


def run(directory: Path, pause: float = 0.0) -> None:
    """`pause` seconds before each pass, so that there is time to be killed in."""
    trace = zoo.traced(NAME)
    plan, runtime = lm.plan(trace), Slow(pause)
    scores = {one.key: -0.1 * len(one.layers) for one in plan.candidates if one.changes}
    table = lm.measure_latency(plan, trace=trace, runtime=runtime, path=directory / "latency.jsonl")
    for budget in BUDGETS:
        met = lm.meet_budget(trace, plan, table.fresh, scores, budget=budget, runtime=runtime, clock=QUICK)
        (directory / f"{budget}.txt").write_text(repr(met))


class Slow(ContextRuntime):
    """Takes real time too, beside what its clock says."""

    def __init__(self, pause: float) -> None:
        super().__init__()
        self.pause = pause

    def prepare(self, *given: object, **more: object) -> object:  # type: ignore[override]
        time.sleep(self.pause)
        return super().prepare(*given, **more)  # type: ignore[arg-type]

    def record(self, *given: object, **more: object) -> object:  # type: ignore[override]
        time.sleep(self.pause)
        return super().record(*given, **more)  # type: ignore[arg-type]


def fork(directory: Path) -> int:
    child = os.fork()
    if child == 0:
        code = 1
        try:
            warnings.simplefilter("ignore")  # of lines that were truncated
            run(directory, pause=0.004)
            code = 0
        finally:
            os._exit(code)
    return child


def main() -> None:
    torch.set_num_threads(1)
    place, wanted, moments = Path(sys.argv[1]), int(sys.argv[2]), random.Random()  # other moments every time
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # progress
    undisturbed = place / "undisturbed"
    undisturbed.mkdir()
    run(undisturbed)
    expected = {path.name: path.read_bytes() for path in undisturbed.iterdir() if path.suffix in (".jsonl", ".txt")}
    killed = number = 0
    while killed < wanted:
        directory = place / str(number)
        directory.mkdir(exist_ok=True)
        child = fork(directory)
        time.sleep(moments.uniform(0.0, 1.0))
        os.kill(child, signal.SIGKILL)
        if os.WIFSIGNALED(os.waitpid(child, 0)[1]):
            killed += 1
            if moments.random() > 0.1:
                continue
            assert os.waitpid(fork(directory), 0)[1] == 0
        for name, content in expected.items():
            assert (directory / name).read_bytes() == content, (directory, name)
        number += 1
    print("killed", killed, "finished", number)


if __name__ == "__main__":
    main()
