"""Executors: where the entries of a table are measured.

In: a measurement and the keys to measure. Out: one row a key, as each is done, in any order.
Guarantees: a measurement that raises becomes a failed row with its reason, and so does one whose process dies; what would
fail every entry alike ends the run instead.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import Any

import torch

from layermerge.runtimes.base import RuntimeUnavailable
from layermerge.tables.table import Row, TableError

Measure = Callable[[str], Row]
Executor = Callable[[Measure, Sequence[str]], Iterator[Row]]


def measured(measure: Measure, key: str) -> Row:
    """The row of a key, also where measuring it fails."""
    try:
        return measure(key)
    except (TableError, RuntimeUnavailable):
        raise
    except Exception as error:
        reason = (str(error).splitlines() or [""])[0][:200]
        return Row(key=key, status="failed", reason=f"{type(error).__name__}: {reason}")


def in_this_process(measure: Measure, keys: Sequence[str]) -> Iterator[Row]:
    """One after the other, here."""
    for key in keys:
        yield measured(measure, key)


@dataclass(frozen=True)
class LocalProcesses:
    """Processes of this machine, one torch thread each. They are forked, so they share the weights and the data."""

    count: int

    def __post_init__(self) -> None:
        if self.count < 1:
            raise TableError(f"{self.count} worker processes cannot measure anything; give at least 1")

    def __call__(self, measure: Measure, keys: Sequence[str]) -> Iterator[Row]:
        waiting = list(reversed(keys))
        workers = [_Worker(measure) for _ in range(min(self.count, len(waiting)))]
        try:
            for worker in workers:
                worker.start(waiting.pop())
            while busy := [worker for worker in workers if worker.key is not None]:
                ready = wait([worker.pipe for worker in busy])
                for worker in busy:
                    if worker.pipe in ready:
                        yield worker.finish()
                        if waiting:
                            worker.start(waiting.pop())
        finally:
            for worker in workers:
                worker.stop()


class _Worker:
    """A process that measures keys sent to it, started anew after it died."""

    pipe: Connection

    def __init__(self, measure: Measure) -> None:
        self.measure = measure
        self.key: str | None = None
        self._process: Any = None

    def start(self, key: str) -> None:
        if self._process is None or not self._process.is_alive():
            self._fork()
        self.key = key
        self.pipe.send(key)

    def _fork(self) -> None:
        fork = multiprocessing.get_context("fork")
        self.pipe, theirs = fork.Pipe()
        self._process = fork.Process(target=_serve, args=(theirs, self.measure, os.getpid()), daemon=True)
        with warnings.catch_warnings():
            # Forking beside other threads is safe here: the child computes with one thread and takes no lock of ours.
            warnings.filterwarnings("ignore", message=".*use of fork", category=DeprecationWarning)
            self._process.start()
        theirs.close()

    def finish(self) -> Row:
        """The row of the key that was sent last."""
        key, self.key = self.key, None
        assert key is not None, "finish() follows start()"
        try:
            answer = self.pipe.recv()
        except EOFError:
            self._process.join()
            reason = f"its process died (exit code {self._process.exitcode}); memory may have run out"
            return Row(key=key, status="failed", reason=reason)
        if isinstance(answer, Exception):
            raise answer
        assert isinstance(answer, Row)
        return answer

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.join()
            self.pipe.close()


def _serve(pipe: Connection, measure: Measure, parent: int) -> None:
    """A worker's life: measures what it is sent until the parent is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    torch.set_num_threads(1)
    while os.getppid() == parent:
        if not pipe.poll(1.0):
            continue
        try:
            answer: Row | Exception = measured(measure, pipe.recv())
        except EOFError:
            return
        except Exception as error:
            answer = error
        pipe.send(answer)


@dataclass(frozen=True)
class RayCluster:
    """The machines of a Ray cluster. An entry whose node dies is measured again on another."""

    address: str = "local"
    gpus: float = 0.0
    """GPUs that each entry takes; may be a fraction."""

    def __call__(self, measure: Measure, keys: Sequence[str]) -> Iterator[Row]:
        if not keys:
            return
        ray = _connected(self.address)
        job = [ray.put(measure)]  # in a list, so that it is fetched once a process and not once an entry
        remote = ray.remote(num_cpus=1, num_gpus=self.gpus, max_retries=-1)(_measure_remotely)
        pending = [remote.remote(job, key) for key in keys]
        try:
            while pending:
                done, pending = ray.wait(pending)
                yield from ray.get(done)
        finally:
            for unfinished in pending:
                ray.cancel(unfinished, force=True)


def _connected(address: str) -> Any:
    try:
        import ray
    except ImportError:
        raise RuntimeUnavailable("Ray is not installed; try: pip install 'layermerge[ray]'") from None
    if not ray.is_initialized():
        try:
            ray.init(address=address, log_to_driver=False, configure_logging=False, include_dashboard=False)
        except ValueError as error:  # it refuses settings of a cluster that exists already
            if "existing" not in str(error) and "include_dashboard" not in str(error):
                raise RuntimeUnavailable(f"no Ray cluster at '{address}': {str(error).splitlines()[0]}") from error
            ray.init(address=address, log_to_driver=False, configure_logging=False)
        except ConnectionError as error:
            raise RuntimeUnavailable(f"no Ray cluster at '{address}': {str(error).splitlines()[0]}") from error
    return ray


_FETCHED: dict[str, Measure] = {}


def _measure_remotely(job: list[Any], key: str) -> Row:
    import ray

    name = job[0].hex()
    if name not in _FETCHED:
        torch.set_num_threads(1)
        _FETCHED.clear()
        _FETCHED[name] = ray.get(job[0])
    return measured(_FETCHED[name], key)
