"""Tables at every width: figures whole, names and sentences over several lines, the least useful columns left out first."""

from __future__ import annotations

import json
import os
import pty
import re
import struct
import termios
from fcntl import ioctl
from pathlib import Path
from typing import Any

import pytest

from command_line import SCRIPT, Run, document
from layermerge.cli.layout import Column, fitting, laid_out, show_table, width_of

WIDTHS = (60, 80, 120, 200)
COLUMNS = (
    Column("#", "figure"),
    Column("layer", "name"),
    Column("map", "figure", missed=1),
    Column("merges up to"),
    Column("remark", "text"),
)
ROWS = [
    ["7", "features.3.block.1.expansion_of_channels", "112x112", "#15", "95 % interval 86.0 % to 89.3 %, 1,500 images"],
    ["128", "head", "7x7", "-", ""],
]


@pytest.mark.parametrize("width", [30, *WIDTHS])
def test_figures_and_words_are_whole_at_every_width(width: int) -> None:
    shown = fitting(COLUMNS, ROWS, width)
    heads, lines = laid_out([COLUMNS[at] for at in shown], [[row[at] for at in shown] for row in ROWS], width)
    words = " ".join(lines).split()
    for row in ROWS:
        for at in shown:
            if COLUMNS[at].kind in ("figure", "word"):
                assert row[at] in words
    names = "".join(line[5:].split("  ")[0].strip() for line in lines[:-1])
    assert "features.3.block.1.expansion_of_channels".startswith(names[:11])
    if width >= 60:
        assert max(map(len, [*heads, *lines])) <= width


def test_the_column_that_is_missed_least_goes_first_and_is_named(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "64")
    show_table(COLUMNS, ROWS)
    assert "(left out at this width: map)" in capsys.readouterr().out
    monkeypatch.setenv("COLUMNS", "120")
    show_table(COLUMNS, ROWS)
    out = capsys.readouterr().out
    assert "112x112" in out
    assert "left out" not in out


def test_a_number_and_its_unit_stay_together() -> None:
    text = "1.69×, predicted 0.396 ± 0.023 ms; 95 % interval 86.0 % to 89.3 %, 12 points"
    for width in range(16, 60):
        _, lines = laid_out([Column("", "text", least=width)], [[text]], width)
        assert not [line for line in lines if re.match(r" *(%|ms|±|points)", line)], lines
        assert " ".join(" ".join(lines).split()) == text


def test_an_empty_column_is_not_shown_and_not_missed(capsys: pytest.CaptureFixture[str]) -> None:
    show_table((Column("name"), Column("nothing", missed=1)), [["a", ""], ["b", ""]])
    assert capsys.readouterr().out.split() == ["name", "a", "b"]


def test_columns_says_how_wide_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "77")
    assert width_of() == 77
    monkeypatch.setenv("COLUMNS", "wide")
    assert width_of() == 140


# -- the command itself

SHAPE = ("--input", "3x32x32")


def geometry(layer: dict[str, Any]) -> str:
    (high, wide), (down, _), groups = layer["kernel"], layer["stride"], layer["groups"]
    return f"{high}x{wide}{f'/{down}' if down > 1 else ''}{' dw' if groups > 1 else ''}"


def test_the_plan_has_every_layer_whole_at_every_width(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    facts = document(run("plan", "timm:mobilenetv2_035", *SHAPE, "--json"))
    reached = {index: index for index in range(len(facts["layers"]))}
    for candidate in facts["candidates"]:
        reached[candidate["start"]] = max(reached[candidate["start"]], candidate["end"] - 1)
    for width in WIDTHS:
        monkeypatch.setenv("COLUMNS", str(width))
        lines = run("plan", "timm:mobilenetv2_035", *SHAPE).out.splitlines()
        table = lines[: next(number for number, line in enumerate(lines) if "why not further, by example" in line)]
        assert max(map(len, table)) <= width
        rows = {int(found[0]): line for line in table if (found := re.match(r" *\d+(?=  )", line))}
        assert list(rows) == list(reached)
        for index, layer in enumerate(facts["layers"]):
            cells = re.split(r" {2,}", rows[index].strip())
            assert cells[2] == geometry(layer)
            assert (f"#{reached[index]}" in cells) is (reached[index] > index)
        names = "".join(line.replace(" ", "") for line in table)
        assert all(part in names for layer in facts["layers"] for part in layer["name"].split("_"))


def on_terminal(width: int, *command: str, cwd: Path) -> str:
    """What a command prints on a terminal of that width."""
    pid, terminal = pty.fork()
    if not pid:  # pragma: no cover
        os.chdir(cwd)
        os.environ.pop("COLUMNS", None)
        ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", 40, width, 0, 0))
        os.execve(command[0], command, os.environ | {"TERM": "xterm"})
    printed = b""
    try:
        while read := os.read(terminal, 4096):
            printed += read
    except OSError:  # the other end was closed
        pass
    os.waitpid(pid, 0)
    return printed.decode()


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_terminal_is_told_at_once_what_is_done_and_gets_a_table_as_wide_as_it_is(run: Run, tmp_path: Path) -> None:
    assert run("--version").code == 0  # leaves tiny.py here
    printed = on_terminal(60, SCRIPT, "plan", "python:tiny:net", *SHAPE, cwd=tmp_path)
    first, _, rest = printed.partition("\n")
    assert "load and trace python:tiny:net ..." in first
    assert re.search(r"network +\u2713 ", first)
    plain = re.sub(r"\x1b\[[0-9;]*[a-zA-Z]", "", rest).replace("\r", "")
    assert "layermerge explain python:tiny:net --input 3x32x32" in plain
    commands = [line for line in plain.splitlines() if line.startswith("layermerge ")]
    assert max(len(line) for line in plain.splitlines() if line not in commands) <= 60


def test_json_is_the_same_at_every_width(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    said = set()
    for width in (20, 200):
        monkeypatch.setenv("COLUMNS", str(width))
        said.add(json.dumps(document(run("plan", "python:tiny:net", *SHAPE, "--json"))))
    assert len(said) == 1
