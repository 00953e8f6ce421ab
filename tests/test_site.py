"""The documentation site is true of the source. `make docs`, part of `make check`, builds it and checks every link."""

from __future__ import annotations

import ast
import doctest
import importlib.util
import inspect
import re
from functools import cache
from itertools import pairwise
from pathlib import Path
from statistics import median, quantiles
from types import ModuleType

import pytest
import yaml

import layermerge
import layermerge.cli
from layermerge.cli import VERBS

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
PUBLIC = sorted(set(layermerge.__all__) - {"__version__"})


def script(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, ROOT / "scripts" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


# -- the Python reference


def shown(page: str) -> set[str]:
    return set(re.findall(r"^::: ([\w.]+)$", (DOCS / "api" / page).read_text(encoding="utf-8"), re.MULTILINE))


def test_the_reference_shows_every_public_name_and_no_private_one() -> None:
    in_tasks = {f"layermerge.tasks.{name}" for name in layermerge.tasks.__all__}
    assert shown("tasks.md") == in_tasks
    assert shown("layermerge.md") == {f"layermerge.{name}" for name in PUBLIC} - {"layermerge.tasks", "layermerge.Task"}
    assert not [name for name in shown("returned.md") if "._" in name]


@pytest.mark.parametrize("name", PUBLIC)
def test_public_names_have_docstrings(name: str) -> None:
    thing = getattr(layermerge, name)
    text = inspect.cleandoc(thing.__doc__ or "")
    assert len(text.split()) > 5, f"{name} has no docstring that would help anybody"
    assert not text.startswith(f"{name}("), f"{name} has the docstring that dataclasses make"


def test_examples_in_docstrings_become_code() -> None:
    failed, attempted = doctest.testmod(script("shown_source"))
    assert (failed, attempted) == (0, 1)


# -- pages that are made when the site is built


def test_every_verb_has_its_section() -> None:
    text = "\n".join(script("docs_site").commands())
    assert re.findall(r"^## (\w+)$", text, re.MULTILINE) == list(VERBS)
    assert text.count("```bash\nlayermerge ") == len(VERBS), "each has an example"
    assert "| `--budget " in text


def test_every_decision_is_listed() -> None:
    text = script("docs_site").decisions(DOCS / "adr")
    assert text.count("\n- ") == len(list((DOCS / "adr").glob("0*.md")))


@pytest.mark.parametrize(
    ("page", "link", "expected"),
    [
        ("docs", "int8.md", "int8.md"),
        ("docs", "../benchmarks/README.md", "benchmarks/README.md"),
        ("docs", "adr", "adr/README.md"),
        ("docs/adr", "../int8.md", "../int8.md"),
        ("docs/adr", "../../benchmarks/README.md", "../benchmarks/README.md"),
        ("benchmarks", "../docs/int8.md", "../int8.md"),
        ("benchmarks", "results/a.png", "../benchmarks/results/a.png"),
        (".", "docs/int8.md", "int8.md"),
    ],
)
def test_links_between_files_become_links_between_pages(page: str, link: str, expected: str) -> None:
    site = script("docs_site")
    folder = site.PurePosixPath(page)
    on_site = folder.relative_to("docs") if folder.parts[:1] == ("docs",) else folder
    assert site._on_site(link, folder, on_site) == expected


@pytest.mark.parametrize(
    ("html", "outside"),
    [
        ('<script src="https://host/a.js">', True),
        ("<link href=//host/a.css>", True),
        ('<a href="https://host/">', False),
        ('<script src="assets/a.js">', False),
    ],
)
def test_pages_that_load_from_other_hosts_are_noticed(html: str, outside: bool) -> None:
    assert bool(script("docs_site").LOADED.search(html)) is outside


def test_broken_links_are_errors() -> None:
    class Loader(yaml.SafeLoader):
        """Takes what MkDocs calls by name as text."""

    Loader.add_multi_constructor("tag:yaml.org,2002:python/", lambda *_: None)
    config = yaml.load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"), Loader)
    assert config["strict"] is True
    assert {*config["validation"]["links"].values(), *config["validation"]["nav"].values()} == {"warn"}
    assert config["theme"]["font"] is False
    assert f"\n{config['site_dir'].partition('/')[0]}/\n" in (ROOT / ".gitignore").read_text(encoding="utf-8")
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert "mkdocs build --strict\n" in makefile, "--quiet would hide the warnings that --strict counts"
    assert re.search(r"\$\(MAKE\).* docs\b", makefile.partition("\ncheck:")[2].partition("\n\n")[0])


# -- troubleshooting


@cache
def messages() -> frozenset[str]:
    """Every text in the source, with ... for what is filled in."""
    found = set()
    for path in sorted((ROOT / "src").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.JoinedStr):
                parts = (part.value if isinstance(part, ast.Constant) else "..." for part in node.values)
                found.add("".join(map(str, parts)))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.add(node.value)
    return frozenset(found)


TROUBLE = (DOCS / "troubleshooting.md").read_text(encoding="utf-8")
QUOTED = re.findall(r"^> (.*)$", TROUBLE, re.MULTILINE)


def test_quoted_messages_are_those_of_the_source() -> None:
    assert len(QUOTED) > 40
    assert [quoted for quoted in QUOTED if not any(quoted in message for message in messages())] == []


def test_every_quoted_message_is_explained() -> None:
    paragraphs = [*TROUBLE.split("\n\n"), "## the end"]
    assert [
        first for first, then in pairwise(paragraphs) if first.startswith("> ") and then.startswith(("> ", "## "))
    ] == []


# -- one figure for the error of predictions


def test_the_error_of_predictions_is_that_of_the_benchmark() -> None:
    table = (ROOT / "benchmarks" / "README.md").read_text(encoding="utf-8")
    off = [abs(float(each)) for each in re.findall(r"^\|.*\| ([+-][\d.]+)% ± [\d.]+% \|", table, re.MULTILINE)]
    said = re.search(
        r"Over (\d+) choices.*\*\*([\d.]+) % in the median, and by less than ([\d.]+) % in 95 % of cases\*\*; the worst was "
        r"off by ([\d.]+) %",
        (DOCS / "results.md").read_text(encoding="utf-8").replace("\n", " "),
    )
    assert said is not None
    assert int(said[1]) == len(off)
    assert float(said[2]) == pytest.approx(median(off), abs=0.1)
    assert float(said[3]) == pytest.approx(quantiles(off, n=20, method="inclusive")[-1], abs=0.05)
    assert float(said[4]) == max(off)
