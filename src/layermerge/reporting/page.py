"""Page: `report.html`, one file that needs no network, no server and no other file.

In: run directories. Out: a page made of the files in `page/`, the parts that `html/` draws, and the runs' facts as JSON.
Guarantees: all figures and tables can be read without scripts; names from the runs reach the page only as escaped text and
as JSON data, which cannot end its script element; the file is written whole or not at all.
"""

from __future__ import annotations

import html
import json
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from importlib import resources
from pathlib import Path

from layermerge import __version__
from layermerge.errors import ArtifactError
from layermerge.files import plain, text_writer, write_files
from layermerge.reporting.fact_records import RunFacts
from layermerge.reporting.facts import gather
from layermerge.reporting.html.evidence import evidence
from layermerge.reporting.html.explore import explore
from layermerge.reporting.html.hero import hero
from layermerge.reporting.html.markup import Markup, el, join
from layermerge.reporting.html.names import Ids
from layermerge.reporting.html.network import network
from layermerge.reporting.html.reproduce import reproduce
from layermerge.reporting.html.runs_compared import runs_compared
from layermerge.reporting.html.why import why
from layermerge.stages import stage

_SCRIPTS = ("elements.js", "state.js", "strip.js", "saving.js", "layers.js", "page.js")
_STYLES = ("colours.css", "page.css", "parts.css", "paper.css")
_PLACE = re.compile(r"\{\{(\w+)\}\}")


def write_report(run_dirs: Sequence[str | Path], path: str | Path) -> Path:
    """Writes the report of one run, or of several to be compared."""
    if not run_dirs:
        raise ArtifactError("a report needs at least one run directory")
    with stage("report", "write the report"):
        return write_page([gather(run_dir) for run_dir in run_dirs], path)


def write_page(runs: Sequence[RunFacts], path: str | Path) -> Path:
    """Writes the page of facts that were gathered already."""
    target = Path(path)
    names = Counter(run.name for run in runs)
    told_apart = [replace(run, name=run.directory) if names[run.name] > 1 else run for run in runs]
    write_files({target: text_writer(page_text(told_apart))})
    return target


def page_text(runs: Sequence[RunFacts]) -> str:
    """The page as text."""
    parts = {
        "title": html.escape(f"{', '.join(run.name for run in runs)} · layermerge report"),
        "style": "\n".join(map(_file, _STYLES)),
        "runs": _runs(runs),
        "script": "\n".join(map(_file, _SCRIPTS)),
        "data": _island(runs),
        "version": html.escape(__version__),
    }
    # In one pass: what is filled in is never searched for further places.
    return _PLACE.sub(lambda place: parts[place[1]], _file("report.html"))


def _runs(runs: Sequence[RunFacts]) -> Markup:
    """Every run whole, one after the other; a script shows one at a time."""
    parts = [_run(run, Ids(place)) for place, run in enumerate(runs)]
    return join([runs_compared(runs) if len(runs) > 1 else None, *parts])


def _run(run: RunFacts, ids: Ids) -> Markup:
    parts = [section(run, ids) for section in (hero, explore, network, why, reproduce, evidence)]
    return el("article", parts, id=ids("run-part"), aria_labelledby=ids("title"))


def _island(runs: Sequence[RunFacts]) -> str:
    """JSON that may be put into a script element: no `<` that could end it, no number that JSON does not have."""
    document = [plain(run) for run in runs]
    text = json.dumps(document, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")


def _file(name: str) -> str:
    return (resources.files("layermerge.reporting") / "page" / name).read_text(encoding="utf-8")
