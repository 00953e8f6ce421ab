"""Files: typed documents that are validated when read, and writes that happen whole or not at all.

In and out: our frozen dataclasses and records as versioned JSON. Guarantees: a file of another version, of another kind or
truncated is an `ArtifactError` of one line; nothing is evaluated or unpickled; a kill leaves the old file or the new one.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import torch
from filelock import lock_descriptor, unlock_descriptor
from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError
from torch import nn

from layermerge.errors import ArtifactError, RecipeError

SCHEMA: Literal[2] = 2
"""Of everything that is written; raised with every change that older files do not survive."""
STRICT = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)
"""For `__pydantic_config__` of the dataclass that a document begins with; it holds for those inside it too."""

Document = TypeVar("Document")


class Record(BaseModel):
    """Base of what users write and tables hold: unknown keys and wrong types are errors, values do not change."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class UserRecord(Record):
    """Base of records that users make in Python: what is wrong with one is an error of ours."""

    if not TYPE_CHECKING:  # type checkers know the fields

        def __init__(self, *args: object, **fields: object) -> None:
            name = type(self).__name__
            if args:
                raise RecipeError(f"{name} takes its fields by name, such as {next(iter(type(self).model_fields))}=...")
            try:
                super().__init__(**fields)
            except ValidationError as error:
                raise RecipeError(f"{name}: {first_problem(error)}") from None

        # So that pydantic validates records inside others without calling this, and a problem keeps its whole path.
        __init__.__pydantic_base_init__ = True


_ADAPTERS: dict[object, TypeAdapter[Any]] = {}


def _adapter(kind: Any) -> TypeAdapter[Any]:
    """Made once a type: making one takes milliseconds."""
    if kind not in _ADAPTERS:
        _ADAPTERS[kind] = TypeAdapter(kind)
    return _ADAPTERS[kind]


def read_document(path: Path, kind: type[Document]) -> Document:
    """Reads and validates a JSON file."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ArtifactError(f"'{path}' does not exist; is '{path.parent}' a run directory?") from None
    except OSError as error:
        raise ArtifactError(f"'{path}' cannot be read: {error.strerror or error}") from error
    except (ValueError, RecursionError):
        raise ArtifactError(
            f"'{path}' is truncated or not JSON; remove it, and what wrote it writes it again"
        ) from None
    require_schema(f"'{path}'", data.get("schema_version") if isinstance(data, dict) else None)
    try:
        document: Document = _adapter(kind).validate_python(data)
        return document
    except ValidationError as error:
        raise ArtifactError(f"'{path}' is not a valid {path.name}: {first_problem(error)}") from error


def require_schema(name: str, version: object) -> None:
    """Refuses what another layermerge wrote; nothing of it is changed."""
    if not isinstance(version, int) or isinstance(version, bool):
        raise ArtifactError(f"{name} has no schema_version, so layermerge did not write it; give another path")
    if version > SCHEMA:
        raise ArtifactError(f"{name} has format {str(version)[:9]}, this layermerge reads {SCHEMA}; upgrade layermerge")
    if version < SCHEMA:
        raise ArtifactError(
            f"{name} has an earlier format ({version}, now {SCHEMA}); it stays as it is: give another run directory"
        )


def document_text(document: object) -> str:
    return _adapter(type(document)).dump_json(document, indent=1).decode() + "\n"


def plain(document: object) -> Any:
    """A document as JSON would hold it: dicts, lists, strings and numbers; what is not finite is null."""
    return json.loads(_adapter(type(document)).dump_json(document))


# Where a key may hold values of several types, pydantic says which of them it tried.
_TYPES = {"str", "int", "float"}


def first_problem(error: ValidationError) -> str:
    """The first thing wrong, with its place; of a value that fits none of several types, where it comes nearest to one."""
    first = max(error.errors(include_url=False), key=lambda problem: len(problem["loc"]))
    parts = [str(part) for part in first["loc"]]
    place = ".".join(part for part in parts if part not in _TYPES and not part[:1].isupper()) or "document"
    if first["type"] in ("extra_forbidden", "unexpected_keyword_argument"):
        return f"{place}: there is no such key"
    if first["type"] in ("missing", "missing_argument"):
        return f"{place}: is missing"
    message = " ".join(first["msg"].removeprefix("Value error, ").replace("a valid tuple", "a list").split())
    return (
        f"{place}: {message}" if first["type"] == "value_error" else f"{place}: {message}, not {_shown(first['input'])}"
    )


def _shown(value: object) -> str:
    """What a message quotes of a value; of a container no more than its kind, which may be of any size."""
    return f"a {type(value).__name__}" if isinstance(value, (dict, list, tuple)) else repr(str(value)[:60])


def digest(*parts: bytes | str | memoryview) -> str:
    """Names some content, to the last bit."""
    named = hashlib.sha256()
    for part in parts:
        named.update(part.encode() if isinstance(part, str) else part)
    return named.hexdigest()[:32]


def document_digest(document: object) -> str:
    """Names plain data, whatever the order of its keys."""
    return digest(json.dumps(document, sort_keys=True, default=str))


def weights_digest(module: nn.Module, *, values: bool = True) -> str:
    """Names a network's weights and buffers; without `values`, only their names, dtypes and shapes."""
    named = hashlib.sha256()
    for name, tensor in sorted(module.state_dict().items()):
        named.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        if values:
            octets: Any = tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy()
            named.update(octets)
    return named.hexdigest()[:32]


def text_writer(text: str) -> Callable[[Path], None]:
    """For `write_files`: writes this text."""

    def write(path: Path) -> None:
        path.write_text(text, encoding="utf-8")

    return write


def write_document(path: Path, document: object) -> None:
    write_files({path: text_writer(document_text(document))})


# Says whose it is, so that the next writer beside it can tell whether anyone will finish it.
_UNFINISHED = re.compile(r"\.unfinished-([0-9a-f]{8})-(\d{1,9})-.+")
_DAY_SECONDS = 86400


def write_files(contents: dict[Path, Callable[[Path], None]]) -> None:
    """Writes files in a hidden directory beside their places first and moves them there when all are complete.

    A directory, because some libraries write files of their own beside the one they are asked for. What killed processes
    left unfinished in the same places is removed.
    """
    rooms: dict[Path, Path] = {}
    try:
        for place in {path.parent for path in contents}:
            place.mkdir(parents=True, exist_ok=True)
            _remove_abandoned(place)
            rooms[place] = Path(tempfile.mkdtemp(prefix=f".unfinished-{_host()}-{os.getpid()}-", dir=place))
        for path, write in contents.items():
            temporary = rooms[path.parent] / path.name
            write(temporary)
            temporary.chmod(0o666 & ~_umask())  # safetensors lets nobody else read its files
        for path in contents:
            (rooms[path.parent] / path.name).replace(path)
    except OSError as error:
        raise ArtifactError(f"cannot write {', '.join(map(str, contents))}: {_reason(error)}") from error
    finally:
        for room in rooms.values():
            shutil.rmtree(room, ignore_errors=True)


def _remove_abandoned(place: Path) -> None:
    for entry in os.scandir(place):
        found = _UNFINISHED.fullmatch(entry.name)
        if found and ((found[1] == _host() and _is_gone(int(found[2]))) or _is_old(entry)):
            shutil.rmtree(entry, ignore_errors=True)


def _host() -> str:
    """Process numbers mean nothing on another machine that shares the directory."""
    return digest(platform.node())[:8]


def _is_gone(pid: int) -> bool:
    try:
        if os.name == "posix":  # elsewhere, os.kill would end the process that it asks about
            os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except OSError:  # another user's
        return False
    return False


def _is_old(entry: os.DirEntry[str]) -> bool:
    """A day old: all that can be known of other machines, and of a process number that is in use again."""
    try:
        return time.time() - entry.stat(follow_symlinks=False).st_mtime > _DAY_SECONDS
    except FileNotFoundError:  # finished meanwhile
        return False


def _reason(error: OSError) -> str:
    a_file = isinstance(error, (FileExistsError, NotADirectoryError))
    return "there is a file where a directory should be" if a_file else error.strerror or str(error)


@contextmanager
def exclusive(path: Path, what: str) -> Iterator[None]:
    """Holds a file for this process alone, and makes it where there is none; a second writer is refused at once.

    The system's own lock on the open file: it ends with the process, however that ends, and leaves nothing behind. Lock a
    file that is never replaced, since the lock would stay with the old one.
    """
    # Windows keeps others from reading what is locked, so there it is a file beside it.
    locked = path if os.name == "posix" else path.with_name(f".{path.name}.lock")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = locked.open("ab")
    except OSError as error:
        raise ArtifactError(f"{what} cannot be written: {_reason(error)}") from error
    with file:
        if not lock_descriptor(file.fileno(), blocking=False):
            raise ArtifactError(f"{what} is being written by another process; wait for it or stop it")
        try:
            yield
        finally:
            # A process forked meanwhile (a runtime's telemetry, say) has the file open too: closing ours alone would leave
            # it locked for as long as that lives.
            unlock_descriptor(file.fileno())


def _umask() -> int:
    """The process's umask, which can only be read by setting it; temporary files ignore it otherwise."""
    mask = os.umask(0)
    os.umask(mask)
    return mask
