"""What a method could not give: a file beside the results, and the lines that pages make of it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from layermerge.errors import LayerMergeError
from layermerge.files import SCHEMA, STRICT, read_document, write_document
from layermerge.runs.environment import environment_now
from layermerge.runs.records import Environment

_ENDING = ".missing.json"


@dataclass(frozen=True)
class Missing:
    """NAME.missing.json: why there is no result of that name."""

    __pydantic_config__ = STRICT

    reason: str
    environment: Environment
    schema_version: Literal[2] = SCHEMA


def _path(folder: Path, name: str) -> Path:
    return folder / f"{name}{_ENDING}"


def tells_of_missing(path: Path) -> bool:
    """Whether a file is one of these, not a result."""
    return path.name.endswith(_ENDING)


def write_missing(folder: Path, name: str, error: LayerMergeError) -> None:
    write_document(_path(folder, name), Missing(str(error), environment_now()))


def read_missing(folder: Path, name: str) -> Missing | None:
    path = _path(folder, name)
    return read_document(path, Missing) if path.is_file() else None


def reasons(found: Iterable[tuple[str, Missing]], who: str = "What rivals do not reach") -> list[str]:
    """Lines of Markdown about (what was asked for, why it is not there); none where nothing is missing."""
    lines = dict.fromkeys(f"- {asked}: {missing.reason}." for asked, missing in found)  # with and without training
    return ["", f"{who}:", "", *lines] if lines else []
