"""Files are written whole or not at all, and what a killed writer leaves behind goes with the next write beside it."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from layermerge.errors import ArtifactError
from layermerge.files import text_writer, write_files
from processes import soon


def write_and_wait(path: Path) -> None:
    """Half of the file, and one that a library writes beside it."""
    path.write_text("half")
    path.with_name(".tmpAbC").write_text("half")
    time.sleep(60)


def start_writing(path: Path) -> int:
    child = os.fork()
    if child == 0:
        write_files({path: write_and_wait})
        os._exit(1)
    assert soon(lambda: any(path.parent.glob(".*/.tmpAbC")))
    return child


def kill(child: int) -> None:
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)


def names(place: Path) -> set[str]:
    return {path.name for path in place.rglob("*")}


def test_the_next_writer_removes_what_a_killed_one_left(tmp_path: Path) -> None:
    (tmp_path / ".unfinished").write_text("not ours")
    (tmp_path / "model.onnx").write_text("old")
    child = start_writing(tmp_path / "model.onnx")
    write_files({tmp_path / "other.json": text_writer("{}")})
    assert len(list(tmp_path.glob(".unfinished-*/*"))) == 2, "its writer is alive"
    kill(child)
    assert (tmp_path / "model.onnx").read_text() == "old"
    write_files({tmp_path / "model.onnx": text_writer("new")})
    assert names(tmp_path) == {".unfinished", "model.onnx", "other.json"}
    assert (tmp_path / "model.onnx").read_text() == "new"


def test_what_another_machine_left_goes_after_a_day(tmp_path: Path) -> None:
    """Its process numbers mean nothing here."""
    theirs = tmp_path / ".unfinished-0a1b2c3d-1-xyz"
    theirs.mkdir()
    write_files({tmp_path / "a.txt": text_writer("a")})
    assert theirs.exists()
    os.utime(theirs, (0, time.time() - 86401))
    write_files({tmp_path / "a.txt": text_writer("a")})
    assert names(tmp_path) == {"a.txt"}


@pytest.mark.parametrize("failing", ["first", "second"])
def test_all_files_or_none(tmp_path: Path, failing: str) -> None:
    def fail(path: Path) -> None:
        path.write_text("half")
        raise OSError(28, "No space left on device")

    writers: dict[str, Callable[[Path], None]] = {"first": text_writer("new"), "second": text_writer("new")}
    paths = {name: tmp_path / f"{name}.txt" for name in writers}
    write_files({path: text_writer("old") for path in paths.values()})
    with pytest.raises(ArtifactError, match=r"cannot write .*first.txt, .*second.txt: No space left on device"):
        write_files({paths[name]: fail if name == failing else write for name, write in writers.items()})
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"first.txt": "old", "second.txt": "old"}


def test_files_are_as_readable_as_others(tmp_path: Path) -> None:
    def write_privately(path: Path) -> None:
        path.touch(mode=0o600)

    (tmp_path / "usual").write_text("")
    write_files({tmp_path / "file": write_privately})
    assert (tmp_path / "file").stat().st_mode == (tmp_path / "usual").stat().st_mode
