"""Prints how many logical lines of code a tree of Python files has, by package.

Run: python scripts/count_lines.py [SOURCE]
A logical line is one statement, however many lines it is written on, so that formatting does not count; docstrings, comments
and blank lines do not count either. The report page is a web page, not Python, and is left out.
"""

from __future__ import annotations

import argparse
import ast
from collections import Counter
from pathlib import Path

SOURCE = Path(__file__).resolve().parents[1] / "src" / "layermerge"
LEFT_OUT = "reporting/page"


def logical_lines(text: str) -> int:
    """The statements of a file: `if`, `def` and the like count one, as does what each of them holds.

    >>> logical_lines('def double(x):\\n    "Twice."\\n    return x * 2  # a comment\\n')
    2
    """
    return sum(isinstance(node, ast.stmt) and not _is_text(node) for node in ast.walk(ast.parse(text)))


def _is_text(node: ast.stmt) -> bool:
    """Whether a statement is a string alone: a docstring, or what is written below a field."""
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def by_package(source: Path) -> Counter[str]:
    """Logical lines of every package of a tree; modules at its root count as a package of their own."""
    counts: Counter[str] = Counter()
    for path in sorted(source.rglob("*.py")):
        place = path.relative_to(source)
        if not place.as_posix().startswith(LEFT_OUT):
            counts[place.parts[0]] += logical_lines(path.read_text(encoding="utf-8"))
    return counts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("source", nargs="?", type=Path, default=SOURCE, help="the package's own directory")
    counts = by_package(parser.parse_args().source)
    for package, count in counts.most_common():
        print(f"{count:6,}  {package}")
    print(f"{counts.total():6,}  in all")


if __name__ == "__main__":
    main()
