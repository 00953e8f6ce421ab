"""The durable table: nothing lost, nothing doubled, nothing mixed up."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from layermerge.errors import TableError
from layermerge.tables.runner import fill_table
from layermerge.tables.table import Row, Scalar, Table, TableWriter

PROVENANCE: dict[str, Scalar] = {"plan": "abc", "device": "cpu", "batch": 1}


def row(key: str, value: float = 1.0) -> Row:
    return Row(key=key, value=value, spread=0.1, samples=3)


def test_rows_come_back_as_they_were_written(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "latency.jsonl"
    rows = [row("a", 0.1 + 0.2), Row(key="b", status="failed", reason="no memory"), row("c", 3)]
    with TableWriter(path, PROVENANCE) as writer:
        for each in rows:
            writer.append(each)
    read = Table.read(path)
    assert list(read.rows.values()) == rows
    assert read.provenance == PROVENANCE
    assert read["a"].value == 0.1 + 0.2


def test_opening_again_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    measured: list[str] = []

    def measure(key: str) -> Row:
        measured.append(key)
        return row(key)

    fill_table(path, PROVENANCE, ["a", "b"], measure)
    table = fill_table(path, PROVENANCE, ["a", "b", "c"], measure)
    assert measured == ["a", "b", "c"]
    assert list(table.rows) == ["a", "b", "c"]


def test_a_torn_last_line_is_dropped_with_a_warning(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    fill_table(path, PROVENANCE, ["a", "b"], row)
    whole = path.read_bytes()
    path.write_bytes(whole[:-7])
    with pytest.warns(UserWarning, match="dropped a torn last line"):
        table = fill_table(path, PROVENANCE, ["a", "b"], row)
    assert list(table.rows) == ["a", "b"]
    assert path.read_bytes() == whole


def test_a_table_torn_in_its_first_line_begins_again(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    path.write_bytes(b'{"schema_ver')
    assert list(fill_table(path, PROVENANCE, ["a"], row).rows) == ["a"]


def test_other_provenance_is_refused_and_the_difference_shown(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    fill_table(path, PROVENANCE, ["a"], row)
    before = path.read_bytes()
    with pytest.raises(TableError, match="batch: 1 there, 8 now") as refused:
        fill_table(path, {**PROVENANCE, "batch": 8}, ["a"], row)
    assert "device" not in str(refused.value)
    assert path.read_bytes() == before


def test_a_process_forked_meanwhile_does_not_keep_the_table_locked(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    release, held = os.pipe()
    with TableWriter(path, PROVENANCE) as writer:
        writer.append(row("a"))
        child = os.fork()
        if child == 0:
            os.close(held)
            os.read(release, 1)  # until the parent lets go
            os._exit(0)
    try:
        assert fill_table(path, PROVENANCE, ["a", "b"], row).rows.keys() == {"a", "b"}
    finally:
        os.close(held)
        os.waitpid(child, 0)
        os.close(release)


def test_a_second_writer_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    with (
        TableWriter(path, PROVENANCE),
        pytest.raises(TableError, match="being written by another process"),
        TableWriter(path, PROVENANCE),
    ):
        pass


def test_a_failure_is_recorded_and_does_not_end_the_run(tmp_path: Path) -> None:
    def measure(key: str) -> Row:
        if key == "b":
            raise RuntimeError("out of memory\nin line two")
        return row(key)

    table = fill_table(tmp_path / "t.jsonl", PROVENANCE, ["a", "b", "c"], measure)
    assert table["b"].status == "failed"
    assert table["b"].reason == "RuntimeError: out of memory"
    assert table["c"].status == "ok"


def test_shards_join_and_their_keys_must_not_meet(tmp_path: Path) -> None:
    keys = ["a", "b", "c", "d", "e"]
    shards = [fill_table(tmp_path / f"{n}.jsonl", PROVENANCE, keys, row, shard=(n, 2)) for n in range(2)]
    assert [len(shard) for shard in shards] == [3, 2]
    assert sorted(Table.joined(shards).rows) == keys
    with pytest.raises(TableError, match="two rows for 'a'"):
        Table.joined([shards[0], shards[0]])
    other = fill_table(tmp_path / "other.jsonl", {**PROVENANCE, "device": "gpu"}, ["f"], row)
    with pytest.raises(TableError, match="device: 'cpu' there, 'gpu' now"):
        Table.joined([shards[0], other])
    with pytest.raises(TableError, match="shard 2 of 2 does not exist"):
        fill_table(tmp_path / "x.jsonl", PROVENANCE, keys, row, shard=(2, 2))


BAD_ROWS = {
    '{"key": "a", "value": NaN}': "bad row",
    '{"key": "a", "value": Infinity}': "bad row",
    '{"key": "a"}': "needs a finite value",
    '{"key": "a", "status": "failed"}': "needs a reason",
    '{"key": "a", "status": "lost", "value": 1}': "status",
    '{"key": "a", "value": 1, "note": 2}': "note",
    "[1]": "no JSON object",
    "nonsense": "no JSON",
    '{"key": "z", "value": 1}': "two rows for 'z'",
}


@pytest.mark.parametrize("line", BAD_ROWS)
def test_a_bad_row_is_an_error_that_names_the_file(line: str, tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    fill_table(path, PROVENANCE, ["z"], row)
    with path.open("a", encoding="utf-8") as file:
        file.write(line + "\n")
    with pytest.raises(TableError, match=BAD_ROWS[line]) as refused:
        Table.read(path)
    assert "t.jsonl" in str(refused.value)
    assert "\n" not in str(refused.value)


def test_what_is_no_table_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    with pytest.raises(TableError, match="cannot be read"):
        Table.read(path)
    path.write_text("")
    with pytest.raises(TableError, match="is empty"):
        Table.read(path)
    path.write_text('{"hello": 1}\n')
    with pytest.raises(TableError, match="no layermerge table"):
        Table.read(path)
    path.write_text(json.dumps({"schema_version": 99, "provenance": {}}) + "\n")
    with pytest.raises(TableError, match="schema 99"):
        Table.read(path)


def test_an_absent_key_is_an_error(tmp_path: Path) -> None:
    table = fill_table(tmp_path / "t.jsonl", PROVENANCE, ["a"], row)
    with pytest.raises(TableError, match="no row for 'b'"):
        table["b"]


WORKER = """
import sys, time
from layermerge.tables.runner import fill_table
from layermerge.tables.table import Row
def measure(key):
    time.sleep(0.002)
    return Row(key=key, value=float(key) / 3, samples=int(key))
fill_table(sys.argv[1], {"clock": "fake"}, [str(n) for n in range(300)], measure)
"""


def test_a_table_killed_at_random_moments_completes_and_is_the_same(tmp_path: Path) -> None:
    path = tmp_path / "killed.jsonl"
    command = [sys.executable, "-W", "ignore", "-c", WORKER, str(path)]
    rng = random.Random(0)
    killed = 0
    for _ in range(20):
        worker = subprocess.Popen(command)
        while worker.poll() is None and not path.exists():
            time.sleep(0.01)
        time.sleep(rng.uniform(0.0, 0.05))
        worker.send_signal(signal.SIGKILL)
        killed += worker.wait() == -signal.SIGKILL
    assert killed >= 10  # otherwise this test would show nothing
    subprocess.run(command, check=True)
    untouched = tmp_path / "untouched.jsonl"
    subprocess.run([*command[:-1], str(untouched)], check=True)
    assert path.read_bytes() == untouched.read_bytes()
