"""The verb report: one page about one run, or about several to be compared."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from layermerge.cli.app import JsonOption, app, print_json


@app.command()
def report(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN", help="Run directories; several are compared.")],
    out: Annotated[
        Path | None, typer.Option(metavar="FILE.html", help="Where it goes; report.html in the first RUN by default.")
    ] = None,
    pictures: Annotated[
        bool, typer.Option("--pictures/--no-pictures", help="Also PNG and SVG files, where matplotlib is installed.")
    ] = True,
    as_json: JsonOption = False,
) -> None:
    """Write a report of runs, finished or not: one HTML file that works offline. With --json, print the facts in it too.

    Example: layermerge report runs/a runs/b --out comparison.html
    """
    from importlib.util import find_spec

    from layermerge.errors import ArtifactError
    from layermerge.files import plain
    from layermerge.reporting.facts import gather
    from layermerge.reporting.page import write_page
    from layermerge.reporting.report_pictures import write_pictures
    from layermerge.runs.directory import RunDirectory

    target = out or RunDirectory(runs[0]).page
    if target.suffix != ".html":
        raise ArtifactError(f"a report is an HTML file; give --out a name that ends in .html, not '{target.name}'")
    facts = [gather(run) for run in runs]
    written = [write_page(facts, target)]
    if pictures and find_spec("matplotlib"):
        written += write_pictures(facts, target)
    if as_json:
        print_json({"written": [str(path) for path in written], "runs": [plain(run) for run in facts]})
        return
    for run in facts:
        for line in run.missing:
            print(f"{run.name}: {line}", file=sys.stderr)
    print(f"written to {', '.join(map(str, written))}")
