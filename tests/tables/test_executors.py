"""Executors: the same rows wherever they are measured, whatever dies on the way, and no process left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from layermerge.errors import MissingPackage, ModelError, RuntimeUnavailable, TableError
from layermerge.tables.executors import Executor, LocalProcesses, Measure, in_this_process
from layermerge.tables.runner import fill_table
from layermerge.tables.table import Row, Table, TableWriter
from processes import children, running, soon

KEYS = [f"k{number}" for number in range(7)]


def price(key: str) -> Row:
    return Row(key=key, value=len(key) + int(key[1:]) / 7, samples=3)


def broken(key: str) -> Row:
    if key == "k3":
        raise ValueError("no such operator\nand a long story")
    return price(key)


def by_key(rows: Iterator[Row]) -> dict[str, Row]:
    found = list(rows)
    assert len({row.key for row in found}) == len(found)
    return {row.key: row for row in found}


@pytest.fixture(autouse=True)
def _no_process_is_left() -> Iterator[None]:
    before = children()
    yield
    assert soon(lambda: children() <= before)


EXECUTORS = [in_this_process, LocalProcesses(1), LocalProcesses(3)]


# -- rows


@pytest.mark.parametrize("count", [1, 2, 3])
def test_processes_give_the_rows_of_this_process(count: int) -> None:
    expected = by_key(in_this_process(price, KEYS))
    assert by_key(LocalProcesses(count)(price, KEYS)) == expected
    assert list(expected) == KEYS


@pytest.mark.parametrize("executor", EXECUTORS, ids=["in_this_process", "one worker", "three workers"])
def test_a_measurement_that_raises_is_a_failed_row(executor: Executor) -> None:
    rows = by_key(executor(broken, KEYS))
    assert rows.keys() == set(KEYS)
    assert rows.pop("k3") == Row(key="k3", status="failed", reason="ValueError: no such operator")
    assert rows == {key: price(key) for key in KEYS if key != "k3"}


@pytest.mark.parametrize("executor", [in_this_process, LocalProcesses(2)], ids=["in_this_process", "two workers"])
@pytest.mark.parametrize(
    "kind", [TableError, RuntimeUnavailable, MissingPackage, AssertionError, TypeError, AttributeError, IndexError]
)
def test_what_fails_every_entry_and_faults_of_the_program_end_the_run(
    executor: Executor, kind: type[Exception]
) -> None:
    def measure(key: str) -> Row:
        raise kind(f"no hope, says {key}")

    with pytest.raises(kind, match=r"^no hope, says k\d$"):
        list(executor(measure, KEYS))


class Stubborn(TypeError):
    """Does not survive pickling."""

    def __init__(self, one: int, other: int) -> None:
        super().__init__(f"{one} and {other}")


def no_disk(_key: str) -> Row:
    raise FileNotFoundError(2, "No such file", "photos/1.png")


def leave(_key: str) -> Row:
    sys.exit(3)


def interrupt(_key: str) -> Row:
    raise KeyboardInterrupt


def stubborn(_key: str) -> Row:
    raise Stubborn(1, 2)


@pytest.mark.parametrize(
    ("executor", "measure", "kind", "message"),
    [
        (in_this_process, no_disk, TableError, r"'k0' could not be measured: FileNotFoundError: .* 'photos/1.png'"),
        (in_this_process, leave, ModelError, r"the model's own code ends the program \(SystemExit: 3\)"),
        (LocalProcesses(1), leave, ModelError, r"the model's own code ends the program \(SystemExit: 3\)"),
        (LocalProcesses(1), interrupt, ModelError, "the model's own code raises KeyboardInterrupt"),
        (LocalProcesses(1), stubborn, RuntimeError, "^Stubborn: 1 and 2$"),
    ],
)
def test_what_else_ends_the_run(executor: Executor, measure: Measure, kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message):
        list(executor(measure, KEYS[:1]))


def test_what_a_runtime_raises_of_its_own_is_a_failed_row() -> None:
    def measure(_key: str) -> Row:
        onnxruntime.InferenceSession(b"not a model")
        raise AssertionError("it was taken")

    (row,) = in_this_process(measure, KEYS[:1])
    assert row.status == "failed"
    assert "protobuf" in str(row.reason).lower()


@pytest.mark.parametrize("executor", EXECUTORS, ids=["in_this_process", "one worker", "three workers"])
def test_no_keys_need_no_worker(executor: Executor) -> None:
    assert list(executor(price, [])) == []


def test_no_more_workers_than_keys() -> None:
    def measure(key: str) -> Row:
        time.sleep(0.3)
        return Row(key=key, value=float(os.getpid()))

    rows = LocalProcesses(5)(measure, KEYS[:2])
    first = next(rows)
    assert len(children()) <= 2
    second = next(rows)
    assert next(rows, None) is None
    assert first.value != second.value, "each key had a process of its own"


@pytest.mark.parametrize("count", [0, -1, 100_000])
def test_a_senseless_number_of_workers_is_refused_at_once(count: int) -> None:
    with pytest.raises(TableError, match=rf"^{count} worker processes cannot be started; give a number from 1 to \d+$"):
        LocalProcesses(count)


def test_workers_compute_with_one_thread_and_see_what_the_parent_holds() -> None:
    held = np.arange(100_000.0)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        rows = by_key(
            LocalProcesses(2)(lambda key: Row(key=key, value=held.sum(), samples=torch.get_num_threads()), KEYS)
        )
    finally:
        torch.set_num_threads(before)
    assert {row.samples for row in rows.values()} == {1}
    assert {row.value for row in rows.values()} == {float(held.sum())}


def test_a_parent_that_computed_with_many_threads_does_not_block_its_workers() -> None:
    """A forked process inherits a pool of threads that are not there."""
    left = torch.randn(300, 300)
    before = torch.get_num_threads()
    torch.set_num_threads(4)
    try:
        (left @ left).tanh().sum()
        rows = by_key(LocalProcesses(2)(lambda key: Row(key=key, value=float((left @ left).tanh().mean())), KEYS[:3]))
    finally:
        torch.set_num_threads(before)
    assert {row.status for row in rows.values()} == {"ok"}


def test_a_measurement_may_have_data_loaders_of_its_own() -> None:
    data = TensorDataset(torch.arange(8.0))

    def measure(key: str) -> Row:
        total = sum(float(batch.sum()) for (batch,) in DataLoader(data, batch_size=2, num_workers=1))
        return Row(key=key, value=total)

    assert [row.value for row in LocalProcesses(1)(measure, KEYS[:1])] == [28.0]


# -- workers that die


@pytest.mark.parametrize("count", [1, 2, 3])
def test_a_worker_that_is_killed_loses_its_entry_only(count: int) -> None:
    def measure(key: str) -> Row:
        if key in ("k0", "k4"):
            os.kill(os.getpid(), signal.SIGKILL)
        return price(key)

    rows = by_key(LocalProcesses(count)(measure, KEYS))
    for key in ("k0", "k4"):
        assert rows.pop(key) == Row(
            key=key, status="failed", reason="its process died (exit code -9); memory may have run out"
        )
    assert rows == {key: price(key) for key in KEYS if key not in ("k0", "k4")}


def test_a_worker_that_dies_between_two_keys_is_replaced() -> None:
    rows = LocalProcesses(1)(price, KEYS)
    found = [next(rows)]
    (worker,) = children()
    os.kill(worker, signal.SIGKILL)
    os.waitid(
        os.P_PID, worker, os.WEXITED | os.WNOWAIT
    )  # dead with all its threads, and still the executor's to notice
    found += rows
    assert found == [price(key) for key in KEYS]


def test_a_dead_worker_is_noticed_though_its_own_child_holds_the_pipe(tmp_path: Path) -> None:
    def measure(key: str) -> Row:
        if key == "k0":
            orphan = os.fork()
            if orphan == 0:
                time.sleep(20)
                os._exit(0)
            (tmp_path / "pid").write_text(str(orphan))
            os.kill(os.getpid(), signal.SIGKILL)
        return price(key)

    rows = LocalProcesses(1)(measure, KEYS[:2])
    assert next(rows).status == "failed"
    orphan = int((tmp_path / "pid").read_text())
    assert running(orphan), "its end was not waited for"
    os.kill(orphan, signal.SIGKILL)
    assert list(rows) == [price("k1")]


def test_a_killed_worker_leaves_a_whole_table(tmp_path: Path) -> None:
    def measure(key: str) -> Row:
        if key == "k2":
            os.kill(os.getpid(), signal.SIGKILL)
        return price(key)

    path = tmp_path / "table.jsonl"
    fill_table(path, {"kind": "test"}, KEYS, measure, executor=LocalProcesses(2))
    statuses = {key: row.status for key, row in Table.read(path).rows.items()}
    assert statuses == {key: "failed" if key == "k2" else "ok" for key in KEYS}


# -- nobody is left behind


def endless(key: str) -> Row:
    if key != "k0":
        time.sleep(600)
    return price(key)


def test_stopping_early_ends_the_workers() -> None:
    rows = LocalProcesses(3)(endless, KEYS)
    assert next(rows) == price("k0")
    assert len(children()) == 3
    rows.close()  # type: ignore[attr-defined]
    assert children() == set()


def test_an_error_ends_the_other_workers() -> None:
    def measure(key: str) -> Row:
        if key == "k1":
            raise TableError("no hope")
        return endless("k2")

    with pytest.raises(TableError, match="no hope"):
        list(LocalProcesses(3)(measure, KEYS))
    assert children() == set()


PARENT = """
import sys
sys.path[:0] = {paths!r}
from layermerge.tables.executors import LocalProcesses
from layermerge.tables.runner import fill_table
from test_executors import KEYS, endless, price

fill_table({table!r}, {{"kind": "test"}}, KEYS, endless, executor=LocalProcesses(3))
"""


def test_workers_end_when_their_parent_is_killed_and_the_table_is_free_again(tmp_path: Path) -> None:
    """In the midst of measurements that would take long: whoever resumes must not wait for them."""
    path, here = tmp_path / "table.jsonl", Path(__file__).resolve().parent
    script = PARENT.format(paths=[str(here), str(here.parent)], table=str(path))
    parent = subprocess.Popen([sys.executable, "-c", script])
    try:
        assert soon(lambda: path.exists() and path.read_bytes().count(b"\n") == 2), "the first row is there"
        assert soon(lambda: len(children(parent.pid)) == 3)
        workers = children(parent.pid)
    finally:
        parent.kill()
        parent.wait()
    assert soon(lambda: not any(running(worker) for worker in workers))
    with TableWriter(path, {"kind": "test"}) as writer:
        assert writer.table.rows == {"k0": price("k0")}
