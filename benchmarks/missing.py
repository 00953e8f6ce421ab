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


@dataclass(frozen=True)
class Missing:
    """NAME.missing.json: why there is no result of that name."""

    __pydantic_config__ = STRICT

    reason: str
    environment: Environment
    schema_version: Literal[2] = SCHEMA


def _path(folder: Path, name: str) -> Path:
    return folder / f"{name}.missing.json"


def write_missing(folder: Path, name: str, error: LayerMergeError) -> None:
    write_document(_path(folder, name), Missing(str(error), environment_now()))


def read_missing(folder: Path, name: str) -> Missing | None:
    path = _path(folder, name)
    return read_document(path, Missing) if path.is_file() else None


def reasons(found: Iterable[tuple[str, Missing]]) -> list[str]:
    """Lines of Markdown about (what was asked for, why it is not there); none where nothing is missing."""
    lines = [f"- {asked}: {missing.reason}." for asked, missing in found]
    return ["", "What rivals do not reach:", "", *lines] if lines else []
