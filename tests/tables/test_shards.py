"""Parts of a table, measured apart, give the table that one run would have."""

from __future__ import annotations

from pathlib import Path

import pytest

from layermerge.errors import TableError
from layermerge.tables.runner import fill_table
from layermerge.tables.shards import parse_shard, part_of, shard_path, take_in_shards
from layermerge.tables.table import Row, Scalar, Table

PROVENANCE: dict[str, Scalar] = {"kind": "test", "batch": 1}
KEYS = [f"k{number}" for number in range(11)]


def measure(key: str) -> Row:
    return Row(key=key, value=float(key[1:]) ** 2)


@pytest.mark.parametrize(("text", "shard"), [("1/1", (0, 1)), ("2/4", (1, 4)), ("4/4", (3, 4))])
def test_people_count_parts_from_one(text: str, shard: tuple[int, int]) -> None:
    assert parse_shard(text) == shard


@pytest.mark.parametrize("text", ["0/4", "5/4", "2", "2/", "a/b", "-1/4", "1/0", ""])
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(TableError, match="not of the form 2/4"):
        parse_shard(text)


def test_a_part_has_a_file_of_its_own() -> None:
    assert shard_path(Path("a/importance.jsonl"), (1, 4)) == Path("a/importance.2-of-4.jsonl")
    assert shard_path(Path("a/importance.jsonl"), (0, 1)) == Path("a/importance.jsonl")


def test_parts_together_are_the_whole_table(tmp_path: Path) -> None:
    whole = tmp_path / "table.jsonl"
    for number in range(3):
        # What every part needs first is in each of them.
        fill_table(shard_path(whole, (number, 3)), PROVENANCE, ["k0"], measure)
        fill_table(shard_path(whole, (number, 3)), PROVENANCE, part_of(KEYS, (number, 3)), measure)
    fill_table(whole, PROVENANCE, ["k4"], measure)
    assert take_in_shards(whole, PROVENANCE) == len(KEYS) - 1
    assert take_in_shards(whole, PROVENANCE) == 0  # once is enough
    found = Table.read(whole)
    assert {row.key: row.value for row in found.rows.values()} == {key: measure(key).value for key in KEYS}


def test_without_parts_nothing_is_opened(tmp_path: Path) -> None:
    assert take_in_shards(tmp_path / "table.jsonl", PROVENANCE) == 0
    assert not list(tmp_path.iterdir())


def test_parts_measured_otherwise_are_refused(tmp_path: Path) -> None:
    whole = tmp_path / "table.jsonl"
    fill_table(shard_path(whole, (0, 2)), {**PROVENANCE, "batch": 8}, KEYS, measure)
    with pytest.raises(TableError, match="batch: 8 there, 1 now"):
        take_in_shards(whole, PROVENANCE)


def test_parts_that_disagree_are_refused(tmp_path: Path) -> None:
    whole = tmp_path / "table.jsonl"
    fill_table(whole, PROVENANCE, ["k3"], measure)
    fill_table(shard_path(whole, (0, 2)), PROVENANCE, ["k3"], lambda key: Row(key=key, value=1.0))
    with pytest.raises(TableError, match=r"says 1\.0 for 'k3', .* says 9\.0; measure one again"):
        take_in_shards(whole, PROVENANCE)
