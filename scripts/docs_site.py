"""What the documentation site needs beyond MkDocs; `mkdocs.yml` names this file as its hook.

Pages link to each other as files of the repository do, so that they can be read there too. The site also shows some files from
outside docs/ (`OUTSIDE`), and every link is translated to where its file is on the site. Three pages are made when the site
is built: the tutorial from its notebook, the command line from the program's own parser, the decisions from their headings.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any

import nbformat
import typer
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from nbconvert import MarkdownExporter

from layermerge.cli import VERBS
from layermerge.cli.app import app

ROOT = Path(__file__).resolve().parents[1]
OUTSIDE = (
    *(
        "CONTRIBUTING.md",
        "CHANGELOG.md",
        "SECURITY.md",
        "CITATION.cff",
        "LICENSE",
        "benchmarks/README.md",
        "benchmarks/*.py",
    ),
    *("benchmarks/pictures/*", "benchmarks/results/**/*", "examples/*.py", "recipes/*.yaml"),
)
LINK = re.compile(r"(?P<before>\]\(|^\[[^\]]+\]: )(?P<path>(?![a-z]+:)[^)#\s]+)", re.MULTILINE)
TEST_NOTE = re.compile(r"^<!-- test: .*? -->\n", re.MULTILINE)
VERBS_HERE = "<!-- verbs -->"
LOADED = re.compile(r"<(?:script|link|img|iframe|source|embed)\b[^>]*\b(?:src|href)=[\"']?(?:https?:)?//[^\"' >]+")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds what is shown from outside docs/, and the pages that are made here."""
    for pattern in OUTSIDE:
        for path in sorted(ROOT.glob(pattern)):
            if path.is_file():
                files.append(File.generated(config, path.relative_to(ROOT).as_posix(), abs_src_path=str(path)))
    files.append(File.generated(config, "tutorial.md", content=tutorial(ROOT / "docs" / "tutorial.ipynb")))
    files.append(File.generated(config, "adr/README.md", content=decisions(ROOT / "docs" / "adr")))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:  # noqa: ARG001
    """Leaves out notes to the tests, fills in the commands, and translates links to files outside docs/."""
    uri = PurePosixPath(page.file.src_uri)
    outside = page.file.abs_src_path == str(ROOT / uri)
    folder = uri.parent if outside else "docs" / uri.parent
    text = TEST_NOTE.sub("", markdown).replace(VERBS_HERE, "\n".join(commands()))
    if uri.name != "tutorial.md":  # which offers the notebook itself
        text = text.replace("](tutorial.ipynb)", "](tutorial.md)")
    return LINK.sub(lambda link: link["before"] + _on_site(link["path"], folder, uri.parent), text)


def on_post_page(output: str, page: Page, config: MkDocsConfig) -> str:  # noqa: ARG001
    """Refuses a page that would load anything from another host."""
    if found := LOADED.search(output):
        raise PluginError(f"{page.file.src_uri} loads something from another host: {found[0]}")
    return output


def _on_site(link: str, folder: PurePosixPath, page_folder: PurePosixPath) -> str:
    """A link to a file, seen from a folder of the repository, as seen from a folder of the site."""
    if link.startswith("/"):
        return link  # MkDocs refuses it
    target = _normal(folder / link)
    if (ROOT / target).is_dir():
        target /= "README.md"
    place = target.relative_to("docs") if target.parts[:1] == ("docs",) else target
    up = [".."] * len(page_folder.parts)
    return str(PurePosixPath(*up, place))


def _normal(path: PurePosixPath) -> PurePosixPath:
    parts: list[str] = []
    for part in path.parts:
        if part == ".." and parts:
            parts.pop()
        elif part != ".":
            parts.append(part)
    return PurePosixPath(*parts)


def tutorial(notebook: Path) -> str:
    """The notebook as a page: its text, its code, and what the code printed."""
    text, _ = MarkdownExporter().from_notebook_node(nbformat.read(notebook, as_version=4))
    return str(text)


def decisions(folder: Path) -> str:
    """The list of decisions, by number."""
    lines = ["# Decisions", "", "Why things are as they are, for those who change them. The newest stand last.", ""]
    for path in sorted(folder.glob("[0-9]*.md")):
        heading = path.read_text(encoding="utf-8").partition("\n")[0].removeprefix("# ")
        number, _, title = heading.partition(". ")
        lines.append(f"- {number}: [{title}]({path.name})")
    return "\n".join(lines) + "\n"


def commands() -> Iterator[str]:
    """A section for each verb: what it does, an example, its arguments and options."""
    program: Any = typer.main.get_command(app)
    for name in VERBS:
        verb = program.commands[name]
        said, _, example = (verb.help or "").partition("Example: ")
        yield f"## {name}\n\n{' '.join(said.split())}\n\n```bash\n{example.strip()}\n```\n"
        yield "| argument or option | |\n| --- | --- |"
        for parameter in verb.params:
            record = parameter.get_help_record(verb.make_context(name, [], resilient_parsing=True))
            if record is not None:
                left, right = (re.sub(r"\s+", " ", part).replace("|", "\\|").strip() for part in record)
                yield f"| `{left}` | {right} |"
        yield ""
