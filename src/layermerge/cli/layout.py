"""Layout: tables and paragraphs as wide as the terminal.

In: columns, and rows of text. Out: lines. Guarantees: a figure or a word is shown whole or not at all; where a table does not
fit, the columns that are missed least go first, and the last line says which; names and sentences run over several lines.
"""

from __future__ import annotations

import os
import re
import sys
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from rich.console import Console

WIDE = 140
"""Columns of a file or a pipe: wide enough for whole reasons."""
_GAP = "  "
_NARROWEST = {"name": 18, "text": 28}
_UNITS = re.compile(r"(?<=\d) (?=(?:%|ms|s|min|points|±)(?:\W|$))|(?<=±) (?=\d)")
_PIECES = re.compile(r"[^./_]*[./_]?")


@dataclass(frozen=True)
class Column:
    """`figure` and `word` are never broken; a `name` is broken behind its dots, a `text` between words. Of the columns with a
    `missed` above 0, which may be left out, the one with the smallest goes first."""

    title: str
    kind: Literal["figure", "word", "name", "text"] = "word"
    missed: int = 0
    least: int | None = None
    """How narrow a name or a text may become."""


def width_of(stream: object = None) -> int:
    """Of the terminal, or what COLUMNS says."""
    out = stream or sys.stdout
    told = os.environ.get("COLUMNS", "")
    if told.isdecimal() and int(told) > 0:
        return int(told)
    return Console(file=out).width if getattr(out, "isatty", lambda: False)() else WIDE  # type: ignore[arg-type]


def show_table(columns: Sequence[Column], rows: Sequence[Sequence[str]]) -> None:
    """Prints a table; its headings are bold on a terminal."""
    width = width_of()
    shown = fitting(columns, rows, width)
    heads, lines = laid_out(
        [columns[place] for place in shown], [[row[place] for place in shown] for row in rows], width
    )
    for head in filter(None, heads):
        print(bold(head))
    for line in lines:
        print(line)
    full = fitting(columns, rows, sys.maxsize)
    if left_out := [columns[place].title for place in full if place not in shown]:
        show_text(f"(left out at this width: {', '.join(left_out)})")


def show_text(text: str, behind: str = "") -> None:
    """A paragraph; further lines begin `behind`."""
    for number, line in enumerate(_sentence(text, width_of() - len(behind))):
        print(f"{behind if number else ''}{line}")


def bold(text: str) -> str:
    console = Console()
    if not (sys.stdout.isatty() and console.color_system):
        return text
    with console.capture() as capture:
        console.print(text, style="bold", end="", markup=False, highlight=False, soft_wrap=True)
    return capture.get()


def fitting(columns: Sequence[Column], rows: Sequence[Sequence[str]], width: int) -> list[int]:
    """The places of the columns that are shown: empty ones are not, and as few others as possible are left out."""
    shown = [place for place in range(len(columns)) if not rows or any(row[place] for row in rows)]
    while True:
        least = [_least(columns[place], [row[place] for row in rows]) for place in shown]
        spare = [place for place in shown if columns[place].missed]
        if not spare or sum(least) + len(_GAP) * (len(shown) - 1) <= width:
            return shown
        shown.remove(min(spare, key=lambda place: columns[place].missed))


def laid_out(columns: Sequence[Column], rows: Sequence[Sequence[str]], width: int) -> tuple[list[str], list[str]]:
    """The lines of the headings, and those of the rows."""
    cells = [[row[place] for row in rows] for place in range(len(columns))]
    widths = [_least(column, own) for column, own in zip(columns, cells, strict=True)]
    room = width - sum(widths) - len(_GAP) * (len(columns) - 1)
    # Names first, then sentences that fit on one line, the headings of figures, and other sentences.
    for kinds, whole in ((("name",), False), (("text",), True), (("figure", "word"), False), (("text",), False)):
        for place, column in enumerate(columns):
            wanted = max(map(len, [column.title, *cells[place]])) - widths[place]
            if column.kind in kinds and not (whole and wanted > room):
                more = max(0, min(room, wanted))
                widths[place] += more
                room -= more
    heads = _row(columns, [_sentence(column.title, own) for column, own in zip(columns, widths, strict=True)], widths)
    return heads, [line for row in rows for line in _lines(columns, row, widths)]


def _least(column: Column, cells: Iterable[str]) -> int:
    """How narrow a column may become."""
    longest = max(map(len, cells), default=0)
    own = min(longest, column.least or _NARROWEST.get(column.kind, longest))
    return max([own, *map(len, column.title.split())])


def _lines(columns: Sequence[Column], row: Sequence[str], widths: Sequence[int]) -> list[str]:
    broken = {"name": _name, "text": _sentence}
    parts = [
        broken[column.kind](cell, own) if column.kind in broken else [cell]
        for column, cell, own in zip(columns, row, widths, strict=True)
    ]
    return _row(columns, parts, widths)


def _row(columns: Sequence[Column], parts: Sequence[list[str]], widths: Sequence[int]) -> list[str]:
    lines = []
    for number in range(max(map(len, parts), default=0)):
        cells = [part[number] if number < len(part) else "" for part in parts]
        aligned = [
            cell.rjust(own) if column.kind == "figure" else cell.ljust(own)
            for column, cell, own in zip(columns, cells, widths, strict=True)
        ]
        lines.append(_GAP.join(aligned).rstrip())
    return lines


def _sentence(text: str, width: int) -> list[str]:
    """Broken between words, but not between a number and its unit."""
    whole = _UNITS.sub("\u00a0", text)
    lines = textwrap.wrap(whole, max(width, 1), break_long_words=False, break_on_hyphens=False)
    return [line.replace("\u00a0", " ") for line in lines] or [""]


def _name(text: str, width: int) -> list[str]:
    """Broken behind dots; a part that is longer than all room, anywhere."""
    lines = [""]
    for piece in filter(None, _PIECES.findall(text)):
        if len(lines[-1]) + len(piece) > width and lines[-1]:
            lines.append("")
        while len(piece) > width:
            lines[-1], piece = piece[:width], piece[width:]
            lines.append("")
        lines[-1] += piece
    return lines
