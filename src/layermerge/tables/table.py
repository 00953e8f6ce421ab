"""Table: measured rows that survive a kill at any moment.

A table is a JSONL file: the first line says how its rows were measured (provenance), every further line is one row. Lines are
only ever appended, each durable when it is written. A truncated last line is dropped with a warning; a table of other
provenance is refused, with the difference shown; one process writes at a time.
"""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from types import TracebackType
from typing import IO, Annotated, Any, Literal

from pydantic import ConfigDict, Field, ValidationError, model_validator

from layermerge.errors import TableError
from layermerge.files import SCHEMA, Record, exclusive, first_problem, require_schema

Status = Literal["ok", "failed", "ruled_out", "slower"]
Scalar = str | int | float | bool | None
# No measurement comes near these; far beyond, sums and squares would overflow.
Finite = Annotated[float, Field(ge=-1e15, le=1e15)]
NotNegative = Annotated[float, Field(ge=0, le=1e15)]


class Row(Record):
    """One measurement. A row that failed or was ruled out carries a reason instead of a value, and leaves the menu.

    So does one that is `slower` than what it stands for: it was not measured to the end, and its value is a lower bound.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    key: str
    status: Status = "ok"
    value: Finite | None = None
    spread: NotNegative = 0.0
    samples: Annotated[int, Field(ge=0)] = 0
    seconds: NotNegative = 0.0
    """What the measurement cost."""
    reason: str | None = None
    of: str | None = None
    """The key of the row that it measures again; rows of one thing are pooled on reading."""
    round: Annotated[int, Field(ge=0)] = 0
    """Of the loop that it was measured for; 0 before any."""
    loop: str | None = None
    """Which loop that was: a row without one was measured before anything was chosen."""
    in_network: bool = False
    """Whether the runtime reported it for a whole network, rather than of a workload by itself."""
    parts: tuple[str, ...] = ()
    """Of a whole network: the keys of its candidates."""
    score: Finite | None = None
    """Of a whole network: what the task says of it on held-out images."""

    @model_validator(mode="after")
    def _says_what_its_status_needs(self) -> Row:
        if self.status == "ok" and self.value is None:
            raise ValueError("a row with status ok needs a value")
        if self.status != "ok" and not self.reason:
            raise ValueError(f"a row with status {self.status} needs a reason")
        return self

    @property
    def unsaid(self) -> set[str]:
        """What most rows have in common."""
        unsaid = {name for name in ("of", "round", "loop", "in_network", "parts") if not getattr(self, name)}
        return unsaid | ({"score"} if self.score is None else set())


class Table:
    """Rows by key, and how they were measured."""

    def __init__(
        self, provenance: Mapping[str, Scalar], rows: Iterable[Row], name: str = "the table", path: Path | None = None
    ) -> None:
        self.provenance = dict(provenance)
        self.name = name
        self.path = path
        """The file that it was read from, which may be added to."""
        self.rows: dict[str, Row] = {}
        for row in rows:
            if row.key in self.rows:
                raise TableError(f"{name} has two rows for '{row.key}'; remove one")
            self.rows[row.key] = row

    @staticmethod
    def read(path: str | Path) -> Table:
        """Reads a table, or what is there so far of one that is being written."""
        file = Path(path)
        try:
            lines, _ = _whole_lines(file)
        except OSError as error:
            raise TableError(f"table '{file}' cannot be read: {error.strerror or error}") from error
        if not lines:
            raise TableError(f"table '{file}' is empty; measure it again")
        return Table(_provenance(lines[0], file), (_row(line, file) for line in lines[1:]), f"table '{file}'", file)

    def __getitem__(self, key: str) -> Row:
        """The row of a key; absent is an error, never zero."""
        try:
            return self.rows[key]
        except KeyError:
            raise TableError(f"{self.name} has no row for '{key}'; measure it to the end first") from None

    def restricted(self, kept: Callable[[Row], bool]) -> Table:
        """The same table with some of its rows."""
        return Table(self.provenance, filter(kept, self.rows.values()), self.name, self.path)

    def __contains__(self, key: object) -> bool:
        return key in self.rows

    def __len__(self) -> int:
        return len(self.rows)


class TableWriter:
    """Appends rows to a table file, which it holds alone while open; opening it again continues where it stopped."""

    def __init__(self, path: str | Path, provenance: Mapping[str, Scalar]) -> None:
        self.path = Path(path)
        self.provenance = dict(provenance)
        self.table = Table(self.provenance, ())
        self._file: IO[bytes] | None = None
        self._held = ExitStack()

    def __enter__(self) -> TableWriter:
        with ExitStack() as held:
            held.enter_context(exclusive(self.path, f"table '{self.path}'"))
            try:
                self._file = self.path.open("ab")
                held.callback(_close, self._file)
                self._resume(self._file)
            except OSError as error:
                raise _unwritable(self.path, error) from error
            self._held = held.pop_all()
        return self

    def _resume(self, file: IO[bytes]) -> None:
        lines, length = _whole_lines(self.path)
        if len(lines) == 1 and _provenance(lines[0], self.path) != self.provenance:
            lines, length = [], 0  # nothing was measured yet, so nothing is lost by beginning again
        if lines:
            require_same_provenance(_provenance(lines[0], self.path), self.provenance, f"table '{self.path}'")
        if length < self.path.stat().st_size:
            # Before the first row nothing was promised, so nothing is lost worth a warning.
            if lines:
                warnings.warn(
                    f"dropped a truncated last line of '{self.path}'; its entry is measured again", stacklevel=3
                )
            os.truncate(file.fileno(), length)
        if not lines:
            _append(file, {"schema_version": SCHEMA, "provenance": self.provenance})
        rows = (_row(line, self.path) for line in lines[1:])
        self.table = Table(self.provenance, rows, f"table '{self.path}'", self.path)

    def append(self, row: Row) -> None:
        """Writes a row; when this returns, the row is on disk."""
        assert self._file is not None, "open the writer first"
        if row.key in self.table:
            raise TableError(f"table '{self.path}' has a row for '{row.key}' already")
        try:
            _append(self._file, row.model_dump(exclude=row.unsaid))
        except OSError as error:
            raise _unwritable(self.path, error) from error
        self.table.rows[row.key] = row

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._held.close()


def _append(file: IO[bytes], document: dict[str, Any]) -> None:
    file.write(json.dumps(document).encode() + b"\n")
    file.flush()
    os.fsync(file.fileno())


def _close(file: IO[bytes]) -> None:
    """Rows are on disk already; what could not be written fails here once more, and was reported then."""
    with suppress(OSError):
        file.close()


def _unwritable(path: Path, error: OSError) -> TableError:
    return TableError(f"table '{path}' cannot be written: {error.strerror or error}; rows that are in it are kept")


def _whole_lines(path: Path) -> tuple[list[bytes], int]:
    """The complete lines of a file, and how many bytes they take."""
    data = path.read_bytes()
    length = data.rfind(b"\n") + 1
    return data[:length].splitlines(), length


def _provenance(line: bytes, path: Path) -> dict[str, Scalar]:
    document = _document(line, path)
    require_schema(f"table '{path}'", document.get("schema_version"))
    provenance = document.get("provenance")
    if not isinstance(provenance, dict):
        raise TableError(f"'{path}' is not a layermerge table: its first line has no provenance")
    return provenance


def _row(line: bytes, path: Path) -> Row:
    try:
        return Row.model_validate(_document(line, path))
    except ValidationError as error:
        raise TableError(f"table '{path}' has a bad row: {first_problem(error)}; it begins {_start(line)}") from error


def _document(line: bytes, path: Path) -> dict[str, Any]:
    try:
        document = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise TableError(f"table '{path}' has a line that is not valid JSON: {_start(line)}") from error
    if not isinstance(document, dict):
        raise TableError(f"table '{path}' has a line that is not a JSON object: {_start(line)}")
    return document


def _start(line: bytes) -> str:
    return repr(line[:60].decode(errors="replace"))


def require_same_provenance(known: Mapping[str, Scalar], wanted: Mapping[str, Scalar], name: str) -> None:
    """Refuses rows that were measured otherwise than those they would join, and says what differs."""
    different = [key for key in sorted({*known, *wanted}) if known.get(key) != wanted.get(key)]
    if different:
        shown = ", ".join(f"{key}: {known.get(key)!r:.60} there, {wanted.get(key)!r:.60} now" for key in different)
        raise TableError(f"{name} was measured otherwise ({shown}); give another path, or measure it again")
