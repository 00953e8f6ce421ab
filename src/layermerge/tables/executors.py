"""Executors: where the entries of a table are measured.

In: a measurement and the keys to measure. Out: one row per key, as each is done, in any order.
Guarantees: a measurement that fails becomes a failed row with its reason, and so does one whose process dies; what would
fail every entry alike, and what is a fault of the program, ends the run instead.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import Any

import torch

from layermerge.arguments import checked
from layermerge.errors import (
    LayerMergeError,
    MissingPackage,
    ModelError,
    RuntimeUnavailable,
    TableError,
    first_line,
    machine_failed,
)
from layermerge.runtimes.base import MOST_AT_ONCE
from layermerge.tables.table import Row

Measure = Callable[[str], Row]
Executor = Callable[[Measure, Sequence[str]], Iterator[Row]]


ENDS_THE_RUN = (TableError, RuntimeUnavailable, MissingPackage, ModelError)
"""Fails every entry alike."""
_ENTRYS_OWN = (LayerMergeError, RuntimeError, ArithmeticError, MemoryError, ValueError)
"""What torch, a runtime or training may raise for one network and not for another: an operator that is not known, memory that
runs out, a loss that is not finite, a batch that a norm cannot take. A type or key error is a fault of the program."""


def measured(measure: Measure, key: str) -> Row:
    """The row of a key, also where measuring it fails."""
    try:
        return measure(key)
    except SystemExit as error:
        raise ModelError(f"the model's own code ends the program ({reason_of(error)}); remove that call") from error
    except OSError as error:  # a disk that is full or gone fails every entry alike, and none once it is repaired
        raise TableError(f"'{key}' could not be measured: {reason_of(error)}") from error
    except Exception as error:
        if isinstance(error, ENDS_THE_RUN) or machine_failed(error) or not _is_entrys_own(error):
            raise
        return Row(key=key, status="failed", reason=reason_of(error))


def _is_entrys_own(error: Exception) -> bool:
    """Also what a library defines for itself, as onnxruntime does."""
    return isinstance(error, _ENTRYS_OWN) or type(error).__module__.startswith("onnxruntime")


def reason_of(error: BaseException) -> str:
    """What went wrong, in a line that a table can hold."""
    return f"{type(error).__name__}: {first_line(error)}"


def in_this_process(measure: Measure, keys: Sequence[str]) -> Iterator[Row]:
    """One after the other, here."""
    for key in keys:
        yield measured(measure, key)


@checked(TableError)
@dataclass(frozen=True)
class LocalProcesses:
    """Processes of this machine, one torch thread each. They are forked, so they share the weights and the data."""

    count: int

    def __post_init__(self) -> None:
        if not 1 <= self.count <= MOST_AT_ONCE:
            raise TableError(f"{self.count} worker processes cannot be started; give a number from 1 to {MOST_AT_ONCE}")
        if "fork" not in multiprocessing.get_all_start_methods():
            raise RuntimeUnavailable("worker processes are forked, which this system cannot do; measure without them")

    def __call__(self, measure: Measure, keys: Sequence[str]) -> Iterator[Row]:
        waiting = list(reversed(keys))
        workers = [_Worker(measure) for _ in range(min(self.count, len(waiting)))]
        try:
            for worker in workers:
                worker.start(waiting.pop())
            while busy := [worker for worker in workers if worker.key is not None]:
                wait([worker.pipe for worker in busy], _LOOK_EVERY)
                for worker in busy:
                    if worker.has_news:
                        yield worker.finish()
                        if waiting:
                            worker.start(waiting.pop())
        finally:
            for worker in workers:
                worker.stop()


_LOOK_EVERY = 0.2
"""Seconds between looks at whether the other process is still there."""


class _Worker:
    """A process that measures keys sent to it, restarted after it died."""

    pipe: Connection

    def __init__(self, measure: Measure) -> None:
        self.measure = measure
        self.key: str | None = None
        self._process: Any = None

    def start(self, key: str) -> None:
        if self._process is None or not self._process.is_alive():
            self._fork()
        self.key = key
        try:
            self.pipe.send(key)
        except OSError:  # it died between two keys, which no entry is to blame for
            self._fork()
            self.pipe.send(key)

    def _fork(self) -> None:
        self.stop()
        fork = multiprocessing.get_context("fork")
        self.pipe, theirs = fork.Pipe()
        self._process = fork.Process(target=_serve, args=(theirs, self.measure, os.getpid()), daemon=True)
        with warnings.catch_warnings(), _without_interrupts():
            # Forking beside other threads is safe here: the child computes with one thread and takes no lock of ours.
            warnings.filterwarnings("ignore", message=".*use of fork", category=DeprecationWarning)
            self._process.start()
        theirs.close()

    @property
    def has_news(self) -> bool:
        # A dead process need not close its pipe: processes that it started, such as data loaders, may hold it open.
        return self.pipe.poll() or not self._process.is_alive()

    def finish(self) -> Row:
        """The row of the key that was sent last."""
        key, self.key = self.key, None
        assert key is not None, "finish() follows start()"
        try:
            answer = self.pipe.recv() if self.pipe.poll() else None
        except (EOFError, OSError):  # the latter where it died with its key unread, or in the midst of answering
            answer = None
        if isinstance(answer, Exception):
            raise answer
        if answer is None:
            self._process.join()
            reason = f"its process died (exit code {self._process.exitcode}); memory may have run out"
            return Row(key=key, status="failed", reason=reason)
        assert isinstance(answer, Row)
        return answer

    def stop(self) -> None:
        if self._process is not None and self._process.pid is not None:  # which it is not where Ctrl-C came first
            self._process.kill()
            self._process.join()
            self.pipe.close()


@contextmanager
def _without_interrupts() -> Iterator[None]:
    """A process that starts in here does not see Ctrl-C before it can ignore it."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _serve(pipe: Connection, measure: Measure, parent: int) -> None:
    """A worker's life: measures what it is sent until the parent is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    # The parent ends this process as a daemon's; but a daemon may not have data loaders of its own.
    multiprocessing.current_process()._config["daemon"] = False  # type: ignore[attr-defined]
    torch.set_num_threads(1)
    while True:
        try:
            answer: Row | Exception = measured(measure, pipe.recv())
        except EOFError:
            return
        except KeyboardInterrupt as error:  # this process ignores Ctrl-C, so it is not the user's
            answer = ModelError(f"the model's own code raises {reason_of(error)}, as if the user had; remove that")
        except Exception as error:
            answer = _sendable(error)
        pipe.send(answer)


def _sendable(error: Exception) -> Exception:
    """The error, or what it says where it does not survive the way to another process."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return RuntimeError(reason_of(error))
    return error


def _end_with(parent: int) -> None:
    """Ends this process soon after its parent, in the midst of a measurement too: it holds the parent's lock on the table."""
    while os.getppid() == parent:
        time.sleep(_LOOK_EVERY)
    os._exit(1)
