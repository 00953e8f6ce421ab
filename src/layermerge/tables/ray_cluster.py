"""Ray: entries of a table measured on many machines, or on GPUs.

In and out as any executor. Guarantees: an entry whose node dies is measured again elsewhere; one that takes its own process
down three times is a failed row; a cluster that is not there is one line.
"""

from __future__ import annotations

import socket
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from layermerge.errors import RuntimeUnavailable, first_line, require_package
from layermerge.tables.executors import ENDS_THE_RUN, Measure, measured
from layermerge.tables.table import Row


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
        # Not retried by Ray, which would do so for ever where an entry takes more memory than there is.
        remote = ray.remote(num_cpus=1, num_gpus=self.gpus, max_retries=0)(_measure_remotely)
        pending = {remote.remote(job, key): key for key in keys}
        crashes: Counter[str] = Counter()
        try:
            while pending:
                for done in ray.wait(list(pending))[0]:
                    key = pending.pop(done)
                    row = _fetched(ray, done, key, crashes)
                    if row is None:
                        pending[remote.remote(job, key)] = key
                    else:
                        yield row
        finally:
            for unfinished in pending:
                ray.cancel(unfinished, force=True)


_TRIES = 3
"""How often an entry may take its process down; the first times it may have been the fault of others next to it."""


def _fetched(ray: Any, done: Any, key: str, crashes: Counter[str]) -> Row | None:
    """The row of an entry that ended; None where it has to be measured again."""
    errors = ray.exceptions
    try:
        row = ray.get(done)
    except errors.NodeDiedError:
        return None
    except (errors.WorkerCrashedError, errors.OutOfMemoryError):
        crashes[key] += 1
        if crashes[key] < _TRIES:
            return None
        return Row(key=key, status="failed", reason=f"its process died {_TRIES} times; memory may have run out")
    except errors.RayTaskError as error:
        if isinstance(error.cause, ENDS_THE_RUN):
            raise error.cause from None  # Ray's own has a traceback in its message
        reason = (str(error).strip().splitlines() or [""])[-1][:200]
        raise RuntimeUnavailable(f"the job cannot be run on the Ray cluster: {reason}") from error
    assert isinstance(row, Row)
    return row


def _connected(address: str) -> Any:
    ray: Any = require_package("ray", "measuring on many machines", "layermerge[ray]")
    if not ray.is_initialized():
        _require_listener(address)
        # The dashboard is a setting of clusters that are started here; Ray refuses it for others.
        more = {"include_dashboard": False} if address == "local" else {}
        try:
            ray.init(address=address, log_to_driver=False, configure_logging=False, **more)
        except (ValueError, RuntimeError, ConnectionError) as error:
            raise RuntimeUnavailable(f"no Ray cluster at '{address}': {first_line(error)}") from error
    return ray


def _require_listener(address: str) -> None:
    """Says at once that nothing listens there: Ray itself tries for a minute, and then ends the process."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if host and port.isdecimal():
        try:
            socket.create_connection((host.strip("[]"), int(port)), timeout=10).close()
        except (OSError, OverflowError) as error:
            raise RuntimeUnavailable(f"no Ray cluster at '{address}': {error}") from error


_FETCHED: dict[str, Measure] = {}


def _measure_remotely(job: list[Any], key: str) -> Row:
    import ray

    name = job[0].hex()
    if name not in _FETCHED:
        torch.set_num_threads(1)
        _FETCHED.clear()
        _FETCHED[name] = ray.get(job[0])
    return measured(_FETCHED[name], key)
