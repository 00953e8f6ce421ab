"""Runner: fills a table entry by entry, resumes, takes shards, and shows how long it will still take."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from layermerge.runtimes.base import RuntimeUnavailable
from layermerge.tables.table import Row, Scalar, Table, TableError, TableWriter

Measure = Callable[[str], Row]


def fill_table(
    path: str | Path,
    provenance: Mapping[str, Scalar],
    keys: Sequence[str],
    measure: Measure,
    *,
    title: str = "measuring",
    shard: tuple[int, int] = (0, 1),
) -> Table:
    """Measures every key that the table lacks, in order, each row durable before the next begins.

    `shard` is (number, count): this run takes every count-th key, from `number` on. A measurement that raises is recorded
    as failed, with its reason, and does not end the run; what would fail every entry alike does.
    """
    number, count = shard
    if not 0 <= number < count:
        raise TableError(f"shard {number} of {count} does not exist; give a number from 0 to {count - 1}")
    with TableWriter(path, provenance) as writer, _progress() as progress:
        missing = [key for key in dict.fromkeys(keys[number::count]) if key not in writer.table]
        done = len(keys[number::count]) - len(missing)
        task = progress.add_task(title, total=done + len(missing), completed=done)
        for key in missing:
            writer.append(_measured(measure, key))
            progress.advance(task)
        return writer.table


def _measured(measure: Measure, key: str) -> Row:
    try:
        return measure(key)
    except (TableError, RuntimeUnavailable):
        raise
    except Exception as error:
        reason = (str(error).splitlines() or [""])[0][:200]
        return Row(key=key, status="failed", reason=f"{type(error).__name__}: {reason}")


def _progress() -> Progress:
    """A bar with the time left, on stderr; nothing where that is not a terminal."""
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=Console(file=sys.stderr),
        disable=not sys.stderr.isatty(),
    )
