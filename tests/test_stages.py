"""Stages: numbered, ticked, timed or reused; at once on a terminal, as few plain lines in a log, and silent elsewhere."""

from __future__ import annotations

import io
import sys
import time
from pathlib import Path

import pytest

from layermerge import stages
from layermerge.stages import aside, expect, note, shown_stages, skip, stage


class Terminal(io.StringIO):
    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


def terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "60")
    made = Terminal()
    monkeypatch.setattr(sys, "stderr", made)
    return made


def test_python_hears_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    expect(("plan",), "layermerge at 60%")
    with stage("plan", "find out"), aside():
        pass
    note("nothing")
    assert capsys.readouterr() == ("", "")


def test_a_terminal_sees_the_stage_that_runs_and_then_that_it_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = terminal(monkeypatch)
    with shown_stages():
        expect(("plan", "latency"), "layermerge at 60%")
        with stage("plan", "find out"):
            assert screen.getvalue().endswith("\r\x1b[2K1/2 plan          find out ...")
        assert screen.getvalue().endswith("\r\x1b[2K1/2 plan          \u2713 <1 s\n")
        with stage("latency", "time what takes long " * 9):
            assert len(screen.getvalue().rpartition("\r\x1b[2K")[2]) == 59, "no longer than the terminal is wide"
            with aside():
                assert screen.getvalue().endswith("\x1b[2K"), "the line makes room"
            assert "2/2 latency" in screen.getvalue().rpartition("\r\x1b[2K")[2], "and comes back"


def test_what_fails_leaves_no_line_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = terminal(monkeypatch)

    def interrupted() -> None:
        with shown_stages():
            expect(("plan",))
            with stage("plan", "find out"):
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert screen.getvalue().endswith("\r\x1b[2K")


def test_a_log_has_one_line_a_stage_and_no_control_characters(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    known = tmp_path / "table"
    known.write_text("rows")
    with shown_stages():
        expect(("original", "plan", "latency", "plan"), "sequential at 60%")
        with stage("original", "score it") as shown:
            shown.reused = True
        with stage("plan", "find out", known), stage("latency", "a part of another stage"):
            pass
        with stage("latency", "time it", known):
            known.write_text("more rows")
        with stage("importance", "which nobody expects"):
            pass
        with stage("plan", "once more", tmp_path / "absent"):
            pass
        assert capsys.readouterr().err == "", "held back while the command may still be refused"
    assert capsys.readouterr() == (
        "",
        "sequential at 60%\n1/4 original      \u2713 reused\n2/4 plan          \u2713 reused\n3/4 latency       \u2713 <1 s\n"
        "4/4 plan          \u2713 <1 s\n",
    )


def test_only_the_next_stage_can_be_skipped(capsys: pytest.CaptureFixture[str]) -> None:
    with shown_stages():
        expect(("calibration", "export", "calibration"), "channels+depth at 60%")
        skip("export", "which is not next")
        skip("calibration", "nothing to fit")
        skip("calibration", "which is not next")
        with stage("export", "write it"):
            pass
    assert capsys.readouterr().err.splitlines()[1:] == [
        "1/3 calibration   \u2713 nothing to fit",
        "2/3 export        \u2713 <1 s",
    ]


def test_a_log_is_told_of_a_stage_that_takes_long(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stages, "HELD_FOR", 0.05)
    monkeypatch.setattr(stages, "ONE_LINE_UP_TO", 0.05)
    with shown_stages():
        expect(("network",))
        with stage("network", "load it"):
            deadline, said = time.monotonic() + 10, ""
            while not said and time.monotonic() < deadline:
                time.sleep(0.01)
                said = capsys.readouterr().err
    assert said == "network       load it ...\n"
    assert capsys.readouterr().err.startswith("network       \u2713 ")


def test_a_quick_command_that_does_no_method_has_nothing_to_say(capsys: pytest.CaptureFixture[str]) -> None:
    with shown_stages():
        expect(("network", "export"))
        with stage("network", "load it"):
            pass
    assert capsys.readouterr() == ("", "")


def test_a_terminal_of_few_characters_has_another_tick(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with shown_stages():
        expect(("plan",), "depth at 60%")
        monkeypatch.setattr(type(sys.stderr), "encoding", "ascii", raising=False)
        with stage("plan", "find out"):
            pass
        monkeypatch.undo()
    assert "plan          ok <1 s" in capsys.readouterr().err


def test_under_torchrun_only_the_first_process_speaks(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", "1")
    with shown_stages():
        expect(("plan",), "depth at 60%")
        with stage("plan", "find out"):
            pass
    assert capsys.readouterr() == ("", "")
