"""Runs examinations side by side, each in a process of its own: a crash or a timeout ends one network, not the sweep."""

from __future__ import annotations

import multiprocessing
import signal
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess

from sweep.networks import Network
from sweep.results import Finding

Examine = Callable[[Network], Finding]


@dataclass(frozen=True)
class _Running:
    network: Network
    process: BaseProcess
    until: float


def run(networks: Iterable[Network], examine: Examine, *, jobs: int, limit: float) -> Iterator[Finding]:
    """Findings as they come; `limit` is the time that one network may take, in seconds.

    Processes are forked, so that libraries that are loaded here are loaded there.
    """
    waiting = list(networks)[::-1]
    running: dict[Connection, _Running] = {}
    context = multiprocessing.get_context("fork")
    try:
        while waiting or running:
            while waiting and len(running) < jobs:
                network = waiting.pop()
                ours, theirs = context.Pipe(duplex=False)
                process = context.Process(target=_work, args=(theirs, network, examine, limit), daemon=True)
                process.start()
                theirs.close()
                running[ours] = _Running(network, process, time.monotonic() + limit)
            ready = wait(list(running), timeout=0.5)
            for pipe, one in list(running.items()):
                if pipe in ready or time.monotonic() > one.until:
                    yield _ended(pipe, one, limit)
                    del running[pipe]
    finally:
        for one in running.values():
            one.process.kill()


def _work(pipe: Connection, network: Network, examine: Examine, limit: float) -> None:
    signal.alarm(int(limit) + 5)  # should the process that started this one be gone by then
    pipe.send(examine(network))


def _ended(pipe: Connection, one: _Running, limit: float) -> Finding:
    if not pipe.poll():
        one.process.kill()
        return Finding(name=one.network.name, failure=f"not done within {limit:.0f} seconds")
    try:
        finding: Finding = pipe.recv()
    except EOFError:
        one.process.join()
        return Finding(name=one.network.name, failure=f"its process ended with exit code {one.process.exitcode}")
    one.process.join()
    return finding
