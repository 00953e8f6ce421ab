"""For the Python reference: paragraphs of docstrings that begin with >>> become code. `mkdocs.yml` names this extension."""

from __future__ import annotations

from typing import Any

import griffe


def as_code(text: str) -> str:
    """Fences what doctest would run.

    >>> as_code("Adds.\\n\\n>>> 1 + 1\\n2").splitlines()
    ['Adds.', '', '```pycon', '>>> 1 + 1', '2', '```']
    """
    return "\n\n".join(f"```pycon\n{part}\n```" if part.startswith(">>>") else part for part in text.split("\n\n"))


class DocstringExamples(griffe.Extension):
    """Turns the examples of every docstring into blocks of code."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = as_code(obj.docstring.value)
