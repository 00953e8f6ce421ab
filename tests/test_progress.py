"""Long work is shown: a bar on a terminal, few plain lines elsewhere, nothing where it is not wanted."""

from __future__ import annotations

import io
import sys

import pytest

from layermerge.progress import FIRST_LINE_AFTER, LINE_EVERY, Progress
from layermerge.stages import in_words


class Clock:
    """A clock that goes only when it is told to."""

    seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def use_terminal(monkeypatch: pytest.MonkeyPatch, kind: str = "xterm") -> Terminal:
    """To be called by the test itself: pytest takes stderr back between a fixture and the test."""
    for name in ("NO_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", kind)
    monkeypatch.setenv("COLUMNS", "120")
    made = Terminal()
    monkeypatch.setattr(sys, "stderr", made)
    return made


def lines_of(capsys: pytest.CaptureFixture[str]) -> list[str]:
    out, err = capsys.readouterr()
    assert out == ""
    return err.splitlines()


def test_short_work_needs_no_line(capsys: pytest.CaptureFixture[str]) -> None:
    clock = Clock()
    with Progress("measuring", total=14, clock=clock) as shown:
        for _ in range(14):
            clock.seconds += (FIRST_LINE_AFTER - 0.1) / 14
            shown.advance()
    assert lines_of(capsys) == []


def test_long_work_says_how_far_it_is_and_how_long_it_takes(capsys: pytest.CaptureFixture[str]) -> None:
    clock = Clock()
    with Progress("measuring", total=100, clock=clock) as shown:
        for _ in range(100):
            clock.seconds += 1
            shown.advance()
    assert lines_of(capsys) == [
        "measuring: 15 of 100, 15 s so far, about 1 min 25 s left",
        "measuring: 45 of 100, 45 s so far, about 55 s left",
        "measuring: 75 of 100, 1 min 15 s so far, about 25 s left",
    ]
    assert (FIRST_LINE_AFTER, LINE_EVERY) == (15, 30)


def test_what_an_earlier_run_did_does_not_count_as_fast(capsys: pytest.CaptureFixture[str]) -> None:
    clock = Clock()
    with Progress("measuring", total=100, done=90, clock=clock) as shown:
        clock.seconds += 20
        shown.advance(2)
    assert lines_of(capsys) == ["measuring: 92 of 100, 20 s so far, about 1 min 20 s left"]


def test_a_terminal_gets_a_bar_with_count_and_time_left(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    terminal = use_terminal(monkeypatch)
    with Progress("measuring", total=4, done=1) as shown:
        shown.advance(2)
        shown.print("a line [of] its own")
    text = terminal.getvalue()
    assert "a line [of] its own\n" in text
    assert all(part in text for part in ("measuring", "3/4", "0:00:0", "left"))
    assert capsys.readouterr().out == ""


def test_a_terminal_that_cannot_move_its_cursor_gets_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = use_terminal(monkeypatch, "dumb")
    with Progress("measuring", total=2) as shown:
        shown.advance()
        shown.print("a line")
    assert terminal.getvalue() == "a line\n"


def test_nothing_is_shown_where_it_is_not_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = use_terminal(monkeypatch)
    with Progress("measuring", total=2, wanted=False) as shown:
        shown.advance()
        shown.print("a line")
    assert terminal.getvalue() == ""


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0, "0 s"), (59.4, "59 s"), (59.6, "1 min 0 s"), (3600, "1 h 0 min"), (90_000, "1 d 1 h")],
)
def test_times_in_words(seconds: float, words: str) -> None:
    assert in_words(seconds) == words
