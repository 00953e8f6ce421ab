"""Compresses in child processes that are killed at random moments, beside one that is not disturbed.

Children are forked, so that torch is imported once. Prints how many were killed while they were at work.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from pathlib import Path

import torch

import layermerge as lm
import tiny_runs


def run(directory: Path) -> None:
    with tiny_runs.priced_runtimes():
        how = tiny_runs.settings(runtime="priced-modules")  # exports nothing, which would take most of the time
        lm.compress(tiny_runs.network(), tiny_runs.task(), budget="70%", run_dir=directory, settings=how)


def fork(directory: Path) -> int:
    child = os.fork()
    if child == 0:
        code = 1
        try:
            run(directory)
            code = 0
        finally:
            os._exit(code)
    return child


def run_and_kill(directory: Path, file: str, changes: int, delay: float) -> bool:
    """Kills a run some time after a file changed so often; says whether it was still running then."""
    known, child = stamp(directory / file), fork(directory)
    while changes:
        if os.waitpid(child, os.WNOHANG) != (0, 0):
            return False
        if stamp(directory / file) != known:
            known, changes = stamp(directory / file), changes - 1
        time.sleep(0.0003)
    time.sleep(delay)
    os.kill(child, signal.SIGKILL)
    return os.WIFSIGNALED(os.waitpid(child, 0)[1])


def stamp(path: Path) -> tuple[int, int]:
    return (path.stat().st_mtime_ns, path.stat().st_size) if path.exists() else (0, 0)


def main() -> None:
    torch.set_num_threads(1)
    moments = random.Random()  # other moments every time
    undisturbed, killed = (Path(sys.argv[1]) / name for name in ("undisturbed", "killed"))
    run(undisturbed)  # here, so that children find everything imported
    files = ["importance.jsonl"] * 2 + ["layermerge/70pct/plain/checkpoint.safetensors"] * 2
    count = sum(run_and_kill(killed, file, moments.randint(1, 5), moments.uniform(0, 0.01)) for file in files)
    assert os.waitpid(fork(killed), 0)[1] == 0
    print("killed", count)


if __name__ == "__main__":
    main()
