"""For the Python reference, which `mkdocs.yml` makes with this extension: what the source says, without how it is checked.

Examples in docstrings become blocks of code. Of `Annotated[X, ...]` the X is shown, and of a pydantic field its default and its
bounds in words. Constructors that only say "fields by name" are left out: the fields follow.
"""

from __future__ import annotations

from typing import Any

import griffe

BOUNDS = {"ge": "At least {}.", "gt": "Above {}.", "le": "At most {}.", "lt": "Below {}."}


def as_code(text: str) -> str:
    """Fences what doctest would run.

    >>> as_code("Adds.\\n\\n>>> 1 + 1\\n2").splitlines()
    ['Adds.', '', '```pycon', '>>> 1 + 1', '2', '```']
    """
    return "\n\n".join(f"```pycon\n{part}\n```" if part.startswith(">>>") else part for part in text.split("\n\n"))


def plain(annotation: Any) -> Any:
    """The type alone, of one that is annotated; also within unions and containers."""
    if isinstance(annotation, griffe.ExprSubscript):
        if annotation.canonical_name == "Annotated":
            kinds = annotation.slice
            return plain(kinds.elements[0] if isinstance(kinds, griffe.ExprTuple) else kinds)
        annotation.slice = plain(annotation.slice)
    elif isinstance(annotation, griffe.ExprBinOp):
        annotation.left, annotation.right = plain(annotation.left), plain(annotation.right)
    elif isinstance(annotation, griffe.ExprTuple):
        annotation.elements = [plain(each) for each in annotation.elements]
    return annotation


class WithoutChecks(griffe.Extension):
    """What is shown of every object."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = as_code(obj.docstring.value)

    def on_function(self, *, func: griffe.Function, **_: Any) -> None:
        for parameter in func.parameters:
            parameter.annotation = plain(parameter.annotation)
        func.returns = plain(func.returns)

    def on_attribute(self, *, attr: griffe.Attribute, **_: Any) -> None:
        attr.annotation = plain(attr.annotation)
        value = attr.value
        if isinstance(value, griffe.ExprSubscript):
            attr.value = plain(value)  # an alias of a type
        if not isinstance(value, griffe.ExprCall) or str(value.function) not in ("Field", "field"):
            return
        given = {each.name: each.value for each in value.arguments if isinstance(each, griffe.ExprKeyword)}
        attr.value = given.get("default")
        bounds = " ".join(words.format(given[name]) for name, words in BOUNDS.items() if name in given)
        if bounds and attr.docstring is not None:
            attr.docstring.value += f" {bounds}"
        elif bounds:
            attr.docstring = griffe.Docstring(bounds, parent=attr)

    def on_class(self, *, cls: griffe.Class, **_: Any) -> None:
        constructor = cls.members.get("__init__")
        if isinstance(constructor, griffe.Function) and [each.name for each in constructor.parameters][1:] == [
            "args",
            "fields",
        ]:
            cls.del_member("__init__")
