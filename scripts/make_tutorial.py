"""Executes the tutorial's notebook and keeps what it printed, and the report of its run, for the documentation site.

Run: make tutorial (about two minutes). It writes docs/tutorial.ipynb and docs/tutorial_report.html. Figures are those of the
machine that runs it, so use an idle one.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path

import nbformat
from nbclient import NotebookClient

DOCS = Path(__file__).resolve().parents[1] / "docs"
NOTEBOOK = DOCS / "tutorial.ipynb"
REPORT = DOCS / "tutorial_report.html"


def main() -> int:
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    with tempfile.TemporaryDirectory() as place:
        resources = {"metadata": {"path": place}}
        # The kernel would warn that it is reached over TCP: it is, from this machine, for two minutes.
        NotebookClient(notebook, timeout=1200, resources=resources, extra_arguments=["--log-level=ERROR"]).execute()
        shutil.copy(Path(place) / "runs" / "tutorial" / "report.html", REPORT)
    for cell in notebook.cells:
        cell.metadata.clear()
        if cell.cell_type == "code":  # progress goes to stderr, and is of no use on a page
            cell.outputs = [output for output in cell.outputs if output.get("name") != "stderr"]
    notebook.metadata.pop("widgets", None)
    notebook.metadata["language_info"] = {"name": "python"}
    nbformat.write(notebook, NOTEBOOK)
    print(f"written: {NOTEBOOK.name}, {REPORT.name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
