"""Runner: fills a table entry by entry, resumes, takes shards, and shows how long it will still take.

What an entry's row is does not depend on who measures it: an executor runs the same measurement here, in processes of this
machine or on others, and hands the rows back as they are done.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from layermerge.errors import TableError
from layermerge.progress import Progress
from layermerge.tables.executors import Executor, Measure, in_this_process
from layermerge.tables.table import Scalar, Table, TableWriter, require_same_provenance

MOST_FAILED = 0.5
"""Share of the entries that may fail; where more do, something else is wrong, and too little of the menu is left."""


def fill_table(
    path: str | Path,
    provenance: Mapping[str, Scalar],
    keys: Sequence[str],
    measure: Measure,
    *,
    title: str = "measuring",
    executor: Executor = in_this_process,
    keep_failures: bool = True,
) -> Table:
    """Measures every key that the table lacks; each row is durable when it is done.

    A measurement that fails is recorded, with its reason, and does not end the run; what would fail every entry alike does,
    and so do too many failures. Without `keep_failures` nothing is recorded of a failure, and it ends the run.
    """
    wanted = list(dict.fromkeys(keys))
    if (complete := _complete(Path(path), provenance, wanted)) is not None:
        return complete
    with TableWriter(path, provenance) as writer:
        missing = [key for key in wanted if key not in writer.table]
        with Progress(title, total=len(wanted), done=len(wanted) - len(missing)) as progress:
            for row in executor(measure, missing):
                if row.status == "failed" and not keep_failures:
                    raise TableError(f"'{row.key}' could not be measured: {row.reason}")
                writer.append(row)
                progress.advance()
                _require_few_failures(writer.table, wanted)
        return writer.table


def _require_few_failures(table: Table, wanted: Sequence[str]) -> None:
    failed = [table[key] for key in wanted if key in table and table[key].status == "failed"]
    if len(failed) > MOST_FAILED * len(wanted):
        raise TableError(
            f"{len(failed)} of {len(wanted)} entries of {table.name} could not be measured, the first because of "
            f"{failed[0].reason}; fix that, remove the table and measure it again"
        )


def _complete(path: Path, provenance: Mapping[str, Scalar], wanted: Sequence[str]) -> Table | None:
    """The table, where it lacks nothing: reading takes no lock, so several processes may use a finished table at once."""
    if not path.is_file() or b"\n" not in path.read_bytes():
        return None  # not even its first line is there
    table = Table.read(path)
    if not table.rows:
        return None
    require_same_provenance(table.provenance, provenance, table.name)
    return table if all(key in table for key in wanted) else None
