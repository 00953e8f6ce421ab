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

    from layermerge.cli.layout import bold
    from layermerge.cli.summary import show_next, show_results
    from layermerge.errors import ArtifactError
    from layermerge.files import plain
    from layermerge.reporting.facts import gather
    from layermerge.reporting.page import write_page
    from layermerge.reporting.report_pictures import write_pictures
    from layermerge.runs.directory import RunDirectory
    from layermerge.stages import expect, stage

    target = out or RunDirectory(runs[0]).page
    if target.suffix != ".html":
        raise ArtifactError(f"a report is an HTML file; give --out a name that ends in .html, not '{target.name}'")
    expect(("report",))
    with stage("report", "read the runs and write the page"):
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
    for run in facts:
        if run.results:
            print(f"\n{bold(run.name)}")
            show_results([result.report for result in run.results])
    pictures_beside = [(str(written[1].parent), f"{len(written) - 1} pictures, as PNG and SVG")] if written[1:] else []
    show_next((str(target), "the report: open it in a browser"), *pictures_beside)
