"""Shards: one table measured in parts, on machines that share nothing, and put together again.

Shard 2 of 4 of `importance.jsonl` is `importance.2-of-4.jsonl`. Copied next to the table, shards are taken in when it is next
measured; what they lack is measured then.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from layermerge.errors import TableError
from layermerge.tables.table import Scalar, Table, TableWriter, require_same_provenance

Shard = tuple[int, int]
"""Which part, from 0, of how many."""
WHOLE_TABLE: Shard = (0, 1)


def parse_shard(text: str) -> Shard:
    """Reads '2/4': the second of four parts."""
    found = re.fullmatch(r"(\d+)/(\d+)", text)
    number, count = (int(found[1]), int(found[2])) if found else (0, 0)
    if not 1 <= number <= count:
        raise TableError(f"shard '{text}' is not of the form 2/4, the second of four parts")
    return number - 1, count


def part_of(keys: Sequence[str], shard: Shard) -> Sequence[str]:
    """Every count-th key, from the shard's number on."""
    require_part(shard)
    number, count = shard
    return keys[number::count]


def require_part(shard: Shard) -> None:
    number, count = shard
    if not 0 <= number < count:
        raise TableError(f"shard {number} of {count} does not exist; give a number from 0 to {count - 1}")


def shard_path(path: Path, shard: Shard) -> Path:
    number, count = shard
    return path if shard == WHOLE_TABLE else path.with_name(f"{path.stem}.{number + 1}-of-{count}{path.suffix}")


def take_in_shards(path: Path, provenance: Mapping[str, Scalar]) -> int:
    """Appends to a table what shards next to it have measured; gives the number of rows taken in.

    Rows that several parts needed must agree.
    """
    parts = sorted(path.parent.glob(f"{path.stem}.*-of-*{path.suffix}"))
    if not parts:
        return 0
    taken = 0
    with TableWriter(path, provenance) as writer:
        for part in map(Table.read, parts):
            require_same_provenance(part.provenance, writer.provenance, part.name)
            for row in part.rows.values():
                if row.key not in writer.table:
                    writer.append(row)
                    taken += 1
                elif (known := writer.table[row.key]).status != row.status or known.value != row.value:
                    raise TableError(
                        f"{part.name} says {row.value} for '{row.key}', '{path}' says {known.value}; measure one again"
                    )
    return taken
