"""Tables: rows of cells as HTML, wide ones in a box that scrolls."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from layermerge.reporting.html.markup import Child, Markup, el


@dataclass(frozen=True)
class Cell:
    """What a cell shows; `sort` is what it is sorted by, where that is not its text; `look` colours a key before it."""

    content: Child
    sort: float | str | None = None
    words: bool = False
    look: str | None = None
    part: str | None = None


def table(
    title: str,
    headings: Sequence[str],
    rows: Sequence[Sequence[Child | Cell]],
    *,
    tall: bool = False,
    **attributes: Any,
) -> Markup:
    """The first cell of a row is its heading. A tall table scrolls by itself on a screen."""
    wordy = [isinstance(cell, Cell) and cell.words for cell in rows[0]] if rows else [False] * len(headings)
    titles = zip(headings, wordy, strict=True)
    head = el("tr", [el("th", heading, scope="col", class_="words" if left else None) for heading, left in titles])
    body = el("tbody", [el("tr", [_cell(cell, place) for place, cell in enumerate(row)]) for row in rows])
    whole = el("table", el("caption", title, class_="hidden"), el("thead", head), body, **attributes)
    return el("div", whole, class_="scroll tall" if tall else "scroll", data_title=title)


def key(look: str) -> Markup:
    return el("span", class_=f"key {look}", aria_hidden="true")


def _cell(given: Child | Cell, place: int) -> Markup:
    cell = given if isinstance(given, Cell) else Cell(given)
    own = {"class_": "words" if cell.words else None, "data_sort": cell.sort, "data_part": cell.part}
    content = (key(cell.look) if cell.look else None, cell.content)
    return el("td", *content, **own) if place else el("th", *content, scope="row", **own)
