"""The durable table: nothing lost, nothing doubled, nothing mixed up."""

from __future__ import annotations

import os
import random
import signal
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest

import layermerge as lm
from layermerge.errors import ArtifactError, TableError
from layermerge.tables.runner import fill_table
from layermerge.tables.shards import part_of
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


def test_a_truncated_last_line_is_dropped_with_a_warning(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    fill_table(path, PROVENANCE, ["a", "b"], row)
    whole = path.read_bytes()
    path.write_bytes(whole[:-7])
    with pytest.warns(UserWarning, match="dropped a truncated last line"):
        table = fill_table(path, PROVENANCE, ["a", "b"], row)
    assert list(table.rows) == ["a", "b"]
    assert path.read_bytes() == whole


def test_a_table_truncated_in_its_first_line_begins_again(tmp_path: Path) -> None:
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


def test_a_second_writer_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    with (
        TableWriter(path, PROVENANCE),
        pytest.raises(ArtifactError, match=r"^table '.*t.jsonl' is being written by another process; wait for it or"),
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


@pytest.mark.parametrize("known", [0, 1])
def test_a_table_of_which_most_entries_fail_ends_the_run_with_the_first_reason(tmp_path: Path, known: int) -> None:
    def measure(key: str) -> Row:
        if key in "abcd":
            raise RuntimeError(f"{key} is not known here")
        return row(key)

    path, keys = tmp_path / "t.jsonl", list("abzcyd")
    if known:  # what an earlier run recorded counts too
        fill_table(path, PROVENANCE, ["a", "b", "z", "y"], measure)
    message = (
        r"4 of 6 entries of table '.*t.jsonl' could not be measured, the first because of RuntimeError: a is not known"
    )
    with pytest.raises(TableError, match=message):
        fill_table(path, PROVENANCE, keys, measure)
    half = fill_table(tmp_path / "half.jsonl", PROVENANCE, ["a", "z"], measure)
    assert half["a"].status == "failed"


def test_shards_are_the_whole(tmp_path: Path) -> None:
    keys = ["a", "b", "c", "d", "e"]
    shards = [fill_table(tmp_path / f"{n}.jsonl", PROVENANCE, part_of(keys, (n, 2)), row) for n in range(2)]
    assert [list(shard.rows) for shard in shards] == [["a", "c", "e"], ["b", "d"]]
    with pytest.raises(TableError, match="shard 2 of 2 does not exist"):
        part_of(keys, (2, 2))


BAD_ROWS = {
    "nan": ('{"key": "a", "value": NaN}', "bad row: value: Input should be a finite number"),
    "infinite": ('{"key": "a", "value": Infinity}', "bad row: value: Input should be a finite number"),
    "too large": ('{"key": "a", "value": 1e200}', "bad row: value: Input should be less than or equal to 10+, not '1e"),
    "negative spread": ('{"key": "a", "value": 1, "spread": -1}', "bad row: spread: Input should be greater than"),
    "negative samples": ('{"key": "a", "value": 1, "samples": -1}', "bad row: samples: Input should be greater than"),
    "no value": ('{"key": "a"}', "a row with status ok needs a value"),
    "no reason": ('{"key": "a", "status": "failed"}', "needs a reason"),
    "status": ('{"key": "a", "status": "lost", "value": 1}', "bad row: status: "),
    "unknown key": ('{"key": "a", "value": 1, "note": 2}', "bad row: note: there is no such key"),
    "list": ("[1]", "is not a JSON object"),
    "text": ("nonsense", "is not valid JSON: 'nonsense'"),
    "nested": ('{"key": ' + "[" * 100_000, 'is not valid JSON: \'{"key": \\['),
    "digits": ('{"key": "a", "value": 1' + "0" * 5000 + "}", 'is not valid JSON: \'{"key": "a"'),
    "twice": ('{"key": "z", "value": 1}', "two rows for 'z'"),
}


@pytest.mark.parametrize("name", BAD_ROWS)
def test_a_bad_row_is_an_error_that_names_the_file(name: str, tmp_path: Path) -> None:
    line, message = BAD_ROWS[name]
    path = tmp_path / "t.jsonl"
    fill_table(path, PROVENANCE, ["z"], row)
    with path.open("a", encoding="utf-8") as file:
        file.write(line + "\n")
    with pytest.raises(TableError, match=message) as refused:
        Table.read(path)
    assert "t.jsonl" in str(refused.value)
    assert "\n" not in str(refused.value)
    assert len(str(refused.value)) < 400


def test_what_is_missing_or_empty_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    with pytest.raises(TableError, match="cannot be read"):
        Table.read(path)
    path.write_text("")
    with pytest.raises(TableError, match="is empty"):
        Table.read(path)


FIRST_LINES = {
    "other JSON": ('{"hello": 1}', "has no schema_version, so layermerge did not write it"),
    "no provenance": ('{"schema_version": 2}', "is not a layermerge table: its first line has no provenance"),
    "version that is no number": ('{"schema_version": "2", "provenance": {}}', "has no schema_version"),
    "earlier": ('{"schema_version": 1, "provenance": {}}', r"has an earlier format \(1, now 2\); it stays as it is"),
    "later": ('{"schema_version": 99, "provenance": {}}', "has format 99, this layermerge reads 2; upgrade"),
    "4000 digits": ('{"schema_version": 9' + "0" * 4000 + "}", "has format 900000000, this layermerge reads 2"),
    "5000 digits": ('{"schema_version": 9' + "0" * 5000 + "}", "has a line that is not valid JSON"),
    "nested": ('{"schema_version": ' + "[" * 100_000, "has a line that is not valid JSON"),
}


@pytest.mark.parametrize("name", FIRST_LINES)
def test_what_is_not_a_table_of_this_version_is_refused_and_stays_as_it_is(name: str, tmp_path: Path) -> None:
    line, message = FIRST_LINES[name]
    path = tmp_path / "t.jsonl"
    path.write_text(line + "\n")
    attempts: list[Callable[[], Table]] = [lambda: Table.read(path), lambda: fill_table(path, PROVENANCE, ["a"], row)]
    for refused in attempts:
        with pytest.raises(lm.LayerMergeError, match=f"t.jsonl' {message}") as caught:
            refused()
        assert len(str(caught.value)) < 400
    assert path.read_text() == line + "\n"


def test_an_absent_key_is_an_error(tmp_path: Path) -> None:
    table = fill_table(tmp_path / "t.jsonl", PROVENANCE, ["a"], row)
    with pytest.raises(TableError, match="no row for 'b'"):
        table["b"]


def _fill_in_a_child(path: Path) -> int:
    """Forked, so that nothing is imported again."""
    child = os.fork()
    if child == 0:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            keys = [str(number) for number in range(300)]
            fill_table(path, {"clock": "fake"}, keys, slowly)
        os._exit(0)
    return child


def slowly(key: str) -> Row:
    time.sleep(0.002)
    return Row(key=key, value=float(key) / 3, samples=int(key))


@pytest.mark.parametrize("kills", [10, pytest.param(100, marks=pytest.mark.slow)])
def test_a_table_killed_at_random_moments_completes_and_is_the_same(tmp_path: Path, kills: int) -> None:
    path = tmp_path / "killed.jsonl"
    rng = random.Random(0)
    killed = 0
    for _ in range(kills):
        child = _fill_in_a_child(path)
        time.sleep(rng.uniform(0.0, 0.5 / kills + 0.01))
        os.kill(child, signal.SIGKILL)
        killed += os.WIFSIGNALED(os.waitpid(child, 0)[1])
    assert killed >= kills / 2  # otherwise this test would show nothing
    for place in (path, tmp_path / "untouched.jsonl"):
        assert os.waitpid(_fill_in_a_child(place), 0)[1] == 0
    assert path.read_bytes() == (tmp_path / "untouched.jsonl").read_bytes()
