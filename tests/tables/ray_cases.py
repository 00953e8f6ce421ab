"""Ray: the rows of this process from a cluster of two nodes, also where a node dies; and one clear line where there is none.

One machine plays both nodes. Ray's processes are ended with the cluster.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from layermerge.errors import MissingPackage, RuntimeUnavailable, TableError
from layermerge.tables.executors import in_this_process
from layermerge.tables.importance import measure_importance
from layermerge.tables.ray_cluster import RayCluster
from layermerge.tables.runner import fill_table
from layermerge.tables.table import Row
from processes import children, soon
from tables import importance_runs
from tuning import toy_task

KEYS = [f"k{number}" for number in range(6)]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """A head with one CPU; tests add further nodes. This process is connected as any user's would be: by the executor."""
    given = {"RAY_AUTH_MODE": "disabled", "RAY_USAGE_STATS_ENABLED": "0", "RAY_DEDUP_LOGS": "0"}
    given["RAY_worker_niceness"] = "0"  # beside other tests they would get no time at all
    with pytest.MonkeyPatch.context() as patch:
        for name, value in given.items():
            patch.setenv(name, value)
        ray = pytest.importorskip("ray")
        from ray.cluster_utils import Cluster

        before = children()
        for module in (sys.modules[__name__], importance_runs, toy_task):
            ray.cloudpickle.register_pickle_by_value(module)  # workers do not have the tests on their path
        started = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
        try:
            yield started
        finally:
            ray.shutdown()
            started.shutdown()
            for module in (sys.modules[__name__], importance_runs, toy_task):
                ray.cloudpickle.unregister_pickle_by_value(module)
        assert soon(lambda: children() <= before), "Ray's processes are gone"


def price(key: str) -> Row:
    if key == "k3":
        raise ValueError("no such operator\nand a long story")
    return Row(key=key, value=int(key[1:]) / 7)


def by_key(rows: Iterator[Row]) -> dict[str, Row]:
    found = list(rows)
    assert len({row.key for row in found}) == len(found)
    return {row.key: row for row in found}


def test_a_node_that_dies_loses_no_entry(cluster: Any, tmp_path: Path) -> None:
    """Each entry says where it began, so that the node is killed while it measures; those on the other wait until it is."""
    head = cluster.head_node.node_id
    node = cluster.add_node(num_cpus=1)
    cluster.wait_for_nodes()
    doomed, killed = node.node_id, tmp_path / "killed"

    def measure(key: str) -> Row:
        import ray

        where = ray.get_runtime_context().get_node_id()
        (tmp_path / f"{key}-{where}").touch()
        while where == doomed or not killed.exists():
            time.sleep(0.05)
        return Row(key=key, value=int(key[1:]) / 7)

    rows = RayCluster(cluster.address)(measure, KEYS)
    found: list[Row] = []

    def kill_when_both_are_busy() -> None:
        soon(lambda: all(list(tmp_path.glob(f"*-{where}")) for where in (head, doomed)), 300)
        cluster.remove_node(node, allow_graceful=False)  # whether or not both were busy: nothing may wait for ever
        killed.touch()

    killer = threading.Thread(target=kill_when_both_are_busy)
    killer.start()
    try:
        found += rows
    finally:
        killed.touch()
        killer.join()
    begun_there = [path.name.split("-")[0] for path in tmp_path.glob(f"*-{doomed}")]
    assert begun_there, "the node had begun an entry"
    assert {row.key: row.value for row in found} == {key: int(key[1:]) / 7 for key in KEYS}
    assert {row.status for row in found} == {"ok"}
    assert len(found) == len(KEYS)


def test_the_rows_are_those_of_this_process(cluster: Any, tmp_path: Path) -> None:
    rows = by_key(RayCluster(cluster.address)(price, KEYS))
    assert rows == by_key(in_this_process(price, KEYS))
    assert list(RayCluster(cluster.address)(price, [])) == []
    path = tmp_path / "t.jsonl"
    assert fill_table(path, {}, KEYS, price, executor=RayCluster(cluster.address)).rows == rows


@pytest.mark.slow
def test_an_importance_table_is_the_same(cluster: Any, tmp_path: Path) -> None:
    node = cluster.add_node(num_cpus=1)
    cluster.wait_for_nodes()
    try:
        table = measure_importance(
            importance_runs.traced(),
            importance_runs.menu(),
            importance_runs.QuietTask(),
            recipe=importance_runs.RECIPE,
            path=tmp_path / "ray.jsonl",
            executor=RayCluster(cluster.address),
        )
    finally:
        cluster.remove_node(node)
    expected = importance_runs.run(tmp_path / "here.jsonl")
    assert {key: row.value for key, row in table.rows.items()} == {k: row.value for k, row in expected.rows.items()}
    assert table.provenance == expected.provenance


@pytest.mark.slow
def test_an_entry_that_always_takes_its_process_down_is_a_failed_row(cluster: Any) -> None:
    def measure(key: str) -> Row:
        if key == "k1":
            os.kill(os.getpid(), signal.SIGKILL)
        return price(key)

    rows = by_key(RayCluster(cluster.address)(measure, KEYS[:3]))
    assert rows["k1"].reason == "its process died 3 times; memory may have run out"
    assert {key for key, row in rows.items() if row.status == "ok"} == {"k0", "k2"}


@pytest.mark.parametrize("kind", [TableError, RuntimeUnavailable])
def test_what_fails_every_entry_ends_the_run(cluster: Any, kind: type[Exception]) -> None:
    def measure(key: str) -> Row:
        raise kind(f"no hope, says {key}")

    with pytest.raises(kind, match=r"^no hope, says k\d$"):
        list(RayCluster(cluster.address)(measure, KEYS))


class Unreadable:
    """Can be sent, but not read where it arrives: as where the code of a task is not installed there."""

    def __call__(self, key: str) -> Row:
        return price(key)

    def __reduce__(self) -> tuple[Any, ...]:
        return _absent, ("their_project",)


def _absent(name: str) -> Any:
    raise ModuleNotFoundError(f"No module named '{name}'")


def test_a_job_that_cannot_be_read_there_is_one_clear_line(cluster: Any) -> None:
    with pytest.raises(
        RuntimeUnavailable, match=r"cannot be run on the Ray cluster: .*No module named 'their_project'"
    ) as e:
        list(RayCluster(cluster.address)(Unreadable(), KEYS))
    assert "\n" not in str(e.value)


# -- without a cluster


def test_without_ray_there_is_one_clear_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    message = r"^measuring on many machines needs ray, which is not installed; try: pip install 'layermerge\[ray\]'$"
    with pytest.raises(MissingPackage, match=message):
        list(RayCluster()(price, KEYS))


@pytest.mark.parametrize(
    "address", ["127.0.0.1:1", "ray://127.0.0.1:1", "nonsense", "[::1]:1", "no.such.host.invalid:6379"]
)
def test_a_wrong_address_is_one_clear_line(monkeypatch: pytest.MonkeyPatch, address: str) -> None:
    ray = pytest.importorskip("ray")
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    with pytest.raises(RuntimeUnavailable) as caught:
        list(RayCluster(address)(price, KEYS))
    assert str(caught.value).startswith(f"no Ray cluster at '{address}': ")
    assert "\n" not in str(caught.value)
