"""Pages, docstrings and messages are plain, idiomatic English: phrases that were once weeded out may not return."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]

# What may not be written, and what to write instead.
PHRASES = {
    r"is no valid": "is not valid",
    r"(?:is|are) no (?:YAML|JSON|chain|path|part of|tensor|divisor|latency|exception)": "is not a ...",
    r"(?:knows|know|names) no (?:data set|network|images|diffusers)": "does not ...",
    r"(?:holds|reads) no (?:CIFAR|plain|importance|files|ONNX)": "does not ...",
    r"on the spot": "immediately",
    r"what stands of": "what remains of",
    r"brings? (?:its |the )?(?:outputs )?near": "makes ... match",
    r"as it comes": "plainly, unchanged",
    r"anew": "again",
    r"go(?:es)? on (?:where|from|with it|as if|until|bit for bit)": "continues",
    r"some (?:hundreds|seconds|megabytes|tens of)": "a few ...",
    r"(?:bits|value|shift|bytes) a (?:channel|weight)": "... per ...",
    r"(?:row|series|file) an? (?:example|image|epoch|key|method|verb|runtime)": "... per ...",
    r"so many (?:examples|images|steps|threads|passes|positional)": "this many ...",
    r"answered rightly": "answered correctly",
    r"somebody else|nobody (?:could|has|can)": "used elsewhere; has not been ...",
    r"as a rival|every rival": "as a baseline",
    r"was never run|were never run": "untested",
    r"torn (?:file|line|table)": "truncated",
    r"came about": "was made, was measured",
    r"with its sign turned": "negated",
    r"go(?:es)? without saying": "is implied, is the default",
    r"(?:is|are) of another (?:model|network|data set|run|kind of network)": "belongs to another ...",
    r"is of (?:an earlier )?format": "has ... format",
    r"one behind the other": "one after the other",
    r"(?:timed|measured|scored|whole,?|latency|figures) beside": "alongside, next to, side by side with",
    r"(?:it|them|table|plan|files?) beside it": "next to it",
    r"wider than need be": "wider than necessary",
    r"what there is to see": "what it shows",
    r"can be had|to be had": "is available, is possible",
    r"whom (?:the recipe's )?distillation listens to": "the network that distillation learns from",
    r"in the \w+'s stead": "in place of",
    r"for want of": "for lack of",
    r"mend (?:that|it)|mends (?:that|it)": "fix, repair",
    r"held against whole": "checked against whole",
    r"as (?:prepared|quantised|merged) already|(?:is|are) (?:prepared|quantised|merged) already": "already ...",
    r"does not mind": "is not affected by",
    r"95 of 100": "95 %",
    r"without having been asked": "unasked",
    r"the other way round": "vice versa",
    r"says? nothing of (?:them|it|the)": "says nothing about ...",
    r"not the user's business": "not for users",
}
FORBIDDEN = {re.compile(rf"\b(?:{phrase})\b", re.IGNORECASE): better for phrase, better in PHRASES.items()}


def documents() -> Iterator[tuple[str, str]]:
    """Markdown as it is read: without code blocks, lines joined; the notebook's text too."""
    roots = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "benchmarks/README.md")]
    for path in [*roots, *sorted((ROOT / "docs").rglob("*.md"))]:
        text = re.sub(r"^```.*?^```$", "", path.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
        yield path.relative_to(ROOT).as_posix(), text
    for cell in json.loads((ROOT / "docs" / "tutorial.ipynb").read_text(encoding="utf-8"))["cells"]:
        if cell["cell_type"] == "markdown":
            yield "docs/tutorial.ipynb", "".join(cell["source"])


def sources() -> Iterator[tuple[str, str]]:
    """Docstrings and messages, with {} for what is filled in."""
    package = ROOT / "src" / "layermerge"
    for path in sorted(package.rglob("*.py")):
        name = path.relative_to(package).as_posix()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.JoinedStr):
                parts = (part.value if isinstance(part, ast.Constant) else "{}" for part in node.values)
                yield f"{name}:{node.lineno}", "".join(map(str, parts))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield f"{name}:{node.lineno}", node.value


@pytest.mark.parametrize("texts", [documents, sources], ids=["documents", "sources"])
def test_phrases_that_were_weeded_out_do_not_return(texts: object) -> None:
    assert callable(texts)
    found = [
        f"{where}: '{hit[0]}'; write: {better}"
        for where, text in texts()
        for phrase, better in FORBIDDEN.items()
        for hit in phrase.finditer(" ".join(text.split()))
    ]
    assert found == []


@pytest.mark.parametrize("text", ["'a' is no valid name", "it goes on where it stopped", "checked on the spot"])
def test_the_phrases_are_found(text: str) -> None:
    assert any(phrase.search(text) for phrase in FORBIDDEN)
