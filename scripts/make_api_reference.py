"""Writes docs/api.md, the reference of the public names, from signatures and docstrings.

Run: python scripts/make_api_reference.py [--check]
Signatures and defaults are taken from the source, so the page does not depend on how objects print. Classes that public names
return or hold, without being public names themselves, follow behind them.
"""

from __future__ import annotations

import argparse
import ast
import inspect
import re
import sys
import textwrap
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from types import FunctionType
from typing import Any

import layermerge

PAGE = Path(__file__).resolve().parents[1] / "docs" / "api.md"
COMMAND = "python scripts/make_api_reference.py"
HEAD = f"""# API reference

Made from docstrings by `{COMMAND}`; do not edit. `import layermerge as lm` loads nothing
heavy: names are imported when they are first used. The [quick start](quickstart.md) shows them at work.
"""
# The order in which a reader meets them; what is not listed here follows by name.
ORDER = (
    *("compress", "compare", "Settings", "Recipe", "Task"),
    *("from_onnx", "trace", "Trace", "plan", "Rules", "Plan", "Candidate", "ConvSpec"),
    *("measure_latency", "measure_importance", "solve", "Frontier", "Solution", "meet_budget"),
    *("rewrite", "calibrate", "finetune", "merge", "save", "load", "export", "LayerMergeError"),
)
# What is behind these is for reading the code, not for using it.
INTERNAL = {
    "OnnxNetwork",
    "FileInterface",
    "Structure",
    "LiftedModule",
    "Inputs",
    "Surgery",
    "Runtime",
    "ClockSettings",
    "Axis",
    "Record",
    "Path",
}
# A user reads these as what they are; what they hold is the network.
NETWORKS = {"RewrittenModule", "MergedModule"}


@dataclass(frozen=True)
class Field:
    """An attribute of a class: its type and default as written, what the source says about it."""

    name: str
    kind: str
    default: str
    text: str


def reference() -> str:
    """The whole page."""
    names = [name for name in layermerge.__all__ if name not in ("__version__", "tasks")]
    ordered = [name for name in ORDER if name in names] + sorted(set(names) - set(ORDER))
    public = {name: getattr(layermerge, name) for name in ordered}
    tasks = import_module("layermerge.tasks")
    given = {name: getattr(tasks, name) for name in tasks.__all__ if name not in public}
    given = {name: thing for name, thing in given.items() if inspect.isroutine(thing) or _own_class(thing)}
    behind = _behind([*public.values(), *given.values()])
    everything = public | given | behind
    aliases = _aliases(everything.values())
    parts = [HEAD, _contents({"layermerge": public, "layermerge.tasks": given, "returned and held": behind})]
    parts += ["## layermerge\n", *(_entry(name, thing, everything) for name, thing in public.items())]
    parts += [f"## layermerge.tasks\n\n{_text(tasks)}\n"]
    parts += [_entry(name, thing, everything) for name, thing in given.items()]
    parts += ["## What they return and hold\n"]
    parts += [_entry(name, thing, everything) for name, thing in behind.items()]
    parts += ["## Types\n", "| name | stands for | |", "|---|---|---|", *aliases, ""]
    return "\n".join(parts)


def _contents(groups: dict[str, dict[str, Any]]) -> str:
    """Links to every entry; a group is a paragraph. Of headings that differ in case only, the second ends in -1."""
    paragraphs = []
    seen: set[str] = set()
    for title, group in groups.items():
        links = []
        for name in group:
            anchor = name.lower()
            links.append(f"[{name}](#{anchor}-1)" if anchor in seen else f"[{name}](#{anchor})")
            seen.add(anchor)
        text = f"**{title}**: {', '.join(links)}"
        paragraphs.append("\n".join(textwrap.wrap(text, 126, break_on_hyphens=False)) + "\n")
    return "\n".join(paragraphs)


def _entry(name: str, thing: Any, everything: dict[str, Any]) -> str:
    return _class(name, thing, everything) if inspect.isclass(thing) else _function(name, thing)


def _function(name: str, function: FunctionType) -> str:
    signature = _signature(_definition(function), name, drop_self=False)
    return f"### {name}\n\n```text\n{signature}\n```\n\n{_text(function)}\n"


def _class(name: str, kind: type, everything: dict[str, Any]) -> str:
    lines = [f"### {name}\n", f"{_text(kind)}\n"]
    base = next((base.__name__ for base in kind.__mro__[1:] if base.__name__ in everything), None)
    if base is not None:
        lines.append(f"It is a [{base}](#{base.lower()}), and has what that has.\n")
    tree = _definition(kind)
    written = next((part for part in tree.body if isinstance(part, ast.FunctionDef) and part.name == "__init__"), None)
    if written is not None:
        lines.append(f"```text\n{_signature(written, name, drop_self=True)}\n```\n")
    fields = list(_fields(kind))
    if fields:
        lines += ["| field | type | default | |", "|---|---|---|---|"]
        lines += [f"| `{each.name}` | {_code(each.kind)} | {_code(each.default)} | {each.text} |" for each in fields]
        lines.append("")
    members = list(_members(kind))
    if members:
        lines += [*members, ""]
    return "\n".join(lines)


def _members(kind: type) -> Iterator[str]:
    """What a class itself adds: its properties, and methods that say what they do."""
    for name, member in vars(kind).items():
        plain = member.__func__ if isinstance(member, (staticmethod, classmethod)) else member
        called = plain.fget if isinstance(plain, property) else getattr(plain, "func", plain)
        if name.startswith("_") or not inspect.isfunction(called):
            continue
        definition, text = _definition(called), _text(called)
        if called is not plain:
            yield f"- `{name}`: `{_unparsed(definition.returns)}`{_said(text)}"
        elif text:
            drop = not isinstance(member, staticmethod)
            yield f"- `{_flat(_signature(definition, name, drop_self=drop))}`{_said(text)}"


def _said(text: str) -> str:
    """A docstring behind its signature, in one paragraph."""
    return f": {' '.join(text.split())}" if text else ""


def _fields(kind: type) -> Iterator[Field]:
    """Annotated attributes with what stands under them, in the order of the constructor."""
    for base in reversed([base for base in kind.__mro__ if _own_class(base)]):
        body = _definition(base).body
        for place, part in enumerate(body):
            if not isinstance(part, ast.AnnAssign) or not isinstance(part.target, ast.Name):
                continue
            if part.target.id.startswith("_"):
                continue
            after = body[place + 1] if place + 1 < len(body) else None
            text = after.value.value if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant) else ""
            default, bounds = _default(part.value)
            told = " ".join(part for part in (" ".join(str(text).split()), bounds) if part)
            yield Field(part.target.id, _kind(part.annotation), default, told.replace("|", "\\|"))


def _kind(annotation: ast.expr) -> str:
    """The type as written; of Annotated[X, ...] the X."""
    if isinstance(annotation, ast.Subscript) and _unparsed(annotation.value) == "Annotated":
        assert isinstance(annotation.slice, ast.Tuple)
        return _kind(annotation.slice.elts[0])
    return _unparsed(annotation)


_BOUNDS = {"ge": "At least {}.", "gt": "Above {}.", "le": "At most {}.", "lt": "Below {}.", "min_length": "{} or more."}


def _default(value: ast.expr | None) -> tuple[str, str]:
    """The default as written, and in words what a pydantic Field demands."""
    if value is None:
        return "", ""
    if not (isinstance(value, ast.Call) and _unparsed(value.func) in ("Field", "field")):
        return _unparsed(value), ""
    given = {keyword.arg: _unparsed(keyword.value) for keyword in value.keywords}
    bounds = [words.format(given[name]) for name, words in _BOUNDS.items() if name in given]
    return given.get("default", ""), " ".join(bounds)


def _behind(things: list[Any]) -> dict[str, type]:
    """Our classes that are named in what public names return and hold, and in what those hold, in the order found."""
    known = {thing for thing in things if inspect.isclass(thing)}
    found: dict[str, type] = {}
    waiting = list(things)
    while waiting:
        thing = waiting.pop(0)
        for kind in _named_by(thing):
            if kind not in known and kind.__name__ not in INTERNAL:
                known.add(kind)
                found[kind.__name__] = kind
                if kind.__name__ not in NETWORKS:
                    waiting.append(kind)
    return found


def _named_by(thing: Any) -> Iterator[type]:
    """Our classes in what a function returns, or in what a class holds and gives."""
    home = vars(sys.modules[thing.__module__])
    for word in _words(thing, arguments=False):
        if _own_class(home.get(word)):
            yield home[word]


def _words(thing: Any, *, arguments: bool) -> list[str]:
    """The names in the annotations that the page shows of a thing."""
    trees = [_definition(thing)]
    annotations: list[str] = []
    if inspect.isclass(thing):
        annotations += [field.kind for field in _fields(thing)]
        trees = [
            part
            for part in trees[0].body
            if isinstance(part, ast.FunctionDef) and (part.name == "__init__" or not part.name.startswith("_"))
        ]
    for tree in trees:
        annotations.append(_unparsed(tree.returns))
        if arguments:
            given = [*tree.args.posonlyargs, *tree.args.args, *tree.args.kwonlyargs]
            annotations += [_unparsed(each.annotation) for each in given]
    return list(dict.fromkeys(re.findall(r"[A-Za-z]\w*", " ".join(annotations))))


def _aliases(things: Iterable[Any]) -> list[str]:
    """Names in annotations that stand for other types, with what the source says about them."""
    wanted = {word for thing in things for word in _words(thing, arguments=True)} - INTERNAL
    rows = {}
    for file in sorted(Path(layermerge.__file__).parent.rglob("*.py")):
        body = ast.parse(file.read_text(encoding="utf-8")).body
        for part, after in zip(body, [*body, None][1:], strict=True):
            target = part.targets[0] if isinstance(part, ast.Assign) else getattr(part, "target", None)
            if not isinstance(target, ast.Name) or target.id not in wanted or target.id.isupper():
                continue
            value = _kind(part.value) if isinstance(part, (ast.Assign, ast.AnnAssign)) and part.value else ""
            if not re.search(r"[\[|]", value) and value != "str":
                continue
            text = after.value.value if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant) else ""
            if target.id not in rows or text:
                rows[target.id] = f"| `{target.id}` | {_code(value)} | {' '.join(str(text).split())} |"
    return [rows[name] for name in sorted(rows)]


def _own_class(thing: Any) -> bool:
    return inspect.isclass(thing) and thing.__module__.startswith("layermerge.") and thing.__name__ != "Record"


def _definition(thing: Any) -> Any:
    """The syntax tree of a function or class."""
    return ast.parse(textwrap.dedent(inspect.getsource(thing))).body[0]


def _signature(definition: ast.FunctionDef, name: str, *, drop_self: bool) -> str:
    """The call as written, one parameter a line where it is long."""
    parts = _parameters(definition.args)[1 if drop_self else 0 :]
    makes = drop_self and definition.name == "__init__"
    arrow = "" if makes or definition.returns is None else f" -> {_unparsed(definition.returns)}"
    flat = f"{name}({', '.join(parts)}){arrow}"
    return flat if len(flat) <= 110 else f"{name}(\n" + "".join(f"    {part},\n" for part in parts) + f"){arrow}"


def _parameters(given: ast.arguments) -> list[str]:
    """Each parameter as written, with the star that starts those given by name only."""
    positional = [*given.posonlyargs, *given.args]
    defaults: list[ast.expr | None] = [None] * (len(positional) - len(given.defaults)) + list(given.defaults)
    parts = [_parameter(each, default) for each, default in zip(positional, defaults, strict=True)]
    if given.kwonlyargs or given.vararg:
        parts.append(f"*{_parameter(given.vararg, None)}" if given.vararg else "*")
    parts += [_parameter(each, default) for each, default in zip(given.kwonlyargs, given.kw_defaults, strict=True)]
    return parts + ([f"**{_parameter(given.kwarg, None)}"] if given.kwarg else [])


def _parameter(each: ast.arg, default: ast.expr | None) -> str:
    kind = f": {_unparsed(each.annotation)}" if each.annotation else ""
    return f"{each.arg}{kind}" + (f" = {_unparsed(default)}" if default is not None else "")


def _flat(text: str) -> str:
    return re.sub(r"\s+", " ", text).replace("( ", "(").replace(", )", ")")


def _unparsed(node: ast.expr | None) -> str:
    return "" if node is None else ast.unparse(node)


def _code(text: str) -> str:
    escaped = text.replace("|", "\\|")
    return f"`{escaped}`" if text else ""


def _text(thing: Any) -> str:
    """A docstring; its examples become a block."""
    written = thing.__doc__ if thing is not None else None
    if not written or (inspect.isclass(thing) and written.startswith(f"{thing.__name__}(")):
        return ""
    paragraphs = inspect.cleandoc(written).split("\n\n")
    return "\n\n".join(f"```text\n{part}\n```" if part.startswith(">>>") else part for part in paragraphs)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="only say whether the page is up to date")
    only_check = parser.parse_args().check
    page = reference()
    if only_check:
        fresh = PAGE.is_file() and PAGE.read_text(encoding="utf-8") == page
        if not fresh:
            print(f"{PAGE.name} is out of date; run: {COMMAND}", file=sys.stderr)
        return 0 if fresh else 1
    PAGE.write_text(page, encoding="utf-8")
    print(f"written to {PAGE}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
