"""Where the command prints: a full disk, a closed or narrow stream, a reader that has enough. Never a traceback."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from command_line import SCRIPT, program

MUCH = """
import sys
from layermerge.cli import app, main

@app.app.command()
def much():
    print("x" * 1_000_000)

sys.argv = ["layermerge", "much"]
main()
"""


@pytest.mark.parametrize("command", [f"{SCRIPT} --version", f"{sys.executable} much.py"], ids=["little", "much"])
def test_output_that_cannot_be_written_is_one_line(tmp_path: Path, command: str) -> None:
    """Little is noticed when it is flushed at the end, much when it is printed."""
    (tmp_path / "much.py").write_text(MUCH, encoding="utf-8")
    done = program("sh", "-c", f"{command} > /dev/full", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "failed: No space left on device; repair that, then run the same command again\n"


@pytest.mark.parametrize("arguments", [("--version",), ("solve", "d")])
def test_a_closed_stdout_is_one_line(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    """Else the next file that is opened would take its place, and what is printed would end up in it."""
    done = program("sh", "-c", f"{SCRIPT} {' '.join(arguments)} >&-", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (1, "failed: stdout is closed; send it to a file or to /dev/null\n")
    silent = program("sh", "-c", f"{SCRIPT} {' '.join(arguments)} >&- 2>&-", cwd=tmp_path)
    assert (silent.returncode, silent.stdout, silent.stderr) == (1, "", "")


GREET = """
import sys
from layermerge.cli import app, main
from layermerge.errors import LayerMergeError

@app.app.command()
def greet():
    print("caf\u00e9")
    raise LayerMergeError("no \u00e9clair")

sys.argv = ["layermerge", "greet"]
main()
"""


def test_a_terminal_of_few_characters_shows_others_as_question_marks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "greet.py").write_text(GREET, encoding="utf-8")
    monkeypatch.setenv("PYTHONIOENCODING", "ascii:strict")
    done = program(sys.executable, "greet.py", cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (2, "caf?\n", "error: no ?clair\n")


def test_a_reader_that_has_enough_is_no_failure_to_speak_of(tmp_path: Path) -> None:
    done = program("sh", "-c", f"{SCRIPT} --help | true", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
