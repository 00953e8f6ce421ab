"""Checkup: what this machine can do, found out by trying it.

In: nothing. Out: which runtimes work here, what there is to compute with, how steady the clock is.
Guarantees: nothing that a runtime does wrong, down to a crash, ends more than its own trial.
"""

from __future__ import annotations

import faulthandler
import multiprocessing
import os
import signal
import sys
import time
import warnings
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from layermerge.errors import LayerMergeError, first_line
from layermerge.runtimes.base import RuntimeSettings
from layermerge.runtimes.registry import RUNTIMES, make_runtime
from layermerge.runtimes.torch_eager import TorchEager
from layermerge.tracing.inputs import Inputs

TRIAL_SECONDS = 6.0
"""For all runtimes together; one that compiles may take longer."""
CLOCK_SECONDS = 2.0


# -- runtimes


@dataclass(frozen=True)
class Trial:
    """What became of a small network in a runtime. `works` is None where it was still being built when time was up."""

    runtime: str
    works: bool | None
    version: str | None = None
    reason: str | None = None


def try_runtimes(seconds: float = TRIAL_SECONDS) -> list[Trial]:
    """Builds and runs a small network in every runtime, each in a process of its own."""
    running = [(name, *_start(name)) for name in RUNTIMES]
    deadline = time.monotonic() + seconds
    try:
        return [_outcome(name, process, pipe, deadline) for name, process, pipe in running]
    finally:
        for _, process, pipe in running:
            _end(process)
            pipe.close()


def _start(name: str) -> tuple[Any, Connection]:
    fork = multiprocessing.get_context("fork")
    ours, theirs = fork.Pipe(duplex=False)
    process = fork.Process(target=_try, args=(name, theirs))
    with warnings.catch_warnings():
        # Nothing was computed in this process yet, so no other thread holds a lock that the child would need.
        warnings.filterwarnings("ignore", message=".*use of fork", category=DeprecationWarning)
        process.start()
    theirs.close()
    return process, ours


def _try(name: str, pipe: Connection) -> None:
    os.setpgid(0, 0)  # with compilers that it starts, so that all of them can be ended
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(nothing, stream)
    sys.stdout = sys.stderr = os.fdopen(nothing, "w")
    faulthandler.disable()  # a crash is reported here in one line
    os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"
    warnings.simplefilter("ignore")
    pipe.send(_trial(name))


def _trial(name: str) -> Trial:
    network = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 8, 3, padding=1)).eval()
    try:
        runtime = make_runtime(name)
        run = runtime.prepare(network, Inputs.of(torch.zeros(1, 3, 16, 16)), small=True)
        run()
    except Exception as error:  # whatever a runtime raises where it does not fit the machine
        return Trial(name, works=False, reason=_reason(error))
    return Trial(name, works=True, version=str(runtime.describe()["version"]))


def _reason(error: Exception) -> str:
    line = first_line(error)
    return line if isinstance(error, LayerMergeError) else f"{type(error).__name__}: {line}"


def _outcome(name: str, process: Any, pipe: Connection, deadline: float) -> Trial:
    if not pipe.poll(max(0.0, deadline - time.monotonic())):
        return Trial(name, works=None, reason="still compiling when time was up; the first pass takes long here")
    try:
        outcome: Trial = pipe.recv()
    except EOFError:
        process.join()
        return Trial(name, works=False, reason=f"its process died (exit code {process.exitcode}); install it again")
    return outcome


def _end(process: Any) -> None:
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:  # it ended, or is not yet as far as having a group of its own
        process.kill()
    process.join()


# -- what there is to compute with


@dataclass(frozen=True)
class Processors:
    """CPUs, threads, how they wait, and GPUs; hints say what to change."""

    usable_cpus: int
    cpus: int
    load: float | None
    torch_threads: int
    omp_wait_policy: str | None
    gpus: tuple[str, ...] = ()
    hints: tuple[str, ...] = field(default=())


def processors() -> Processors:
    cpus, usable = os.cpu_count() or 1, _usable_cpus()
    threads, policy = torch.get_num_threads(), os.environ.get("OMP_WAIT_POLICY")
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else None
    gpus = tuple(torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count()))
    hints = []
    if threads > usable:
        hints.append(f"torch takes {threads} threads for {usable} CPUs: set OMP_NUM_THREADS={usable}")
    if threads > 1 and (policy or "").upper() != "PASSIVE":
        hints.append("set OMP_WAIT_POLICY=PASSIVE: threads that wait would keep CPUs busy, which disturbs the clock")
    return Processors(usable, cpus, load, threads, policy, gpus, tuple(hints))


def _usable_cpus() -> int:
    """Those this process may run on, and no more than a container's share."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text(encoding="ascii").split()
        return allowed if quota == "max" else max(1, min(allowed, round(int(quota) / int(period))))
    except (OSError, ValueError):
        return allowed


# -- the clock


@dataclass(frozen=True)
class ClockNoise:
    """How long passes of one small network took; `spread` is p90 - p10, relative to the median."""

    passes: int
    p10_ms: float
    median_ms: float
    p90_ms: float

    @property
    def spread(self) -> float:
        return (self.p90_ms - self.p10_ms) / self.median_ms

    @property
    def verdict(self) -> str:
        if self.spread < 0.1:
            return "steady"
        if self.spread < 0.3:
            return "a little noisy: tables will take longer"
        return "busy machine: tables will take longer, do not choose now"


def clock_noise(seconds: float = CLOCK_SECONDS) -> ClockNoise:
    """Times a network of about a millisecond again and again, with one thread, as tables are measured."""
    layers = [nn.Sequential(nn.Conv2d(32, 32, 3, padding=1), nn.ReLU()) for _ in range(3)]
    runtime, threads = TorchEager(RuntimeSettings(threads=1)), torch.get_num_threads()
    run = runtime.prepare(nn.Sequential(*layers).eval(), Inputs.of(torch.zeros(1, 32, 28, 28)))
    times: list[float] = []
    try:
        for _ in range(5):
            run()
        end = time.perf_counter() + seconds
        while not times or time.perf_counter() < end:
            start = time.perf_counter()
            run()
            times.append((time.perf_counter() - start) * 1e3)
    finally:
        torch.set_num_threads(threads)
    p10, median, p90 = (float(value) for value in np.quantile(times, [0.1, 0.5, 0.9]))
    return ClockNoise(len(times), p10, median, p90)
