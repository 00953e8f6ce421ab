"""Markup: elements of HTML and SVG as text. Whatever is not markup already is escaped, so names cannot become elements."""

from __future__ import annotations

import html
from collections.abc import Iterable
from typing import Any


class Markup(str):
    """Text that is HTML; everything else is escaped where it is put in."""

    __slots__ = ()


Child = Any
"""Text, a number, markup, None (nothing), or any nesting of these."""
_VOID = frozenset({"input", "br", "hr", "col"})


def el(tag: str, *children: Child, **attributes: Any) -> Markup:
    """An element; attributes that are None or False are left out, and `class_` and `data_x` are written `class` and `data-x`.

    >>> el("p", "a < b", el("b", 1), class_="x", hidden=True, title=None)
    '<p class="x" hidden>a &lt; b<b>1</b></p>'
    """
    written = "".join(_attribute(name, value) for name, value in attributes.items())
    if tag in _VOID:
        return Markup(f"<{tag}{written}>")
    return Markup(f"<{tag}{written}>{join(children)}</{tag}>")


def join(children: Iterable[Child]) -> Markup:
    """Children one after the other."""
    return Markup("".join(map(_text, children)))


def coded(text: str) -> Markup:
    """Plain text in which `this` is code.

    >>> coded("try `x < 1`")
    'try <code>x &lt; 1</code>'
    """
    parts = text.split("`")
    return join(el("code", part) if place % 2 else part for place, part in enumerate(parts))


def folded(title: Child, *content: Child, **attributes: Any) -> Markup:
    """A part that opens by a click, and on paper by itself."""
    return el("details", el("summary", title), *content, **attributes)


def percent(value: float) -> str:
    """A length as a share of the picture's width, so that pictures need no script to fit.

    >>> percent(12.34567)
    '12.346%'
    """
    return f"{value:.3f}".rstrip("0").rstrip(".") + "%"


def _text(child: Child) -> str:
    if child is None:
        return ""
    if isinstance(child, Markup):
        return child
    if isinstance(child, (str, int, float)):
        return html.escape(str(child), quote=False)
    return join(child)


def _attribute(name: str, value: Any) -> str:
    if value is None or value is False:
        return ""
    written = name.rstrip("_").replace("_", "-")
    return f" {written}" if value is True else f' {written}="{html.escape(str(value))}"'
