"""Measures a latency table and closes the loop in child processes that are killed at random moments.

With prices instead of a clock all that a run leaves is determined: byte for byte. With a real runtime (`real`) times differ,
so what is compared is that every row that was there stays as it was, and that none is there twice. Children are forked, so
that torch is imported once; each continues where the one before was killed. Prints how many were killed at work.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import time
import warnings
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import torch

import layermerge as lm
import zoo
from context_runtime import ContextRuntime
from fake_runtime import QUICK
from layermerge.errors import InfeasibleBudget
from layermerge.runtimes.base import Runtime
from layermerge.tables.latency import LatencyTable
from layermerge.tables.table import Table

NAME, BUDGETS = "inverted", ("70%", "55%")
MOMENTS = random.Random()  # other moments every time


class Slow(ContextRuntime):
    """Takes real time too, beside what its clock says: `pause` seconds before each pass, in which it can be killed."""

    def __init__(self, pause: float) -> None:
        super().__init__()
        self.pause = pause

    def prepare(self, *given: object, **more: object) -> object:  # type: ignore[override]
        time.sleep(self.pause)
        return super().prepare(*given, **more)  # type: ignore[arg-type]

    def record(self, *given: object, **more: object) -> object:  # type: ignore[override]
        time.sleep(self.pause)
        return super().record(*given, **more)  # type: ignore[arg-type]


def run(directory: Path, runtime: str | Runtime) -> LatencyTable:
    trace = zoo.traced(NAME)
    plan = lm.plan(trace)
    scores = {one.key: -0.1 * len(one.layers) for one in plan.candidates if one.changes}
    path = directory / "latency.jsonl"
    table = lm.measure_latency(plan, trace=trace, runtime=runtime, path=path, clock=QUICK)
    for budget in BUDGETS:
        with suppress(InfeasibleBudget):  # as real machines have it
            met = lm.meet_budget(trace, plan, table.fresh, scores, budget=budget, runtime=runtime, clock=QUICK)
            (directory / f"{budget}.txt").write_text(repr(met))
    return table


def fork(work: Callable[[], object]) -> int:
    child = os.fork()
    if child == 0:
        code = 1
        try:
            warnings.simplefilter("ignore")  # of lines that were truncated
            work()
            code = 0
        finally:
            os._exit(code)
    return child


def killed(work: Callable[[], object], longest: float) -> bool:
    """Whether the child was still at work when it was killed."""
    child = fork(work)
    time.sleep(MOMENTS.uniform(0.0, longest))
    os.kill(child, signal.SIGKILL)
    return os.WIFSIGNALED(os.waitpid(child, 0)[1])


def to_the_end(work: Callable[[], object]) -> None:
    assert os.waitpid(fork(work), 0)[1] == 0


def with_prices(place: Path, wanted: int) -> tuple[int, int]:
    undisturbed = place / "undisturbed"
    undisturbed.mkdir()
    run(undisturbed, Slow(0.0))
    expected = {path.name: path.read_bytes() for path in undisturbed.iterdir() if path.suffix in (".jsonl", ".txt")}
    assert len(expected) == 1 + len(BUDGETS)
    kills = number = 0
    while kills < wanted:
        directory = place / str(number)
        directory.mkdir(exist_ok=True)

        def work(directory: Path = directory) -> None:
            run(directory, Slow(0.004))

        if killed(work, 1.0):
            kills += 1
            if MOMENTS.random() > 0.1:
                continue
            to_the_end(work)
        for name, content in expected.items():
            assert (directory / name).read_bytes() == content, (directory, name)
        number += 1
    return kills, number


def with_a_real_runtime(place: Path, wanted: int) -> tuple[int, int]:
    kills = number = 0
    before: list[bytes] = []
    while kills < wanted:
        directory = place / f"real-{number}"
        directory.mkdir(exist_ok=True)

        def work(directory: Path = directory) -> None:
            run(directory, "onnxruntime")

        was_killed = killed(work, 4.0)
        kills += was_killed
        before = _only_added(directory, before)
        if was_killed and kills < wanted and MOMENTS.random() > 0.05:
            continue
        to_the_end(work)
        rows = _only_added(directory, before)
        to_the_end(work)
        assert _only_added(directory, rows) == rows, "a finished run adds nothing"
        _require_complete(directory)
        number, before = number + 1, []
    return kills, number


def _only_added(directory: Path, before: list[bytes]) -> list[bytes]:
    path = directory / "latency.jsonl"
    lines = path.read_bytes().splitlines(keepends=True) if path.exists() else []
    whole = [line for line in lines if line.endswith(b"\n")]
    assert whole[: len(before)] == before, "a row was lost or changed"
    return whole


def _require_complete(directory: Path) -> None:
    """`Table.read` refuses rows that are there twice."""
    table = Table.read(directory / "latency.jsonl")
    trace = zoo.traced(NAME)
    wanted = lm.measure_latency(lm.plan(trace), trace=trace, runtime="onnxruntime", path=directory / "latency.jsonl")
    assert all(workload is None or workload.key in table for workload in wanted.workloads.values())
    assert any(row.loop for row in table.rows.values())


def main() -> None:
    torch.set_num_threads(1)
    place, wanted, kind = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # progress
    kills, finished = (with_prices if kind == "priced" else with_a_real_runtime)(place, wanted)
    print("killed", kills, "finished", finished)


if __name__ == "__main__":
    main()
